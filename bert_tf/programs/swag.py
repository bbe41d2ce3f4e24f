"""Chooses among several endings or answers (SWAG, your own): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

import sys

from bert_tf.programs.tasks import define_program

main = define_program("choices", __doc__)

if __name__ == "__main__":
    sys.exit(main(sys.argv))
