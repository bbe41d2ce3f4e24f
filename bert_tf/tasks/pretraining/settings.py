"""The settings of pre-training, with the names of run_pretraining.py's flags."""

from bert_tf.settings.programs import PRETRAINING

SETTINGS = PRETRAINING
