"""Wikipedia's XML dumps to one article per line, streaming."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable
from xml.parsers import expat

from bert_tf.base.errors import UserError
from data.corpora import formatting, text_files
from data.corpora.formatting import BadRecord, Batch, Document, Dropped, as_line, report_line
from data.corpora.wikitext import Removed, is_prose, paragraphs_of, unescape
from data.corpora.xml_files import Place, XmlFile

# Each dataset's wiki, as in the file names of published dumps.
WIKIS = {"wikicorpus_en": "enwiki", "wikicorpus_zh": "zhwiki"}
_PUBLISHED = re.compile(r"-pages-articles.*\.xml(-p\d+p\d+)?(\.bz2)?$")
_TITLE = re.compile(rb"<title>([^<]*)<")
Paragraphs = Callable[[str, Removed], Iterable[str]]
_REDIRECT = re.compile(r"\s*#\s*(REDIRECT|重定向|重新導向)", re.IGNORECASE)


def find_dumps(folder: Path, dataset: str, *, needed: bool = True) -> list[Path]:
    """The dump in `folder`: <dataset>.xml(.bz2), else files named as published, else the only .xml or .xml.bz2 file.

    Raises: UserError where there is none although it is `needed`, or several files may be the dump.
    """
    wiki = WIKIS[dataset]
    for name in (f"{dataset}.xml", f"{dataset}.xml.bz2"):
        if (folder / name).is_file():
            return [folder / name]
    published = [path for path in sorted(folder.glob(f"{wiki}-*")) if _PUBLISHED.search(path.name)]
    others = sorted(path for path in folder.glob("[!.]*") if path.name.endswith((".xml", ".xml.bz2")))
    if published or (not others and not needed):
        return published
    if len(others) > 1:
        raise UserError(
            f"{folder}: which of {', '.join(path.name for path in others)} is the dump? Rename it to "
            f"{dataset}.xml or {dataset}.xml.bz2, or move the others away"
        )
    if not others:
        raise UserError(
            f"{folder} holds no Wikipedia dump: bertPrep.py --action=download --dataset={dataset} fetches the newest "
            f"one; or put {dataset}.xml.bz2 (or .xml, or the published {wiki}-<date>-pages-articles.xml.bz2, in one "
            f"or several files) there, from dumps.wikimedia.org/{wiki}"
        )
    print(f"taking {others[0]} as the dump", flush=True)
    return others


class _Pages:
    """The pages of an open dump as XML, behind the place `begin` in it."""

    def __init__(self, file: XmlFile, begin: Mapping[str, Any], damages: list[str]):
        self._file, self._begin, self._damages = file, begin, damages
        self._end: int | None = None

    def place(self) -> dict[str, Any]:
        """What a place behind the last page holds; `inside` is None where reading cannot begin there."""
        inside = self._begin.get("inside") if self._end is None else self._file.place_of(self._end)
        return {"inside": inside, "damages": list(self._damages)}

    def __iter__(self) -> Iterator[bytes]:
        inside, num_pages = self._begin.get("inside"), self._begin["num_documents"]
        elements = self._file.elements(("page",), "mediawiki", Place(*inside) if inside else None)
        for element in itertools.islice(elements, 0 if inside else num_pages, None):
            num_pages, self._end = num_pages + 1, element.end
            yield element.xml
        self._file.check_read(num_pages, "page", self._damages)
        # The place is now the next file's.
        self._begin, self._end = {}, None


def read_batches(
    paths: Sequence[Path], damages: list[str], place: Mapping[str, Any], *, num_threads: int = 1
) -> Iterator[Batch]:
    """Pages as XML in batches of about equal size.

    If a file ends early or is damaged, the pages before that are kept, and a sentence about it is appended to
    `damages`.

    Raises: UserError where a file holds no page, or is not written in the encoding that it declares.
    """
    damages += place.get("damages", ())
    for path, begin in formatting.files_from(paths, place):
        with XmlFile(path, num_threads) as file:
            pages = _Pages(file, begin, damages)
            yield from formatting.in_batches(pages, path, begin, file.position, pages.place)


def _clean(title: str, text: str, paragraphs_of: Paragraphs, keep_report: bool) -> Document:
    removed: Removed = []
    line = as_line(paragraphs_of(text, removed))
    report = [report_line(reason, title, piece) for reason, piece in removed] if keep_report else []
    return Document(line, title, Counter(reason for reason, _ in removed), report)


def _texts_of(xml: bytes) -> dict[str, str]:
    """The text of each element without others in it, by name; of several with the same name the last one's."""
    texts: dict[str, str] = {}
    pieces: list[str] = []

    def end(name: str) -> None:
        texts[name] = "".join(pieces)
        pieces.clear()

    # Twice as fast as ElementTree, which takes every line by itself.
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text, parser.buffer_size = True, len(xml)
    parser.StartElementHandler = lambda name, attributes: pieces.clear()
    parser.EndElementHandler = end
    parser.CharacterDataHandler = pieces.append
    parser.Parse(xml, True)
    return texts


def clean(xml: bytes, *, keep_report: bool = False) -> Document | Dropped | BadRecord:
    """A page, with the text of its last revision."""
    try:
        page = _texts_of(xml)
        title, text, namespace = page.get("title", ""), page.get("text", ""), int(page.get("ns", ""))
    except (expat.ExpatError, ValueError) as error:
        named = _TITLE.search(xml)
        which = f"page {named[1].decode('utf-8', 'replace')!r}" if named else "a page without a title"
        return BadRecord(f"{which}: XML: {error}: the dump was changed or damaged, or is of before 2011; fetch another")
    if namespace != 0:
        return Dropped("other_namespaces", title)
    if "redirect" in page or _REDIRECT.match(text):
        return Dropped("redirects", title)
    return _clean(title, text, paragraphs_of, keep_report)


def find_extracted(folder: Path) -> list[Path]:
    """The files that wikiextractor has written below `folder`. Raises: UserError where there are none."""
    found = sorted(path for path in folder.rglob("wiki_*") if not path.suffix and path.is_file())
    if not found:
        raise UserError(
            f"skip_wikiextractor: {folder} holds no file like AA/wiki_00, which "
            "wikiextractor writes; without --skip_wikiextractor the dump itself is "
            "read, and wikiextractor is not needed"
        )
    return found


def read_extracted(paths: Sequence[Path], place: Mapping[str, Any]) -> Iterator[Batch]:
    """Batches of articles, each the lines between wikiextractor's ``<doc ...>`` and ``</doc>``, its title first.

    Raises: UserError where a file is something else, or ends inside an article.
    """
    return formatting.read_files(paths, place, _extracted_articles)


def _extracted_articles(path: Path) -> Iterator[str]:
    article: list[str] | None = None
    with text_files.open_text(path) as file:
        for number, line in enumerate(text_files.read_lines(path, file), 1):
            if article is not None and line == "</doc>":
                # The first line inside <doc> is the title.
                yield "\n".join(text_files.document_lines(path, article))
                article = None
            elif article is not None:
                article.append(line)
            elif line.startswith("<doc "):
                article = []
            elif line:
                raise UserError(
                    f"{path}, line {number}: no <doc ...>, with which wikiextractor begins an article (for its --json "
                    "files use --dataset=custom --input_format=jsonl)"
                )
    if article is not None:
        raise UserError(f"{path}: ends inside an article, without </doc>: run wikiextractor again")


def _extracted_paragraphs(text: str, removed: Removed) -> Iterator[str]:
    for line in unescape(text).split("\n"):
        if is_prose(line):
            yield line
        elif line:
            removed.append(("fragments", line))


def clean_extracted(article: str, *, keep_report: bool = False) -> Document:
    title, _, text = article.partition("\n")
    return _clean(title, text, _extracted_paragraphs, keep_report)
