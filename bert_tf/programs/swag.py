"""Chooses among several endings or answers (SWAG, your own): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

from bert_tf.programs.flags import run_program
from bert_tf.programs.tasks import define_program
from bert_tf.tasks.task import settings_classes

SETTINGS = settings_classes("choices")
main = define_program("choices", SETTINGS)

if __name__ == "__main__":
    run_program(main, __doc__, *SETTINGS)
