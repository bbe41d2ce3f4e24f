"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

from bert_tf.programs.flags import run_program
from bert_tf.programs.tasks import define_program
from bert_tf.tasks.task import settings_classes

SETTINGS = settings_classes("squad")
main = define_program("squad", SETTINGS)

if __name__ == "__main__":
    run_program(main, __doc__, *SETTINGS)
