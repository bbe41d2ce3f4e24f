"""PubMed's XML to one article per line: title and abstract, each citation once, in its latest version.

PubMed publishes a baseline every year, and a file of new, revised and deleted citations every day.
Files are read from the newest to the oldest, and only the first occurrence of a citation counts (a
deletion counts as one), so the set of citation numbers seen is all that must be remembered.
"""

from __future__ import annotations

import functools
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.contrib.biomedical.jats import FORMULA, ONLY_FORMULAS, cut_out
from bert_tf.prepare.corpora.documents import (
    BadRecord,
    Batch,
    Corpus,
    Damage,
    Document,
    Dropped,
    Position,
    as_line,
    batch_documents,
    remaining_files,
)
from bert_tf.prepare.corpora.text_files import download_remedy, find_text_files, require_files
from bert_tf.prepare.corpora.xml_files import Element, XmlFile
from bert_tf.settings.preparation import PreparationOptions

_FOLDERS = ("baseline", "daily_update")
_NAME = re.compile(r"pubmed(\d{2})n(\d+)\.xml(\.gz)?")
_PMID = re.compile(rb"<PMID\b(?:[^<>]*\bVersion\s*=\s*[\"'](\d{1,8})[\"'])?[^<>]*>\s*(\d{1,8})\s*</PMID>")
# Memory is used only for numbers that occur: 40 MB for all of PubMed.
_MOST_CITATIONS = 10**8
# "[Title of an article in another language]."
_TRANSLATED = re.compile(r"\[(.*)\]\.?")
_TRUNCATED = re.compile(r"\(ABSTRACT TRUNCATED(?: AT \d+ WORDS)?\)\s*$")
# What stands where there is no title or abstract: "[Not Available].", "[In Process Citation]",
# "[ABSTRACT NOT AVAILABLE]", "No abstract available.", "n/a".
_PLACEHOLDER = re.compile(
    r"[\W_]*(?:(?:the )?(?:article |original )?(?:title|abstract) )?(?:is )?(?:currently )?"
    r"(?:not (?:yet )?(?:available|provided|applicable|supplied)|unavailable|n\W?a|in process citation)[\W_]*|"
    r"[\W_]*no (?:english |article )?(?:title|abstract)(?: (?:is |was )?(?:available|provided|supplied|given))?[\W_]*",
    re.IGNORECASE,
)
# Older records have these tags as text.
_ESCAPED_TAG = re.compile(r"</?(?:b|i|u|sub|sup)>")
# PubMed's DTD gives formulas this prefix, which a file may declare once, outside its articles.
_ARTICLE_SET = b"<PubmedArticleSet xmlns:mml='http://www.w3.org/1998/Math/MathML'>%s</PubmedArticleSet>"
_FORMULAS = frozenset({"math", "DispFormula"})


def find_xml_files(folder: Path) -> list[Path]:
    """The .xml and .xml.gz files at any depth below a folder, sorted. Raises: as `find_text_files`."""
    return find_text_files(folder, (".xml", ".xml.gz"))


def find_files(folder: Path) -> list[Path]:
    """The files of the baseline, if there is one, and of the daily updates, if any, newest first.

    Raises: UserError where there are files of several years: a new baseline replaces all older files.
    """
    baseline, updates = (find_xml_files(folder / name) for name in _FOLDERS)
    matches = filter(None, (_NAME.fullmatch(path.name) for path in (*baseline, *updates)))
    if len(years := {match[1]: match[0] for match in matches}) > 1:
        raise UserError(
            f"{folder} has files of several years: {', '.join(years.values())}: a year's baseline replaces all files "
            "before it; delete those of the other years"
        )
    return [*reversed(updates), *reversed(baseline)] if baseline else []


def _numbers(xml: bytes) -> Iterator[tuple[int, int]]:
    """PMID and version of each citation in an element; the article's own comes first."""
    for match in _PMID.finditer(xml):
        yield int(match[2]), int(match[1] or 1)


def _elements(file: XmlFile) -> Iterator[Element | Damage]:
    return file.elements(("PubmedArticle", "PubmedBookArticle", "DeleteCitation"), "PubmedArticleSet")


def _choose_articles(path: Path, is_seen: np.ndarray) -> set[int]:
    """The indices of a file's elements that are articles to keep; marks the file's numbers in `is_seen`.

    The first of two passes over a file, because deletions and revisions may be at its end.
    """
    latest: dict[int, tuple[int, int]] = {}  # number -> its highest version, and the index of that
    deleted: set[int] = set()
    with XmlFile(path) as file:
        for index, element in enumerate(_elements(file)):
            if isinstance(element, Damage):
                break
            numbers = _numbers(element.xml)
            if element.tag == b"DeleteCitation":
                deleted.update(number for number, _ in numbers)
            else:
                number, version = next(numbers, (0, 0))
                latest[number] = max(latest.get(number, (0, 0)), (version, index))
    indices = {index for number, (_, index) in latest.items() if not is_seen[number] and number not in deleted}
    is_seen[[*latest, *deleted]] = True
    return indices


def read_batches(paths: Sequence[Path], position: Position) -> Iterator[Batch]:
    """Articles as XML in batches of about equal size."""
    is_seen = np.zeros(_MOST_CITATIONS, bool)
    starts = dict(remaining_files(paths, position))
    for path in paths:
        indices = _choose_articles(path, is_seen)
        if start := starts.get(path):
            with XmlFile(path) as file:
                articles = _articles(file, indices)
                yield from batch_documents(articles, path, start, count_read_bytes=lambda: file.num_file_bytes)


def _articles(file: XmlFile, indices: set[int]) -> Iterator[bytes | BadRecord | Dropped | Damage]:
    for index, element in enumerate(_elements(file)):
        if isinstance(element, Damage):
            yield element
        elif element.tag != b"DeleteCitation":
            number, _ = next(_numbers(element.xml), (0, 0))
            if not number:
                yield BadRecord(f"element {index + 1:,} has no PMID: not a file of PubMed's")
            else:
                yield element.xml if index in indices else Dropped("superseded_or_deleted")


def _text(element: ElementTree.Element | None) -> str:
    """All text inside an element, without formulas and the brackets that hold nothing else."""
    text = cut_out(ONLY_FORMULAS, "" if element is None else _text_with_placeholders(element))
    return _ESCAPED_TAG.sub("", text.replace(FORMULA, ""))


def _text_with_placeholders(element: ElementTree.Element) -> str:
    """All text inside an element, with FORMULA in place of each formula."""
    pieces = [element.text or ""]
    for part in element:
        name = part.tag.rpartition("}")[2]
        if name in ("sub", "sup"):
            # Pretty-printed files break the line inside of "H2O".
            text = pieces[-1].rstrip()
            if "\n" in pieces[-1][len(text) :]:
                pieces[-1] = text
        pieces.append(FORMULA if name in _FORMULAS else _text_with_placeholders(part))
        pieces.append(part.tail or "")
    return "".join(pieces)


def _says_something(text: str) -> bool:
    return bool(text.strip()) and not _PLACEHOLDER.fullmatch(" ".join(text.split()))


def _paragraphs(xml: bytes) -> list[str]:
    """The title and the parts of the abstract; [] if there is no abstract.

    Without a usable title it takes that in the article's original language, else the book's.
    """
    root = ElementTree.fromstring(_ARTICLE_SET % xml)
    abstract = root.find(".//Abstract")
    parts = [] if abstract is None else [_TRUNCATED.sub("", _text(part)) for part in abstract.iter("AbstractText")]
    parts = list(filter(_says_something, parts))
    if not parts:
        return []
    titles = (_text(root.find(f".//{name}")) for name in ("ArticleTitle", "VernacularTitle", "BookTitle"))
    title = " ".join(next(filter(_says_something, titles), "").split())
    translated = _TRANSLATED.fullmatch(title)
    return [translated[1] if translated else title, *parts]


def clean(xml: bytes) -> Document | Dropped | BadRecord:
    """An article's title and abstract as a line, if it has an abstract."""
    try:
        paragraphs = _paragraphs(xml)
    except (ElementTree.ParseError, RecursionError) as error:
        number = _PMID.search(xml)
        which = number[2].decode() if number else "unknown"
        return BadRecord(f"PMID {which}: XML: {error}: the file was changed or damaged; fetch it again")
    return Document(as_line(paragraphs)) if paragraphs else Dropped("without_abstract")


def open_corpus(options: PreparationOptions, working_dir: Path) -> Corpus:
    """The corpus, ready to be read. Raises: UserError where its files are missing."""
    folder = working_dir / "download" / "pubmed"
    remedy = f"{download_remedy(options.dataset)}, or put them there; published at ftp.ncbi.nlm.nih.gov/pubmed/baseline"
    paths = require_files(find_files(folder), folder / "baseline", ".xml or .xml.gz file", remedy=remedy)
    return Corpus(paths, functools.partial(read_batches, paths), clean, {})
