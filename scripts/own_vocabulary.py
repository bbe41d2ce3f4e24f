"""Checks a user's vocabulary for quickstart.sh: `python scripts/own_vocabulary.py VOCAB_FILE`.

Prints whether it lower-cases the text and whether it takes accents off letters, 1 or 0 each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bert_tf.base.command_line import CommandParser  # noqa: E402
from bert_tf.base.errors import exit_on_user_error  # noqa: E402
from bert_tf.text.tokenizer import CasingFlags, open_vocab_file  # noqa: E402


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    parser = CommandParser("own_vocabulary.py", __doc__)
    parser.add_argument("vocab_file", type=Path)
    options = parser.parse_args(argv[1:])
    tokenizer, _ = open_vocab_file(options.vocab_file, CasingFlags(), is_hugging_face=False)
    print(*map(int, tokenizer.casing))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
