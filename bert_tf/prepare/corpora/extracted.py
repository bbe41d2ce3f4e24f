"""What the program wikiextractor has made of a dump: text, or JSON lines (--json), to one article per line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import text_files
from bert_tf.prepare.corpora.documents import BadRecord, Batch, Document, Position, json_text, read_files
from bert_tf.prepare.corpora.wiki import clean_text
from bert_tf.prepare.corpora.wikitext import Removed, is_prose, tidy, unescape, without_tags


def find_files(folder: Path) -> list[Path]:
    """The files that wikiextractor has written below `folder`."""
    return sorted(path for path in folder.rglob("wiki_*") if not path.suffix and path.is_file())


def read_batches(paths: Sequence[Path], position: Position) -> Iterator[Batch]:
    """Batches of articles, each its text: the lines between wikiextractor's ``<doc ...>`` and ``</doc>``, or of an
    object on a line of a file made with --json.

    Raises: UserError where a file is something else, or ends inside an article.
    """
    return read_files(paths, position, _articles)


def _articles(path: Path) -> Iterator[str | BadRecord]:
    article: list[str] | None = None
    for number, line in enumerate(text_files.read_lines(path), 1):
        if article is not None and line == "</doc>":
            # The first line inside <doc> is the title.
            yield "\n".join(text_files.document_lines(path, article)[1:])
            article = None
        elif article is not None and not line.startswith("<doc "):
            article.append(line)
        elif article is None and line.startswith("<doc "):
            article = []
        elif line.startswith("{"):
            yield json_text(number, line, "text", ": run wikiextractor again")
        elif line:
            raise UserError(
                f"{path}, line {number}: not what wikiextractor writes, <doc ...> to </doc> or JSON objects: run "
                "wikiextractor again"
            )
    if article is not None:
        raise UserError(f"{path}: ends inside an article, without </doc>: run wikiextractor again")


def _paragraphs(text: str, removed: Removed) -> Iterator[str]:
    # wikiextractor escapes what it writes, and leaves tags in it that it does not know or that are escaped twice.
    unescaped = unescape(unescape(text))
    plain = without_tags(unescaped, removed)
    lines = plain.split("\n") if plain == unescaped.replace("\n", "\n\n") else map(tidy, plain.split("\n"))
    for line in lines:
        if is_prose(line):
            yield line
        elif line:
            removed["fragments"] += 1


def clean(article: str) -> Document:
    return clean_text(article, _paragraphs)
