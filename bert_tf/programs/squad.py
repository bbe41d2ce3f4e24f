"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

import sys

from bert_tf.programs.tasks import define_program

main = define_program("squad", __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv))
