"""Wikipedia's XML dumps to one article per line, streaming."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple
from xml.parsers import expat

from bert_tf.base.errors import UserError
from data.corpora import formatting, text_files, xml_files
from data.corpora.formatting import Batch, Cleaned, Dropped, as_line, report_line
from data.corpora.wikitext import Removed, is_prose, paragraphs_of, unescape
from data.corpora.xml_files import Place, XmlFile

# Each dataset's wiki, as in the file names of published dumps.
WIKIS = {"wikicorpus_en": "enwiki", "wikicorpus_zh": "zhwiki"}
_PUBLISHED = re.compile(r"-pages-articles.*\.xml(-p\d+p\d+)?(\.bz2)?$")
_PAGE_START = re.compile(rb"<(?:[\w.-]+:)?page[\s>]")
_REDIRECT = re.compile(r"\s*#\s*(REDIRECT|重定向|重新導向)", re.IGNORECASE)


class Page(NamedTuple):
    """A page of a dump with the text of its last revision."""

    title: str
    namespace: int
    is_redirect: bool
    text: str


def find_dumps(folder: Path, dataset: str, *, needed: bool = True) -> list[Path]:
    """The dump in `folder`: <dataset>.xml(.bz2), else files named as published, else the only .xml or .xml.bz2 file.

    Raises:
      UserError: there is none although it is `needed`, or several files may be the dump.
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


class _PageBuilder:
    """Collects pages, and where each ends, from the parser's events."""

    def __init__(self, path: Path, parser: expat.XMLParserType):
        self._path, self._parser = path, parser
        parser.StartElementHandler, parser.EndElementHandler = self.start, self.end
        parser.CharacterDataHandler = self.data
        self.found: list[tuple[Page, int]] = []
        self._namespaces: dict[str, int] = {}
        self._key = "0"
        # The contents of the open page's elements by name; None outside of pages.
        self._page: dict[str, str] | None = None
        # The character data of the open element; None if it is not needed.
        self._data: list[str] | None = None
        self._num_characters = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(":")[2]
        if name == "page":
            self._page = {}
        elif name == "namespace":
            self._key = attributes.get("key", "0")
        elif name == "redirect" and self._page is not None:
            self._page["redirect"] = ""
        if name in ("namespace", "title", "ns", "text"):
            self._data, self._num_characters = [], 0

    def data(self, text: str) -> None:
        if self._data is None:
            return
        self._data.append(text)
        self._num_characters += len(text)
        # A character has four bytes at most.
        if 4 * self._num_characters > text_files.LARGEST_DOCUMENT_BYTES and (
            text_files.num_utf8_bytes("".join(self._data)) > text_files.LARGEST_DOCUMENT_BYTES
        ):
            raise text_files.document_too_large(f"{self._path}, page {(self._page or {}).get('title', '')!r}")

    def end(self, tag: str) -> None:
        name = tag.rpartition(":")[2]
        content, self._data = "".join(self._data or ()), None
        if name == "namespace" and content:
            self._namespaces[content] = int(self._key)
        elif self._page is not None and name in ("title", "ns", "text"):
            self._page[name] = content
        elif self._page is not None and name == "page":
            end = self._parser.CurrentByteIndex + len(f"</{tag}>".encode())
            self.found.append((self._finished(**self._page), end))
            self._page = None

    def _finished(self, title: str = "", ns: str | None = None, text: str = "", redirect: str | None = None) -> Page:
        if ns is None:
            # In dumps from before 2011 only the title tells the namespace: "Talk:Paris".
            namespace = self._namespaces.get(title.partition(":")[0], 0) if ":" in title else 0
        else:
            namespace = int(ns or 0)
        return Page(title, namespace, redirect is not None or bool(_REDIRECT.match(text)), text)


class _PageReader:
    """Reads the pages of an open dump, from the start or from a place on that `place` told of the same file."""

    def __init__(self, file: XmlFile, place: Mapping[str, Any]):
        self._file = file
        self.num_pages = place.get("num_pages", 0)
        self._end = place.get("in_xml", 0)
        self._block = Place(*place["block"]) if "block" in place else None

    def place(self) -> dict[str, Any]:
        """Where the page after the last one begins; empty where reading cannot begin there."""
        block = (self._file.place_of(self._end) or self._block) if self.num_pages else None
        return {"num_pages": self.num_pages, "in_xml": self._end, "block": block} if block else {}

    def _blocks(self) -> Iterator[tuple[bytes, int]]:
        """What the parser gets, and by how many bytes the places that it tells differ from those in the XML."""
        if self._block is None:
            yield from ((block, 0) for block in self._file.blocks())
            return
        head = _head(self._file.path)
        yield head, 0
        passed_over, moved = self._end - self._block.in_xml, self._end - len(head)
        for block in self._file.blocks_from(self._block):
            yield block[passed_over:], moved
            passed_over = max(0, passed_over - len(block))

    def __iter__(self) -> Iterator[Page]:
        # XmlFile gives UTF-8, whatever the file declares.
        parser = expat.ParserCreate("utf-8")
        builder = _PageBuilder(self._file.path, parser)
        parser.buffer_text, parser.buffer_size = True, xml_files.BLOCK_BYTES
        moved = 0
        try:
            for block, moved in self._blocks():
                parser.Parse(block, False)
                yield from self._taken(builder, moved)
            parser.Parse(b"", True)
        except UserError:
            raise
        except (expat.ExpatError, ValueError) as error:
            # ValueError: a namespace that is not a number. The pages before the damage are complete.
            yield from self._taken(builder, moved)
            # Without the line, which would not be the file's where reading began inside.
            reason = expat.ErrorString(error.code) if isinstance(error, expat.ExpatError) else error
            self._file.note_damage(f"XML: {reason}")

    def _taken(self, builder: _PageBuilder, moved: int) -> Iterator[Page]:
        found, builder.found = builder.found, []
        for page, end in found:
            self.num_pages += 1
            self._end = end + moved
            yield page


def _head(path: Path) -> bytes:
    """A dump's XML before its first page."""
    head = b""
    with XmlFile(path) as file:
        for block in file.blocks():
            head += block
            if first := _PAGE_START.search(head):
                return head[: first.start()]
    raise AssertionError(f"{path} has no page any more")


def read_batches(
    paths: Sequence[Path], damages: list[str], place: Mapping[str, Any], *, num_threads: int = 1
) -> Iterator[Batch]:
    """Articles in batches of about equal size, each as its title, a line end and its text.

    Dropped pages (other namespaces, redirects) are counted and reported. If a file ends early or is
    damaged, the articles before that are kept, and a sentence about it is appended to `damages`.

    Raises:
      UserError: a file holds no page, or is not written in the encoding that it declares.
    """
    damages += place.get("damages", ())
    first = place.get("file", 0)
    for number in range(first, len(paths)):
        with XmlFile(paths[number], num_threads) as file:
            pages = _PageReader(file, place if number == first else {})

            def begins_at(number: int = number, pages: _PageReader = pages) -> dict[str, Any]:
                inside = pages.place()
                return {"file": number, "damages": list(damages), **inside} if inside or not pages.num_pages else {}

            articles = _articles(file, pages, damages)
            yield from formatting.in_batches(articles, paths[number].stat().st_size, file.position, begins_at=begins_at)


def _articles(file: XmlFile, pages: _PageReader, damages: list[str]) -> Iterator[str | Dropped]:
    for page in pages:
        if page.namespace != 0:
            yield Dropped("other_namespaces", page.title)
        elif page.is_redirect:
            yield Dropped("redirects", page.title)
        else:
            yield f"{page.title}\n{page.text}"
    if not pages.num_pages:
        raise UserError(
            f"{file.path}: no <page> in it{file.damage and ', ' + file.damage}: not a dump of "
            "Wikipedia's articles, or too little of one; fetch it again"
        )
    if file.damage:
        damages.append(
            f"{file.path.name}: {file.damage}: the {pages.num_pages:,} pages up to there were kept; "
            "fetch the file again, compare its checksum and format it anew to have the rest"
        )


def _clean(batch: Batch, paragraphs_of: Callable[[str, Removed], Iterable[str]], keep_report: bool) -> Cleaned:
    titles, lines, report = [], [], list(batch.report if keep_report else ())
    num_removed: Counter[str] = Counter()
    for document in batch.documents:
        title, _, text = document.partition("\n")
        removed: Removed = []
        lines.append(as_line(paragraphs_of(text, removed)))
        titles.append(title)
        num_removed.update(reason for reason, _ in removed)
        if keep_report:
            report += [report_line(reason, title, piece) for reason, piece in removed]
    return Cleaned(lines, batch.num_dropped, batch.input_bytes, titles=titles, num_removed=num_removed, report=report)


def clean_batch(batch: Batch, *, keep_report: bool = False) -> Cleaned:
    return _clean(batch, paragraphs_of, keep_report)


def find_extracted(folder: Path) -> list[Path]:
    """The files that wikiextractor has written below `folder`.

    Raises:
      UserError: there are none.
    """
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

    Raises:
      UserError: a file is something else, or ends inside an article.
    """
    return formatting.read_files(paths, place, _read_extracted_file)


def _read_extracted_file(path: Path) -> Iterator[Batch]:
    with text_files.open_text(path) as file:
        articles = _extracted_articles(path, text_files.read_lines(path, file))
        yield from formatting.in_batches(articles, path.stat().st_size)


def _extracted_articles(path: Path, lines: Iterable[str]) -> Iterator[str]:
    article: list[str] | None = None
    for number, line in enumerate(lines, 1):
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


def clean_extracted(batch: Batch, *, keep_report: bool = False) -> Cleaned:
    return _clean(batch, _extracted_paragraphs, keep_report)
