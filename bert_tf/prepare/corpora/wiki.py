"""Wikipedia's XML dumps to one article per line, streaming."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple
from xml.parsers import expat

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.prepare.corpora import formatting
from bert_tf.prepare.corpora.formatting import BadRecord, Batch, Cleaned, Document, Dropped, as_line, report_line
from bert_tf.prepare.corpora.wiki_links import KNOWN_NAMESPACES, Namespaces, namespace_key
from bert_tf.prepare.corpora.wikitext import Removed, paragraphs_of
from bert_tf.prepare.corpora.xml_files import BLOCK_BYTES, CutState, Cutter, Piece, XmlFile, unpack
from bert_tf.prepare.fetching.sources import wikipedia_of

# A dump's name has the wiki, date and kind; of one in several files each has a number.
_PUBLISHED = re.compile(r"(?P<dump>.*-pages-articles.*?)(?P<part>[0-9]*)\.xml(-p[0-9]+p[0-9]+)?(\.bz2)?")
_TITLE = re.compile(rb"<title>([^<]*)<")
# MediaWiki's numbers of the namespaces of media, files and categories.
_HIDDEN_NUMBERS, _TEMPLATES_NUMBER = ("-2", "6", "14"), "10"
_MOST_HEAD_BYTES = 1 << 20
# Half a second of a worker's time. The page or two cut at a piece's ends are left to the process that joins the pieces.
BLOCKS_OF_A_PIECE = 2
Paragraphs = Callable[[str, Removed], Iterable[str]]
_REDIRECT = re.compile(r"\s*#\s*(REDIRECT|重定向|重新導向)", re.IGNORECASE)


def find_dumps(folder: Path, dataset: str, *, needed: bool = True) -> list[Path]:
    """The dump in `folder`: <dataset>.xml(.bz2), else files named as published, else the only .xml or .xml.bz2 file.

    Raises: UserError where there is none although it is `needed`, several dumps, or what is no file.
    """
    wikipedia = wikipedia_of(dataset)
    assert wikipedia
    wiki = wikipedia.wiki
    named = [folder / name for name in (f"{dataset}.xml", f"{dataset}.xml.bz2") if os.path.lexists(folder / name)][:1]
    # The files of each published dump: whole or in parts, packed or not.
    dumps: dict[tuple[str, bool, bool], list[Path]] = {}
    for path in sorted(folder.glob(f"{wiki}-*")):
        if match := _PUBLISHED.fullmatch(path.name):
            dumps.setdefault((match["dump"], bool(match["part"]), path.suffix == ".bz2"), []).append(path)
    others = sorted(path for path in folder.glob("[!.]*") if path.name.endswith((".xml", ".xml.bz2")))
    choices = [named] if named else list(dumps.values()) or [[path] for path in others]
    if len(choices) > 1:
        raise UserError(
            f"{folder}: which of {', '.join(paths[0].name for paths in choices)} is the dump? Rename it to "
            f"{dataset}.xml or {dataset}.xml.bz2, or move the others away"
        )
    if not choices and needed:
        raise UserError(
            f"{folder} holds no Wikipedia dump: "
            f"python3 data/bertPrep.py --action download --dataset {dataset} fetches the newest "
            f"one; or put {dataset}.xml.bz2 (or .xml, or the published {wiki}-<date>-pages-articles.xml.bz2, in one "
            f"or several files) there, from dumps.wikimedia.org/{wiki}"
        )
    found = [path for paths in choices for path in paths]
    for path in found:
        check_file(path, "repair or delete it")
    if found and not named and not dumps:
        print(f"taking {found[0]} as the dump", flush=True)
    return found


def read_namespaces(paths: Iterable[Path]) -> Namespaces:
    """The names of namespaces in English and in the language of the dump, whose <siteinfo> lists them.

    Raises: UserError where a file is not written in the encoding that it declares.
    """
    names: dict[str, set[str]] = {}
    for path in paths:
        found = _namespaces_of(_head(path))
        if not found:
            print(f"note: {path} lists no namespaces: those of its pictures and categories are taken to be English")
        for number, name in found:
            names.setdefault(number, set()).add(namespace_key(name))
    hidden = KNOWN_NAMESPACES.hidden.union(*(names.get(number, ()) for number in _HIDDEN_NUMBERS))
    return Namespaces(hidden, KNOWN_NAMESPACES.templates.union(names.get(_TEMPLATES_NUMBER, ())))


def _head(path: Path) -> bytes:
    """What stands before the first page, as UTF-8."""
    head = b""
    with XmlFile(path) as file:
        for block in file.blocks():
            head += block
            if b"<page>" in head or len(head) > _MOST_HEAD_BYTES:
                break
    return head.partition(b"<page>")[0]


def _namespaces_of(head: bytes) -> list[tuple[str, str]]:
    """(number, name) of each namespace in a dump's head, up to any damage."""
    found: list[tuple[str, str]] = []
    number = ""

    def start(_: str, attributes: Mapping[str, str]) -> None:
        nonlocal number
        number = attributes.get("key", "")

    def text(name: str) -> None:
        if number and name.strip():
            found.append((number, name))

    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    with contextlib.suppress(expat.ExpatError):
        parser.Parse(head, False)
    return found


class CleanedPiece(NamedTuple):
    """A worker's result for a piece: its text `before` the first page that begins in it, the complete pages, cleaned,
    and the cutter's state `behind` them; if no page begins in the piece, everything is `before`.

    `num_bytes` is the size of its text, `file_end` the byte of the file at which it ends.
    """

    before: bytes
    pages: Sequence[Cleaned]
    behind: CutState | None
    num_bytes: int
    file_end: int
    fault: str
    is_last: bool


class _OpenDump:
    """A dump whose pieces come back from the workers: joins pages that were cut between pieces."""

    def __init__(self, file: XmlFile, begin: Mapping[str, Any], clean_page: Callable[[bytes], Cleaned]):
        self._file, self._clean_page, self._cutter = file, clean_page, _cutter(file.path)
        self._start = begin.get("next")
        self._num_pages, file.num_file_bytes = begin["num_documents"], begin["bytes"]
        if self._start is not None:
            file.num_xml_bytes = begin["num_xml_bytes"]
            self._cutter.state = CutState.from_json(begin["cut_state"])

    def pieces(self) -> Iterator[Piece]:
        """The pieces for the workers, up to the first damage that a worker has found."""
        for piece in self._file.pieces(BLOCKS_OF_A_PIECE, self._start):
            yield piece
            if self._file.damage:
                return

    def add(self, found: CleanedPiece) -> tuple[list[Cleaned], int]:
        """The next pages, first the one that began in the previous piece, and the number of new bytes of the file."""
        num_new_bytes = max(found.file_end - self._file.num_file_bytes, 0)
        self._file.num_xml_bytes += found.num_bytes
        self._file.num_file_bytes += num_new_bytes
        # Completed by the tag that follows there.
        before = found.before + b"<page>" if found.behind is not None else found.before
        pages = [*(self._clean_page(element.xml) for element in self._cutter.cut(before)), *found.pages]
        if found.behind is not None:
            self._cutter.state = found.behind
        self._num_pages += len(pages)
        return pages, num_new_bytes

    def place(self) -> dict[str, Any]:
        """What a later run needs to know, apart from where the next piece begins."""
        return {
            "num_documents": self._num_pages,
            "bytes": self._file.num_file_bytes,
            "num_xml_bytes": self._file.num_xml_bytes,
            "cut_state": self._cutter.state.to_json(),
        }

    def close(self, fault: str, damages: list[str]) -> int:
        """Returns how many bytes of the file have not been read."""
        if fault:
            self._file.note_damage(fault)
        elif not self._cutter.state.is_closed:
            self._file.note_damage("without its closing tag")
        self._file.check_read(self._num_pages, "page", damages)
        return self._file.path.stat().st_size - self._file.num_file_bytes


class Dumps:
    """The files of a dump: how they are read, cleaned by workers and joined again, in the form of `formatting.Corpus`.

    If a file ends early or is damaged, the pages before that are kept, and `damages` holds a sentence about it.
    """

    def __init__(self, paths: Sequence[Path], clean_page: Callable[[bytes], Cleaned]):
        self.damages: list[str] = []
        self._paths = paths
        self._clean_page = clean_page
        # The files being read, by number.
        self._open: dict[int, _OpenDump] = {}

    def batches(self, place: Mapping[str, Any]) -> Iterator[Batch]:
        """The pieces of all files, each a batch by itself.

        Raises: UserError where a file is not written in the encoding that it declares.
        """
        self.damages += place.get("damages", ())
        for path, begin in formatting.files_from(self._paths, place):
            with XmlFile(path) as file:
                self._open[begin["file"]] = dump = _OpenDump(file, begin, self._clean_page)
                for piece in dump.pieces():
                    behind = {"file": begin["file"], "next": piece.next()}
                    yield Batch([piece], path, 0, behind, BLOCKS_OF_A_PIECE * BLOCK_BYTES)

    def join(self, cleaned: Iterable[tuple[Sequence[CleanedPiece], Batch]]) -> Iterator[tuple[list[Cleaned], Batch]]:
        """Raises: UserError where a file holds no page, or one that is too large."""
        for (found,), batch in cleaned:
            number = batch.behind["file"]
            if number not in self._open:
                continue  # after the damage in its file
            dump = self._open[number]
            pages, input_bytes = dump.add(found)
            # Empty if reading cannot begin inside the file: a later run then starts with the beginning of the file.
            behind = {**batch.behind, **dump.place()} if batch.behind["next"] is not None else {}
            if found.fault or found.is_last:
                input_bytes += dump.close(found.fault, self.damages)
                del self._open[number]
                behind = {"file": number + 1}
            if behind:
                behind["damages"] = list(self.damages)
            yield pages, batch._replace(input_bytes=input_bytes, behind=behind)


def _cutter(path: Path) -> Cutter:
    return Cutter(path, ("page",), "mediawiki")


def clean_piece(piece: Piece, *, clean_page: Callable[[bytes], Cleaned]) -> CleanedPiece:
    """Unpacks a piece and cleans the pages that lie in it."""
    text, cutter = unpack(piece), _cutter(piece.path)
    xml = b"".join(text.blocks)
    start = cutter.find_start(xml)
    elements = [] if start is None else cutter.cut(xml[start:])
    return CleanedPiece(
        before=xml[:start],
        pages=[clean_page(element.xml) for element in elements],
        behind=None if start is None else cutter.state,
        num_bytes=len(xml),
        file_end=text.end,
        fault=text.fault,
        is_last=piece.is_last,
    )


def clean_text(title: str, text: str, paragraphs_of: Paragraphs, keep_report: bool) -> Document:
    """An article, of whose text `paragraphs_of` makes paragraphs."""
    removed: Removed = []
    line = as_line(paragraphs_of(text, removed))
    report = [report_line(reason, title, piece) for reason, piece in removed] if keep_report else []
    return Document(line, title, Counter(reason for reason, _ in removed), report)


def _texts_of(xml: bytes) -> dict[str, str]:
    """The text of each element without others in it, by name; of several with the same name the last one's.

    Without what stands in <content>: there a revision has its other slots, such as data about a picture, while the
    main slot's elements are the revision's own.
    """
    texts: dict[str, str] = {}
    pieces: list[str] = []
    is_in_slot = False

    def start(name: str, _: object) -> None:
        nonlocal is_in_slot
        is_in_slot = is_in_slot or name == "content"
        pieces.clear()

    def end(name: str) -> None:
        nonlocal is_in_slot
        if not is_in_slot:
            texts[name] = "".join(pieces)
        is_in_slot = is_in_slot and name != "content"
        pieces.clear()

    # Twice as fast as ElementTree, which processes every line separately.
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text, parser.buffer_size = True, len(xml)
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = pieces.append
    parser.Parse(xml, True)
    return texts


def clean(
    xml: bytes, *, keep_report: bool = False, namespaces: Namespaces = KNOWN_NAMESPACES
) -> Document | Dropped | BadRecord:
    """A page, with the text of its last revision."""
    try:
        page = _texts_of(xml)
        if not re.fullmatch("-?[0-9]+", page.get("ns", "")):
            raise ValueError("<ns>, its namespace, is missing or no number")
    except (expat.ExpatError, ValueError) as error:
        named = _TITLE.search(xml)
        which = f"page {named[1].decode('utf-8', 'replace')!r}" if named else "a page without a title"
        return BadRecord(f"{which}: XML: {error}: the dump was changed or damaged, or is of before 2011; fetch another")
    title, text, namespace = page.get("title", ""), page.get("text", ""), int(page["ns"])
    if namespace != 0:
        return Dropped("other_namespaces", title)
    if "redirect" in page or _REDIRECT.match(text):
        return Dropped("redirects", title)
    if page.get("model", "wikitext") != "wikitext":
        return Dropped("other_models", title)
    return clean_text(title, text, functools.partial(paragraphs_of, namespaces=namespaces), keep_report)
