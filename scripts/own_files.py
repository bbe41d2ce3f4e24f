"""Examines and prepares a user's own files for quickstart.sh.

python scripts/own_files.py --corpus PATH             prints bookscorpus or custom: how PATH is read
python scripts/own_files.py --parts FORMATTED OUTPUT  cuts the documents of formatted text, if they are few
python scripts/own_files.py --squad FILE FOLDER       splits questions into two files; prints SQuAD's version
python scripts/own_files.py --vocab_file FILE         prints 1 or 0: whether it is lower-cased, and without accents
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bert_tf.base.command_line import CommandParser  # noqa: E402
from bert_tf.base.errors import UserError, exit_on_user_error  # noqa: E402
from bert_tf.base.files import check_file, read_json_object, write_text  # noqa: E402
from bert_tf.prepare.corpora.books import is_book  # noqa: E402
from bert_tf.prepare.corpora.text_files import find_text_files  # noqa: E402
from bert_tf.prepare.sharding.sentences import PARAGRAPH_SEPARATOR, get_splitter  # noqa: E402
from bert_tf.tasks.squad.examples import NAME_A_FILE, read_examples, sound_answers  # noqa: E402
from bert_tf.text.tokenizer import CasingFlags, open_vocab_file  # noqa: E402

FEW = 100
HELD_OUT_EVERY = 5

# --- Text ----------------------------------------------------------------------------------------


def dataset_of(path: Path) -> str:
    """The dataset to read a path as: "bookscorpus" for few files or books, each one document; else "custom"."""
    files = [path] if path.is_file() else find_text_files(path)
    return "bookscorpus" if 1 < len(files) < FEW or any(map(is_book, files)) else "custom"


def parts(document: str, num_characters: int) -> Iterator[str]:
    """Groups of paragraphs (of sentences, in longer paragraphs) of at least `num_characters`, except the last."""
    pieces, size, split = [], 0, get_splitter("rules")
    for paragraph in document.split(PARAGRAPH_SEPARATOR):
        for piece in [paragraph] if len(paragraph) < num_characters else split(paragraph):
            pieces.append(piece)
            size += len(piece)
            if size >= num_characters:
                yield PARAGRAPH_SEPARATOR.join(pieces)
                pieces, size = [], 0
    if pieces:
        yield PARAGRAPH_SEPARATOR.join(pieces)


def cut_few(formatted: Path, output: Path) -> None:
    """Cuts fewer than a hundred documents between paragraphs into parts of about a hundredth of the whole text.

    A book is a single document, and of two documents the smallest share that can be held out is a half.
    """
    check_file(formatted, "name formatted text")
    documents = [line for line in formatted.read_text(encoding="utf-8").split("\n") if line]
    if len(documents) >= FEW:
        return
    size = sum(map(len, documents)) // FEW
    cut = [part for document in documents for part in parts(document, size)]
    text = "".join(f"{part}\n" for part in cut)
    if not output.exists() or output.read_text(encoding="utf-8") != text:  # a new file would count as another input
        write_text(output, text)
    print(f"{len(documents)} documents cut into {len(cut)}, so that a tenth can be held out: {output}")


# --- Questions -----------------------------------------------------------------------------------


def split(articles: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The articles in "train" and "dev": one paragraph in five is held out for "dev" with all its questions."""
    splits: dict[str, list[dict[str, Any]]] = {"train": [], "dev": []}
    number = 0
    for article in articles:
        paragraphs: dict[str, list[Any]] = {"train": [], "dev": []}
        for paragraph in article["paragraphs"]:
            number += 1
            paragraphs["dev" if number % HELD_OUT_EVERY == 0 else "train"].append(paragraph)
        for name, chosen in paragraphs.items():
            if chosen:
                splits[name].append({**article, "paragraphs": chosen})
    if not splits["dev"]:
        raise UserError(f"{number} paragraph(s) are too few to hold one in {HELD_OUT_EVERY} out for the scores")
    return splits


def split_questions(file: Path, folder: Path) -> None:
    """Writes train-v*.json and dev-v*.json, of version 2.0 if a question has no answer."""
    # Report now what run_squad.py would refuse, perhaps hours later.
    examples = read_examples(file, version_2_with_negative=True)
    _, note = sound_answers(examples, file)
    if note:
        print(note, file=sys.stderr)
    if all(example.is_impossible for example in examples):
        raise UserError(f"{file} holds no question with an answer; nothing can be learned from it")
    version = "2.0" if any(example.is_impossible for example in examples) else "1.1"
    for name, articles in split(read_json_object(file, NAME_A_FILE)["data"]).items():
        write_text(folder / f"{name}-v{version}.json", json.dumps({"version": version, "data": articles}))
    print(version)


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    parser = CommandParser("own_files.py", __doc__)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--corpus", type=Path)
    kind.add_argument("--parts", type=Path, nargs=2)
    kind.add_argument("--squad", type=Path, nargs=2)
    kind.add_argument("--vocab_file", type=Path)
    options = parser.parse_args(argv[1:])
    if options.corpus:
        print(dataset_of(options.corpus))
    elif options.parts:
        cut_few(*options.parts)
    elif options.squad:
        split_questions(*options.squad)
    else:
        tokenizer, _ = open_vocab_file(options.vocab_file, CasingFlags(), is_hugging_face=False)
        print(*map(int, tokenizer.casing))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
