"""What the program wikiextractor has made of a dump: text, or JSON lines (--json), to one article per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import text_files
from bert_tf.prepare.corpora.documents import BadRecord, Batch, Document, Position, read_files
from bert_tf.prepare.corpora.wiki import clean_text
from bert_tf.prepare.corpora.wikitext import Removed, is_prose, tidy, unescape, without_tags


def find_files(folder: Path) -> list[Path]:
    """The files that wikiextractor has written below `folder`. Raises: UserError where there are none."""
    files = sorted(path for path in folder.rglob("wiki_*") if not path.suffix and path.is_file())
    if not files:
        raise UserError(
            f"skip_wikiextractor: {folder} holds no file like AA/wiki_00, which "
            "wikiextractor writes (unpack AA/wiki_00.bz2 with bunzip2); without --skip_wikiextractor the dump itself "
            "is read, and wikiextractor is not needed"
        )
    return files


def read_batches(paths: Sequence[Path], position: Position) -> Iterator[Batch]:
    """Batches of articles, each its title and its text: the lines between wikiextractor's ``<doc ...>`` and ``</doc>``,
    or an object on a line of a file made with --json.

    Raises: UserError where a file is something else, or ends inside an article.
    """
    return read_files(paths, position, _articles)


def _json_article(number: int, line: str) -> str | BadRecord:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRecord(f"line {number}: not JSON ({error}): run wikiextractor again")
    title, text = content.get("title"), content.get("text")
    if not isinstance(title, str) or not isinstance(text, str):
        return BadRecord(f'line {number}: no "title" and "text" that are strings, as wikiextractor --json writes them')
    return f"{title}\n{text}"


def _articles(path: Path) -> Iterator[str | BadRecord]:
    article: list[str] | None = None
    with text_files.open_text(path) as file:
        for number, line in enumerate(text_files.read_lines(path, file), 1):
            if article is not None and line == "</doc>":
                # The first line inside <doc> is the title.
                yield "\n".join(text_files.document_lines(path, article))
                article = None
            elif line.startswith("<doc "):
                if article is not None:
                    raise UserError(
                        f"{path}, line {number}: an article begins where the one before has no </doc>: run "
                        "wikiextractor again"
                    )
                article = []
            elif article is not None:
                article.append(line)
            elif line.startswith("{"):
                yield _json_article(number, line)
            elif line:
                raise UserError(
                    f"{path}, line {number}: neither <doc ...> nor a JSON object, with which wikiextractor begins an "
                    "article: run wikiextractor again"
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
            removed.append(("fragments", line))


def clean(article: str, *, keep_report: bool = False) -> Document:
    title, _, text = article.partition("\n")
    return clean_text(title, text, _paragraphs, keep_report)
