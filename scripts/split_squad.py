"""Splits one file in SQuAD's format into a training and a development file.

One paragraph in five is held out with all its questions, so that no text is in both files. If
any question is marked as having no answer, the files are of version 2.0. Prints the version, 1.1 or 2.0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bert_tf.base.command_line import CommandParser  # noqa: E402
from bert_tf.base.errors import UserError, exit_on_user_error  # noqa: E402
from bert_tf.base.files import read_json_object, write_text  # noqa: E402
from bert_tf.tasks.squad.examples import NAME_A_FILE, read_examples, sound_answers  # noqa: E402

HELD_OUT_EVERY = 5


def split(articles: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "dev": []}
    number = 0
    for article in articles:
        paragraphs: dict[str, list[Any]] = {"train": [], "dev": []}
        for paragraph in article["paragraphs"]:
            number += 1
            paragraphs["dev" if number % HELD_OUT_EVERY == 0 else "train"].append(paragraph)
        for name, chosen in paragraphs.items():
            if chosen:
                parts[name].append({**article, "paragraphs": chosen})
    if not parts["dev"]:
        raise UserError(f"{number} paragraph(s) are too few to hold one in {HELD_OUT_EVERY} out for the scores")
    return parts


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    parser = CommandParser("split_squad.py", __doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path, help="gets train-v*.json and dev-v*.json")
    options = parser.parse_args(argv[1:])
    # Report now what run_squad.py would refuse, perhaps hours later.
    examples = read_examples(options.file, version_2_with_negative=True)
    _, note = sound_answers(examples, options.file)
    if note:
        print(note, file=sys.stderr)
    if all(example.is_impossible for example in examples):
        raise UserError(f"{options.file} holds no question with an answer; nothing can be learned from it")
    articles = read_json_object(options.file, NAME_A_FILE)["data"]
    version = "2.0" if any(example.is_impossible for example in examples) else "1.1"
    for name, part in split(articles).items():
        write_text(options.folder / f"{name}-v{version}.json", json.dumps({"version": version, "data": part}))
    print(version)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
