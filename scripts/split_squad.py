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
from bert_tf.tasks.squad.examples import read_examples, sound_answers  # noqa: E402

HELD_OUT_EVERY = 5


def questions(articles: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [question for article in articles for paragraph in article["paragraphs"] for question in paragraph["qas"]]


def read(path: Path) -> list[dict[str, Any]]:
    """The file's articles; raises `UserError` if it is not in SQuAD's format or no question has an answer."""
    content = read_json_object(path, "name a JSON file in SQuAD's format")
    try:
        articles = content["data"]
        has_answers = any(question.get("answers") for question in questions(articles))
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not in SQuAD's format ({type(error).__name__}: {error})") from None
    if not has_answers:
        raise UserError(f"{path} holds no question with an answer; nothing can be learned from it")
    return articles


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
    articles = read(options.file)
    version = "2.0" if any(question.get("is_impossible") for question in questions(articles)) else "1.1"
    # Report now what run_squad.py would refuse, perhaps hours later.
    examples = read_examples(options.file, version_2_with_negative=version == "2.0")
    _, note = sound_answers(examples, options.file)
    if note:
        print(note, file=sys.stderr)
    for name, part in split(articles).items():
        write_text(options.folder / f"{name}-v{version}.json", json.dumps({"version": version, "data": part}))
    print(version)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
