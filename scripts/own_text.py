"""Prepares a user's own text for quickstart.sh.

    python scripts/own_text.py PATH                      prints bookscorpus or custom: how PATH is read
    python scripts/own_text.py FORMATTED --parts OUTPUT  few documents into parts, if they are few

A book is a single document, and of two documents the smallest share that can be held out is a half. So if there are
fewer than a hundred documents, each is cut between paragraphs into parts of about a hundredth of the whole text, and
each part becomes a document.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bert_tf.base.command_line import CommandParser  # noqa: E402
from bert_tf.base.errors import exit_on_user_error  # noqa: E402
from bert_tf.base.files import check_file, write_text  # noqa: E402
from bert_tf.prepare.corpora.books import is_book  # noqa: E402
from bert_tf.prepare.corpora.text_files import find_text_files  # noqa: E402
from bert_tf.prepare.sharding.sentences import PARAGRAPH_SEPARATOR, get_splitter  # noqa: E402

FEW = 100


def dataset_of(path: Path) -> str:
    """Text with a book in it, or a folder of few files (each a document in either case), is read as books."""
    files = [path] if path.is_file() else find_text_files(path)
    return "bookscorpus" if 1 < len(files) < FEW or any(map(is_book, files)) else "custom"


def parts(document: str, num_characters: int) -> Iterator[str]:
    """Groups of paragraphs (of sentences, in longer paragraphs) of at least `num_characters`, except the last."""
    held, size, split = [], 0, get_splitter("rules")
    for paragraph in document.split(PARAGRAPH_SEPARATOR):
        for piece in [paragraph] if len(paragraph) < num_characters else split(paragraph):
            held.append(piece)
            size += len(piece)
            if size >= num_characters:
                yield PARAGRAPH_SEPARATOR.join(held)
                held, size = [], 0
    if held:
        yield PARAGRAPH_SEPARATOR.join(held)


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    parser = CommandParser("own_text.py", __doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--parts", type=Path, metavar="OUTPUT")
    options = parser.parse_args(argv[1:])
    if not options.parts:
        print(dataset_of(options.path))
        return 0
    check_file(options.path, "name formatted text")
    documents = [line for line in options.path.read_text(encoding="utf-8").split("\n") if line]
    if len(documents) < FEW:
        size = sum(map(len, documents)) // FEW
        cut = [part for document in documents for part in parts(document, size)]
        text, output = "".join(f"{part}\n" for part in cut), options.parts
        if not output.exists() or output.read_text(encoding="utf-8") != text:  # a new file would count as another input
            write_text(output, text)
        print(f"{len(documents)} documents cut into {len(cut)}, so that a tenth can be held out: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
