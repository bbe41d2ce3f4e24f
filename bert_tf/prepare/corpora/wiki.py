"""Wikipedia to one article per line, as a stream: from its XML dumps, or from wikiextractor's output."""

from __future__ import annotations

import bz2
import contextlib
import html
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.prepare.corpora import text_files, xml_files
from bert_tf.prepare.corpora.documents import (
    BadRecord,
    Batch,
    Cleaned,
    Damage,
    Document,
    Dropped,
    Position,
    as_line,
    batch_documents,
    json_text,
    remaining_files,
)
from bert_tf.prepare.corpora.tidying import tidy
from bert_tf.prepare.corpora.wiki_templates import KNOWN_NAMESPACES, Namespaces, namespace_key
from bert_tf.prepare.corpora.wikitext import Removed, is_prose, is_sentence, paragraphs_of, unescape, without_tags
from bert_tf.prepare.corpora.xml_files import Cutter, Stream, XmlFile

_DUMP = re.compile(r".*\.xml(-p[0-9]+p[0-9]+)?(\.bz2)?")
# The files of a dump that is published in parts are numbered.
_PART = re.compile(r"(-pages-articles[a-z-]*)[0-9]+\.xml(-p[0-9]+p[0-9]+)?")
_TITLE = re.compile(rb"<title>([^<]*)<")
_NAMESPACE = re.compile(r'<namespace\b[^<>]*\bkey="(-?[0-9]+)"[^<>]*>([^<>]+)</')
# MediaWiki's numbers of the namespaces of media, files and categories.
_HIDDEN_NUMBERS, _TEMPLATES_NUMBER = ("-2", "6", "14"), "10"
# The tags and the root, as arguments of `Cutter` and of `XmlFile.elements`.
_ELEMENTS = ("page",), "mediawiki"
# What wikiextractor before version 3 put before a heading and a list item: "Section::::", "BULLET::::- ".
_EXTRACTED_MARK = re.compile(r"(Section|BULLET)::::(?:- *|[0-9]+\. *)?")
# Roughly, in real dumps.
_TEXT_PER_PACKED_BYTE = 4
# Unpacked: a stream holds a hundred pages, for each of which MediaWiki allows 2 MiB.
_LARGEST_STREAM_BYTES = 8 * text_files.LARGEST_DOCUMENT_BYTES


def find_dumps(folder: Path, dataset: str) -> list[Path]:
    """The files of the dump in `folder`: <dataset>.xml(.bz2), else the only dump there, whole or in parts.

    Raises: UserError where there are several dumps, or one of the paths is no file.
    """
    preferred = [path for end in ("xml", "xml.bz2") if os.path.lexists(path := folder / f"{dataset}.{end}")][:1]
    dumps: dict[str, list[Path]] = {}
    for path in preferred or sorted(folder.glob("[!.]*")):
        if _DUMP.fullmatch(path.name):
            dumps.setdefault(_PART.sub(r"\1N.xml", path.name), []).append(path)
    if len(dumps) > 1:
        raise UserError(
            f"{folder}: which of {', '.join(paths[0].name for paths in dumps.values())} is the dump? Rename it to "
            f"{dataset}.xml or {dataset}.xml.bz2, or move the others away"
        )
    files = next(iter(dumps.values()), [])
    for path in files:
        check_file(path, "repair or delete it")
    return files


def read_namespaces(dump: Path) -> Namespaces:
    """The names of namespaces in English and in the language of the dump, whose <siteinfo> lists them.

    Raises: UserError where the file is not written in the encoding that it declares.
    """
    with XmlFile(dump) as file:
        head = next(file.blocks(), b"").partition(b"<page>")[0].decode("utf-8", "replace")
    listed = [(number, namespace_key(html.unescape(name))) for number, name in _NAMESPACE.findall(head)]
    if not listed:
        print(f"note: {dump} lists no namespaces: those of its pictures and categories are taken to be English")
    return Namespaces(
        KNOWN_NAMESPACES.hidden.union(name for number, name in listed if number in _HIDDEN_NUMBERS),
        KNOWN_NAMESPACES.templates.union(name for number, name in listed if number == _TEMPLATES_NUMBER),
    )


def read_batches(paths: Sequence[Path], position: Position) -> Iterator[Batch]:
    """Batches of pages as XML, of about equal size; of a multistream dump, each stream is a batch."""
    for path, start in remaining_files(paths, position):
        if xml_files.is_multistream(path):
            for stream in xml_files.streams(path, start["byte"]):
                end = stream.start + len(stream.packed)
                start = {**start, "byte": end, "bytes": end}
                yield Batch([stream], path, len(stream.packed), start, _TEXT_PER_PACKED_BYTE * len(stream.packed))
        # The whole file, or the last of its streams, which shows whether the file was cut off.
        with XmlFile(path, start["byte"]) as file:
            pages = (page if isinstance(page, Damage) else page.xml for page in file.elements(*_ELEMENTS))
            yield from batch_documents(pages, path, start, count_read_bytes=lambda: file.num_file_bytes)  # noqa: B023 - called at once


def clean_part(part: bytes | Stream, *, namespaces: Namespaces = KNOWN_NAMESPACES) -> Cleaned | list[Cleaned]:
    """Cleans a page, or all pages of a stream, which holds only whole ones.

    Raises: UserError where a stream unpacks to more than memory is to hold.
    """
    if isinstance(part, bytes):
        return clean(part, namespaces)
    decompressor, text = bz2.BZ2Decompressor(), b""
    with contextlib.suppress(OSError):  # of a damaged stream, which then is not at its end
        text = decompressor.decompress(part.packed, _LARGEST_STREAM_BYTES)
    if len(text) == _LARGEST_STREAM_BYTES:
        raise xml_files.stream_too_large(part.path, part.start, f"{_LARGEST_STREAM_BYTES:,} bytes unpacked")
    cutter = Cutter(part.path, *_ELEMENTS, is_inside=part.start > 0)
    pages = [*(element.xml for element in cutter.cut(text)), cutter.incomplete_element()]
    results: list[Cleaned] = [clean(page, namespaces) for page in pages if page.strip()]
    if decompressor.unused_data or not decompressor.eof:
        fault = f"the bzip2 stream at byte {part.start:,} is damaged: its pages are lost; fetch the dump again"
        results.append(BadRecord(fault))
    return results


def clean(xml: bytes, namespaces: Namespaces = KNOWN_NAMESPACES) -> Document | Dropped | BadRecord:
    """The text of a page's last revision, or why it is left out."""
    try:
        page = ElementTree.fromstring(xml)
        namespace = int(page.findtext("ns", ""))
    except (ElementTree.ParseError, ValueError) as error:
        title = _TITLE.search(xml)
        page_name = f"page {title[1].decode('utf-8', 'replace')!r}" if title else "a page without a title"
        fault = "damaged, or without the number of its namespace, <ns>, as in dumps of before 2011; fetch another dump"
        return BadRecord(f"{page_name}: XML: {error}: {fault}")
    # A revision's other slots, such as data about a picture, are in its <content>.
    text = page.findtext("revision[last()]/text", "")
    if namespace:
        return Dropped("other_namespaces")
    if page.find("redirect") is not None:
        return Dropped("redirects")
    if page.findtext("revision[last()]/model", "wikitext") != "wikitext":
        return Dropped("other_models")
    removed = Removed()
    return Document(as_line(paragraphs_of(text, removed, namespaces)), removed)


def read_extracted(path: Path) -> Iterator[str | BadRecord]:
    """The text of each article: the lines between wikiextractor's ``<doc ...>`` and ``</doc>`` or, in a file made
    with --json, the text of the object on each line.
    """
    numbered = enumerate(text_files.read_lines(path), 1)
    for number, line in numbered:
        article: list[str] = []
        last_line = ""
        if line.startswith("<doc "):
            for _, last_line in numbered:
                if last_line.startswith(("</doc>", "<doc ")):
                    break
                article.append(last_line)
        if last_line == "</doc>":
            # The first line inside <doc> is the title.
            yield "\n".join(text_files.document_lines(path, article)[1:])
        elif line.startswith("{"):
            yield json_text(number, line, "text", remedy="run wikiextractor again")
        elif line:
            raise UserError(
                f"{path}, line {number}: not what wikiextractor writes, <doc ...> to </doc> or JSON objects: run "
                "wikiextractor again"
            )


def clean_extracted(article: str) -> Document:
    # wikiextractor escapes its output, and leaves tags in it that it does not know or that were escaped twice.
    text = unescape(unescape(article))
    removed = Removed()
    plain = without_tags(text, removed)
    clean_line = str.strip if plain == text.replace("\n", "\n\n") else tidy
    lines = []
    for line in filter(None, map(clean_line, plain.split("\n"))):
        mark = _EXTRACTED_MARK.match(line)
        kind = {"Section": "headings", "BULLET": "list_items"}[mark[1]] if mark else "fragments"
        content = line[mark.end() :] if mark else line
        if kind != "headings" and (is_sentence if mark else is_prose)(content):
            lines.append(content)
        else:
            removed[kind] += 1
    return Document(as_line(lines), removed)
