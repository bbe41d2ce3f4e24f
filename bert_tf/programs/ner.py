"""Finds entities or parts of speech in sentences: fine-tunes, labels, scores. See docs/fine_tuning.md."""

import sys

from bert_tf.programs.tasks import define_program

main = define_program("entities", __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv))
