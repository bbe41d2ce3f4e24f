"""Classifies sentences and pairs of sentences: GLUE's nine tasks, ChemProt, your own files. See docs/fine_tuning.md."""

import sys

from bert_tf.programs.tasks import define_program

main = define_program("glue", __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv))
