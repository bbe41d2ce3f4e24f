"""Wikipedia's XML dumps to one article a line, streaming."""
from __future__ import annotations

import bz2
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import IO, Dict, Iterable, Iterator, List, NamedTuple, Optional

from bert_tf.errors import UserError
from data import formatting
from data.formatting import Batch, Cleaned, as_line
from data.wikitext import paragraphs_of

_BLOCK_BYTES = 1 << 18
_REDIRECT = re.compile(r"\s*#\s*REDIRECT", re.IGNORECASE)


class Page(NamedTuple):
    """A page of a dump; `text` is that of its last revision."""

    title: str
    namespace: int
    is_redirect: bool
    text: str


def find_dumps(folder: Path) -> List[Path]:
    """The dump below `folder`: wikicorpus_en.xml(.bz2), else files named as they are published.

    Raises:
      UserError: there is none; says where it goes.
    """
    for name in ("wikicorpus_en.xml", "wikicorpus_en.xml.bz2"):
        if (folder / name).is_file():
            return [folder / name]
    found = [path for path in sorted(folder.glob("enwiki-*-pages-articles*.xml*"))
             if re.search(r"\.xml(-p\d+p\d+)?(\.bz2)?$", path.name)]
    if not found:
        raise UserError(
            f"{folder} holds no Wikipedia dump: put wikicorpus_en.xml.bz2 (or .xml, or a dump's own "
            "enwiki-<date>-pages-articles.xml.bz2, in one file or many) there; dumps are published "
            "at dumps.wikimedia.org/enwiki"
        )
    return found


class _Dump:
    """One dump file as decompressed blocks, knowing how far it has been read."""

    def __init__(self, path: Path):
        self.path = path
        self._raw: IO[bytes] = open(path, "rb")  # noqa: SIM115
        self._stream = bz2.BZ2File(self._raw) if path.suffix == ".bz2" else self._raw
        self.num_text_bytes = 0

    @property
    def position(self) -> int:
        """Bytes read of the file itself."""
        return self._raw.tell()

    def blocks(self) -> Iterator[bytes]:
        try:
            while block := self._stream.read(_BLOCK_BYTES):
                self.num_text_bytes += len(block)
                yield block
        except (EOFError, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            raise self.error(str(error)) from None

    def error(self, reason: str) -> UserError:
        return UserError(
            f"{self.path}: cut off or damaged at byte {self.position:,} of "
            f"{self.path.stat().st_size:,} ({reason}; {self.num_text_bytes:,} bytes decompressed): "
            "no article of it was accepted; fetch the file again and compare its checksum"
        )

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
    parser = ElementTree.XMLPullParser(("start", "end"))
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
        raise dump.error(f"XML: {error}") from None


def read_batches(paths: Iterable[Path]) -> Iterator[Batch]:
    """Articles in batches of about equal size; other namespaces and redirects are counted.

    Raises:
      UserError: a file ends early, is damaged (names the byte) or holds no page.
    """
    for path in paths:
        dump = _Dump(path)
        texts: List[str] = []
        dropped: Dict[str, int] = {}
        num_characters = position = 0
        num_pages = 0
        try:
            for page in _read_pages(dump):
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
                raise UserError(f"{path} holds no <page>: not a dump of Wikipedia's articles")
            yield Batch(texts, dropped, dump.position - position)
        finally:
            dump.close()


def _reason_to_drop(page: Page) -> str:
    if page.namespace != 0:
        return "other_namespaces"
    return "redirects" if page.is_redirect else ""


def clean_batch(batch: Batch) -> Cleaned:
    lines = [as_line(paragraphs_of(text)) for text in batch.documents]
    return Cleaned(lines, batch.num_dropped, batch.input_bytes)
