"""Turns the positional arguments of the shell launchers into a checked plan, and runs it.

The launchers, such as ``scripts/run_pretraining_*.sh`` and ``scripts/run_squad.sh``, only forward to
``python -m bert_tf.launch <recipe> <arguments>``. Nothing here imports TensorFlow, so mistakes are
reported immediately. The environment variables are those of the settings; docs/settings.md lists them.
"""
