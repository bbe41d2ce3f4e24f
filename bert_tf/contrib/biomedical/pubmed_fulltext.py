"""Full text from PubMed Central: packages (.tar.gz) of articles in JATS, and single files.

A package is read as a stream, an article at a time. Files are read from the newest to the oldest (those without a date
in their names first, then by date, then by name), and of an article with a number (PMC1234567) only the first
occurrence counts, so that the newest version does.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import tarfile
import types
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from bert_tf.contrib.biomedical import jats
from bert_tf.prepare.corpora.documents import (
    BadRecord,
    Batch,
    Cleaned,
    Corpus,
    Damage,
    Dropped,
    Position,
    batch_documents,
    remaining_files,
)
from bert_tf.prepare.corpora.text_files import (
    LARGEST_DOCUMENT_BYTES,
    download_remedy,
    find_text_files,
    open_bytes,
    require_files,
)
from bert_tf.prepare.corpora.xml_files import XmlFile
from bert_tf.settings.preparation import PreparationOptions

_PACKAGES, _ARTICLES = (".tar.gz", ".tgz"), (".xml", ".nxml")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
# Not PMC012xxxxxx, the name of a package.
_NUMBER = re.compile(r"\bPMC(\d{1,8})(?![a-zA-Z\d])")
_MOST_ARTICLES = 10**8
_MOST_BETWEEN_FILES = 32 << 20  # bytes of a package, of which names and the like take a few hundred
# oa_comm_xml.PMC012xxxxxx.baseline.2025-06-26.tar.gz; until 2021: non_comm_use.A-B.xml.tar.gz.
_GROUP = re.compile(r"\boa_(comm|noncomm|other)(?![a-zA-Z])|\b(non_)?comm_use\b")


@dataclasses.dataclass(frozen=True)
class Article:
    """A file with an article, or a list of them: `member`, its name in a package (else ""), and `group`, its licence
    group ("" if neither the package's nor the file's name tells it).
    """

    member: str
    group: str
    xml: bytes

    def __len__(self) -> int:
        return len(self.xml)


def find_files(folder: Path) -> list[Path]:
    """The packages and single files at any depth below `folder`, newest first. Raises: as `find_text_files`."""
    paths = find_text_files(folder, (*_PACKAGES, *_ARTICLES))
    return sorted(paths, key=lambda path: (_DATE.findall(path.name)[-1:] or ["9"], str(path)), reverse=True)


def find_license_group(name: str) -> str:
    """The licence group that a path names; "" if it names none."""
    match = _GROUP.search(name)
    return f"oa_{match[1] or ('noncomm' if match[2] else 'comm')}" if match else ""


def _articles(
    file: XmlFile, relative_path: str, is_seen: np.ndarray
) -> Iterator[Article | BadRecord | Dropped | Damage]:
    """The articles in a package or single file. Raises: UserError where a package holds no article."""
    if file.path.name.endswith(_ARTICLES):
        with open_bytes(file.path) as single:
            yield _article(relative_path, "", single, num_bytes=file.path.stat().st_size, is_seen=is_seen)
        return
    num_articles = num_members = num_read = 0
    content_end = 0  # behind the last byte so far that is not zero
    limit, blocks = _MOST_BETWEEN_FILES, file.blocks()

    def read(_: int) -> bytes:
        nonlocal num_read, content_end
        block = next(blocks, b"")
        if filled := block.rstrip(b"\0"):
            content_end = num_read + len(filled)
        num_read += len(block)
        if num_read > limit:  # a name, say, which `tarfile` would hold in memory
            raise tarfile.ReadError(f"more than {_MOST_BETWEEN_FILES:,} bytes between two files")
        return block

    readable = types.SimpleNamespace(read=read)
    try:
        with tarfile.open(fileobj=readable, mode="r|") as tar:
            for member in tar:
                tar.members.clear()  # type: ignore[attr-defined] # a list that would grow with each
                num_members += 1
                limit = num_read + member.size + _MOST_BETWEEN_FILES
                if member.isfile() and member.name.endswith(_ARTICLES):
                    content = tar.extractfile(member)
                    assert content
                    yield _article(relative_path, member.name, content, num_bytes=member.size, is_seen=is_seen)
                    num_articles += 1
            collections.deque(iter(functools.partial(read, 0), b""), maxlen=0)  # to where gzip verifies its checksum
            # A package ends with zeros. `tarfile` also ends, in silence, at what it cannot read as a member.
            if not content_end <= tar.offset < num_read:
                raise tarfile.ReadError("no end of the package follows")
    except tarfile.TarError as error:
        file.note_damage(str(error))
    # An empty package is whole: none of its articles was of the groups to be fetched.
    if num_members or file.damage:
        yield from file.damage_of_rest(num_articles, "article")


def _article(
    relative_path: str, member: str, file: IO[bytes], *, num_bytes: int, is_seen: np.ndarray
) -> Article | BadRecord | Dropped:
    numbers = [int(number) for number in _NUMBER.findall(member or relative_path)[-1:]]
    if is_seen[numbers].any():
        return Dropped("superseded")
    if num_bytes > LARGEST_DOCUMENT_BYTES:
        too_large = f"{num_bytes:,} bytes of XML, more than the {LARGEST_DOCUMENT_BYTES:,} that are held in memory"
        return BadRecord(f"{member or 'the article'}: {too_large}")
    xml = file.read()
    is_seen[numbers] = True  # only now: reading a file that is cut short raises
    return Article(member, find_license_group(f"{relative_path}/{member}"), xml)


def read_batches(paths: Sequence[Path], folder: Path, position: Position) -> Iterator[Batch]:
    """`Article`s in batches of about equal size.

    When reading resumes, earlier packages are read again, because their articles must count as seen.
    """
    is_seen = np.zeros(_MOST_ARTICLES, bool)  # memory is used only for numbers that occur
    starts = dict(remaining_files(paths, position))
    for path in paths:
        with XmlFile(path) as file:
            articles = _articles(file, path.relative_to(folder).as_posix(), is_seen)
            if start := starts.get(path):
                yield from batch_documents(articles, path, start, count_read_bytes=lambda: file.num_file_bytes)  # noqa: B023 - called at once
            else:
                collections.deque(articles, maxlen=0)


def clean(article: Article, *, groups: Collection[str], captions: bool) -> list[Cleaned]:
    """The article as a line, or all articles in its file."""
    name = article.member or "the article"
    return jats.clean(name, article.xml, group=article.group, groups=groups, captions=captions)


def open_corpus(options: PreparationOptions, working_dir: Path) -> Corpus:
    """The corpus, ready to be read. Raises: UserError where its files are missing."""
    folder = working_dir / "download" / "pubmed" / "fulltext"
    remedy = f"{download_remedy(options.dataset)}, or put articles of PubMed Central there, packed or single"
    paths = require_files(find_files(folder), folder, ".tar.gz, .xml or .nxml file", remedy=remedy)
    batches = functools.partial(read_batches, paths, folder)
    groups, captions = options.chosen_license_groups, options.captions
    clean_article = functools.partial(clean, groups=groups, captions=captions)
    return Corpus(paths, batches, clean_article, {"license_groups": list(groups), "captions": captions})
