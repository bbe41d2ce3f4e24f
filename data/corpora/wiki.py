"""Wikipedia's XML dumps to one article a line, streaming."""

from __future__ import annotations

import bz2
import html
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.parsers import expat

from bert_tf.base.errors import UserError
from data.corpora import formatting, text_files
from data.corpora.formatting import Batch, Cleaned, as_line
from data.corpora.wikitext import has_stop, paragraphs_of

# By dataset: how the wiki is called in the names of its dumps.
WIKIS = {"wikicorpus_en": "enwiki", "wikicorpus_zh": "zhwiki"}
_BLOCK_BYTES = 1 << 18
_REDIRECT = re.compile(r"\s*#\s*(REDIRECT|重定向|重新導向)", re.IGNORECASE)


class Page(NamedTuple):
    """A page of a dump; `text` is that of its last revision."""

    title: str
    namespace: int
    is_redirect: bool
    text: str


def placed_dumps(folder: Path, dataset: str) -> list[Path]:
    """The dump in `folder`: <dataset>.xml(.bz2), else files named as they are published, or none."""
    for name in (f"{dataset}.xml", f"{dataset}.xml.bz2"):
        if (folder / name).is_file():
            return [folder / name]
    return [
        path
        for path in sorted(folder.glob(f"{WIKIS[dataset]}-*-pages-articles*.xml*"))
        if re.search(r"\.xml(-p\d+p\d+)?(\.bz2)?$", path.name)
    ]


def find_dumps(folder: Path, dataset: str) -> list[Path]:
    """As `placed_dumps`.

    Raises:
      UserError: there is none; says where it goes.
    """
    found = placed_dumps(folder, dataset)
    if not found:
        wiki = WIKIS[dataset]
        raise UserError(
            f"{folder} holds no Wikipedia dump: bertPrep.py --action=download --dataset={dataset} "
            f"fetches the newest one; or put {dataset}.xml.bz2 (or .xml, or a dump's own {wiki}-"
            f"<date>-pages-articles.xml.bz2, in one file or many) there, published at "
            f"dumps.wikimedia.org/{wiki}"
        )
    return found


class _DamagedError(Exception):
    """A dump cannot be read any further; says where and why."""


class _Dump:
    """One dump file as decompressed blocks, knowing how far it has been read."""

    def __init__(self, path: Path):
        self.path = path
        self._raw: IO[bytes] = open(path, "rb")  # noqa: SIM115
        self._stream: Any = bz2.BZ2File(self._raw) if path.suffix == ".bz2" else self._raw
        self.num_text_bytes = 0

    @property
    def position(self) -> int:
        """Bytes read of the file itself."""
        return self._raw.tell()

    def blocks(self) -> Iterator[bytes]:
        try:
            # Not read(), which forgets what it has where it meets the damage.
            while block := self._stream.read1(_BLOCK_BYTES):
                self.num_text_bytes += len(block)
                yield block
        except (EOFError, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            raise self.damage(str(error)) from None

    def damage(self, reason: str) -> _DamagedError:
        return _DamagedError(
            f"cut off or damaged at byte {self.position:,} of "
            f"{self.path.stat().st_size:,} ({reason}; {self.num_text_bytes:,} bytes of XML)"
        )

    def close(self) -> None:
        self._raw.close()


class _PageBuilder:
    """Collects pages from the parser's events."""

    def __init__(self, path: Path):
        self._path = path
        self.found: list[Page] = []
        self._namespaces: dict[str, int] = {}
        self._key = "0"
        self._is_inside = False
        self._begin_page()
        # The data of the element that is open, if it is wanted.
        self._data: list[str] | None = None
        self._num_bytes = 0

    def _begin_page(self) -> None:
        self._title, self._text = "", ""
        self._namespace: int | None = None
        self._is_redirect = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(":")[2]
        if name == "page":
            self._is_inside = True
            self._begin_page()
        elif name == "redirect":
            self._is_redirect = True
        elif name == "namespace":
            self._key = attributes.get("key", "0")
        if name in ("namespace", "title", "ns", "text"):
            self._data, self._num_bytes = [], 0

    def data(self, text: str) -> None:
        if self._data is None:
            return
        self._data.append(text)
        self._num_bytes += text_files.num_utf8_bytes(text)
        if self._num_bytes > text_files.LARGEST_DOCUMENT_BYTES:
            raise text_files.document_too_large(f"{self._path}, page {self._title!r}")

    def end(self, tag: str) -> None:
        name = tag.rpartition(":")[2]
        content, self._data = "".join(self._data or ()), None
        if name == "namespace" and content:
            self._namespaces[content] = int(self._key)
        elif name == "title":
            self._title = content
        elif name == "ns":
            self._namespace = int(content or 0)
        elif name == "text":
            self._text = content
        elif name == "page" and self._is_inside:
            self.found.append(self._page())
            self._is_inside = False
            self._begin_page()

    def _page(self) -> Page:
        namespace, title = self._namespace, self._title
        if namespace is None:
            # Dumps before 2011 tell the namespace by the title alone.
            namespace = self._namespaces.get(title.partition(":")[0], 0) if ":" in title else 0
        return Page(title, namespace, self._is_redirect or bool(_REDIRECT.match(self._text)), self._text)


def _read_pages(dump: _Dump) -> Iterator[Page]:
    parser, builder = expat.ParserCreate(), _PageBuilder(dump.path)
    parser.buffer_text, parser.buffer_size = True, _BLOCK_BYTES
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    try:
        for block in dump.blocks():
            parser.Parse(block, False)
            yield from builder.found
            builder.found.clear()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        # What stands before the damage in its block.
        yield from builder.found
        raise dump.damage(f"XML: {error}") from None


def read_batches(paths: Iterable[Path], damages: list[str]) -> Iterator[Batch]:
    """Articles in batches of about equal size; other namespaces and redirects are counted.

    Of a file that ends early or is damaged the articles up to there are kept, and a sentence that
    says so is appended to `damages`.

    Raises:
      UserError: a file holds no page.
    """
    for path in paths:
        yield from _read_file(path, damages)


def _read_file(path: Path, damages: list[str]) -> Iterator[Batch]:
    dump = _Dump(path)
    texts: list[str] = []
    dropped: dict[str, int] = {}
    num_pages = num_characters = position = 0
    damage = ""
    try:
        pages = _read_pages(dump)
        while True:
            try:
                page = next(pages, None)
            except _DamagedError as error:
                damage = str(error)
                break
            if page is None:
                break
            num_pages += 1
            reason = _reason_to_drop(page)
            if reason:
                dropped[reason] = dropped.get(reason, 0) + 1
            else:
                texts.append(page.text)
                num_characters += len(page.text)
            if num_characters >= formatting.BATCH_CHARACTERS:
                yield Batch(texts, dropped, dump.position - position)
                position, num_characters = dump.position, 0
                texts, dropped = [], {}
        if not num_pages:
            raise UserError(
                f"{path}: no <page> in it{damage and ', ' + damage}: not a dump of "
                "Wikipedia's articles, or too little of one; fetch it again"
            )
        if damage:
            damages.append(
                f"{path.name}: {damage}: the {num_pages:,} pages up to there were kept; "
                "fetch the file again, compare its checksum and format it anew to have "
                "the rest"
            )
        yield Batch(texts, dropped, path.stat().st_size - position)
    finally:
        dump.close()


def _reason_to_drop(page: Page) -> str:
    if page.namespace != 0:
        return "other_namespaces"
    return "redirects" if page.is_redirect else ""


def clean_batch(batch: Batch) -> Cleaned:
    lines = [as_line(paragraphs_of(text)) for text in batch.documents]
    return Cleaned(lines, batch.num_dropped, batch.input_bytes)


def find_extracted(folder: Path) -> list[Path]:
    """What wikiextractor has written below `folder`.

    Raises:
      UserError: nothing is there; says how to do without.
    """
    found = sorted(path for path in folder.rglob("wiki_*") if not path.suffix and path.is_file())
    if not found:
        raise UserError(
            f"skip_wikiextractor: {folder} holds no file like AA/wiki_00, which "
            "wikiextractor writes; without --skip_wikiextractor the dump itself is "
            "read, and wikiextractor is not needed"
        )
    return found


def read_extracted(paths: Iterable[Path]) -> Iterator[Batch]:
    """Batches of articles, each the lines between wikiextractor's ``<doc ...>`` and ``</doc>``.

    Raises:
      UserError: a file is something else, or ends inside an article.
    """
    for path in paths:
        with text_files.open_text(path) as file:
            articles = _extracted_articles(path, text_files.read_lines(path, file))
            yield from formatting.in_batches(articles, path.stat().st_size)


def _extracted_articles(path: Path, lines: Iterator[str]) -> Iterator[str]:
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        if line.startswith("<doc "):
            # What follows repeats the title.
            article = itertools.islice(_extracted_article(path, numbered), 1, None)
            yield "\n".join(text_files.document_lines(path, article))
        elif line:
            raise UserError(
                f"{path}, line {number}: no <doc ...>, with which wikiextractor "
                "begins an article (its --json files: --dataset=custom "
                "--input_format=jsonl)"
            )


def _extracted_article(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line == "</doc>":
            return
        yield line
    raise UserError(f"{path}: ends inside an article, without </doc>: run wikiextractor again")


def clean_extracted(batch: Batch) -> Cleaned:
    lines = [as_line(filter(has_stop, html.unescape(text).split("\n"))) for text in batch.documents]
    return Cleaned(lines, batch.num_dropped, batch.input_bytes)
