"""Wikipedia's XML dumps to one article a line, streaming."""
from __future__ import annotations

import bz2
import html
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Iterator, List, NamedTuple, Optional

from bert_tf.errors import UserError
from data import formatting, text_files
from data.formatting import Batch, Cleaned, as_line
from data.wikitext import has_stop, paragraphs_of

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


def placed_dumps(folder: Path, dataset: str) -> List[Path]:
    """The dump in `folder`: <dataset>.xml(.bz2), else files named as they are published, or none."""
    for name in (f"{dataset}.xml", f"{dataset}.xml.bz2"):
        if (folder / name).is_file():
            return [folder / name]
    return [path for path in sorted(folder.glob(f"{WIKIS[dataset]}-*-pages-articles*.xml*"))
            if re.search(r"\.xml(-p\d+p\d+)?(\.bz2)?$", path.name)]


def find_dumps(folder: Path, dataset: str) -> List[Path]:
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

    def damage(self, reason: str) -> "_DamagedError":
        return _DamagedError(
            f"cut off or damaged at byte {self.position:,} of "
            f"{self.path.stat().st_size:,} ({reason}; {self.num_text_bytes:,} bytes of XML)")

    def close(self) -> None:
        self._raw.close()


def _local_name(tag: str) -> str:
    return tag.rpartition("}")[2]


class _PageBuilder:
    """Collects pages from the parser's events."""

    def __init__(self) -> None:
        self._root: Optional[ElementTree.Element] = None
        self._namespaces: Dict[str, int] = {}

    def take(self, event: str, element: ElementTree.Element) -> Optional[Page]:
        if self._root is None:
            self._root = element
        if event == "start":
            return None
        name = _local_name(element.tag)
        if name == "namespace" and element.text:
            self._namespaces[element.text] = int(element.get("key", "0"))
        if name != "page":
            return None
        page = self._page(element)
        # The root would otherwise keep every page of the dump.
        self._root.clear()
        return page

    def _page(self, element: ElementTree.Element) -> Page:
        title, text, namespace, is_redirect = "", "", None, False
        for part in element.iter():
            name = _local_name(part.tag)
            if name == "title":
                title = part.text or ""
            elif name == "ns":
                namespace = int(part.text or 0)
            elif name == "redirect":
                is_redirect = True
            elif name == "text":
                text = part.text or ""
        if namespace is None:
            # Dumps before 2011 tell the namespace by the title alone.
            namespace = self._namespaces.get(title.partition(":")[0], 0) if ":" in title else 0
        return Page(title, namespace, is_redirect or bool(_REDIRECT.match(text)), text)


def _read_pages(dump: _Dump) -> Iterator[Page]:
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    builder = _PageBuilder()
    try:
        for block in dump.blocks():
            parser.feed(block)
            for event, element in parser.read_events():
                page = builder.take(event, element)
                if page is not None:
                    yield page
        parser.close()
    except ElementTree.ParseError as error:
        raise dump.damage(f"XML: {error}") from None


def read_batches(paths: Iterable[Path], damages: List[str]) -> Iterator[Batch]:
    """Articles in batches of about equal size; other namespaces and redirects are counted.

    Of a file that ends early or is damaged the articles up to there are kept, and a sentence that
    says so is appended to `damages`.

    Raises:
      UserError: a file holds no page.
    """
    for path in paths:
        yield from _read_file(path, damages)


def _read_file(path: Path, damages: List[str]) -> Iterator[Batch]:
    dump = _Dump(path)
    texts: List[str] = []
    dropped: Dict[str, int] = {}
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
            raise UserError(f"{path}: no <page> in it{damage and ', ' + damage}: not a dump of "
                            "Wikipedia's articles, or too little of one; fetch it again")
        if damage:
            damages.append(f"{path.name}: {damage}: the {num_pages:,} pages up to there were kept; "
                           "fetch the file again, compare its checksum and format it anew to have "
                           "the rest")
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


def find_extracted(folder: Path) -> List[Path]:
    """What wikiextractor has written below `folder`.

    Raises:
      UserError: nothing is there; says how to do without.
    """
    found = sorted(path for path in folder.rglob("wiki_*") if not path.suffix and path.is_file())
    if not found:
        raise UserError(f"skip_wikiextractor: {folder} holds no file like AA/wiki_00, which "
                        "wikiextractor writes; without --skip_wikiextractor the dump itself is "
                        "read, and wikiextractor is not needed")
    return found


def read_extracted(paths: Iterable[Path]) -> Iterator[Batch]:
    """Batches of articles, each the lines between wikiextractor's ``<doc ...>`` and ``</doc>``.

    Raises:
      UserError: a file is something else, or ends inside an article.
    """
    for path in paths:
        articles: List[str] = []
        article: Optional[List[str]] = None
        position = num_bytes = 0
        with text_files.open_text(path) as file:
            for number, line in enumerate(text_files.read_lines(path, file), 1):
                num_bytes += len(line)
                if article is None and line.startswith("<doc "):
                    article = []
                elif article is not None and line == "</doc>":
                    # Its first line repeats the title.
                    articles.append("\n".join(article[1:]))
                    article = None
                elif article is not None:
                    article.append(line)
                elif line:
                    raise UserError(f"{path}, line {number}: no <doc ...>, with which wikiextractor "
                                    "begins an article (its --json files: --dataset=custom "
                                    "--input_format=jsonl)")
                if num_bytes - position >= formatting.BATCH_CHARACTERS:
                    yield Batch(articles, {}, num_bytes - position)
                    articles, position = [], num_bytes
        if article is not None:
            raise UserError(f"{path}: ends inside an article, without </doc>: run wikiextractor again")
        yield Batch(articles, {}, max(0, path.stat().st_size - position))


def clean_extracted(batch: Batch) -> Cleaned:
    lines = [as_line(filter(has_stop, html.unescape(text).split("\n"))) for text in batch.documents]
    return Cleaned(lines, batch.num_dropped, batch.input_bytes)
