"""Classifies sentences and pairs of sentences: GLUE's nine tasks, ChemProt, your own files. See docs/fine_tuning.md."""

from bert_tf.programs.flags import run_program
from bert_tf.programs.tasks import define_program
from bert_tf.tasks.task import settings_classes

SETTINGS = settings_classes("glue")
main = define_program("glue", SETTINGS)

if __name__ == "__main__":
    run_program(main, __doc__, *SETTINGS)
