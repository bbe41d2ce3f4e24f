"""``python -m bert_tf.interchange.to_hugging_face RUN FOLDER``: exports one of our models for `transformers`.

RUN is a run folder (its best-scored sound checkpoint is used, without scores its newest one), a checkpoint folder or
the prefix of a TensorFlow checkpoint, ours or Google's. The weights, configuration, tokenizer and a model card are
written to FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.command_line import CommandParser, add_tokenizer_arguments
from bert_tf.base.errors import exit_on_user_error
from bert_tf.base.machine.hardware import choose_device


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    parser = CommandParser("python -m bert_tf.interchange.to_hugging_face", description=__doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--replace", action="store_true", help="replace a model that was written there before")
    add_tokenizer_arguments(parser)
    options = parser.parse_args(argv[1:])
    choose_device("cpu")
    from bert_tf.interchange.export import export  # imports TensorFlow
    from bert_tf.text.tokenizer import CasingFlags

    casing = CasingFlags(options.do_lower_case, options.strip_accents)
    report = export(options.run, options.folder, replace=options.replace, vocab_file=options.vocab_file, flags=casing)
    print("\n".join(report))


if __name__ == "__main__":
    main(sys.argv)
