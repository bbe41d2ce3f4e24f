"""Articles in JATS, the XML of PubMed Central, to paragraphs: title, abstract, and the prose of the sections in order.

https://jats.nlm.nih.gov; the older NLM DTDs have the same elements. A DTD is never fetched. Elements are recognised by
their names without namespaces, because some servers put all of JATS into one.
"""

from __future__ import annotations

import html.entities
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Collection

from bert_tf.prepare.corpora.documents import BadRecord, Cleaned, Document, Dropped, as_line

_CREATIVE_COMMONS = re.compile(
    r"\bCC0\b|\bCC[ -](BY[A-Z -]*)|creativecommons\.org/(?:publicdomain/zero|licenses/([a-z-]+))", re.IGNORECASE
)
_META = "{*}front/{*}article-meta"
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# The default of JATS is English.
_ENGLISH = ("en", "eng")
# Types of articles that are only about another article.
_NOTICES = frozenset({"addendum", "correction", "expression-of-concern", "partial-retraction", "retraction"})
# Types of abstracts that repeat the main one in fewer words, or are pictures.
_OTHER_ABSTRACTS = frozenset(
    "ascii author-highlights graphical highlights precis short stereochemical teaser toc video web-summary".split()
)
_ENTITIES = {name[:-1]: text for name, text in html.entities.html5.items() if name.endswith(";")}

# Elements that begin and end a paragraph; those that are listed neither here nor below are part of a sentence.
_BLOCKS = frozenset(
    "answer attrib boxed-text caption def-item def-list disp-quote explanation list list-item p question sec sig "
    "sig-block speaker speech statement subtitle verse-group verse-line".split()
)
# Elements that are left out with all their content -> what they are counted as; "": not counted.
_LEFT_OUT = {
    name: reason
    for reason, names in {
        "tables": "array oasis-table table table-wrap table-wrap-group",
        "figures": "chem-struct chem-struct-wrap chem-struct-wrapper fig fig-group graphic inline-graphic media",
        "formulas": "disp-formula disp-formula-group inline-formula math tex-math",
        "headings": "title",
        "code": "code preformat",
        "supplements": "supplementary-material",
        "footnotes": "fn fn-group",
        "references": "citation element-citation mixed-citation nlm-citation ref-list",
        "": "alt-text label long-desc object-id permissions sec-meta",
    }.items()
    for name in names.split()
}
_WITH_CAPTION = frozenset({"fig", "fig-group", "table-wrap", "table-wrap-group"})
# Cross-references to these are marks, such as [12]; those to figures and sections are words of a sentence.
_MARK_TARGETS = frozenset({"author-notes", "bibr", "fn", "table-fn"})
# "Smith et al., 2010", and the 2010 of "Smith et al. (2010)".
_READABLE_CITATION = re.compile(r"[^\W\d_]{2}|\b(?:18|19|20)\d\d")
# Placeholders in an unfinished paragraph: for citations, formulas, and the colon after a term. XML cannot hold them.
_CITED, FORMULA, _TERM = "\x01", "\x02", "\x03"
_CITATIONS = re.compile(rf"[\[(][\s,;]*{_CITED}(?:[\s,;–—‐‑−\d{_CITED}-]|and)*[\])]|{_CITED}(?:[\s,;–—‐‑−-]*{_CITED})*")
ONLY_FORMULAS = re.compile(rf"[\[(][\s,;]*{FORMULA}[\s,;{FORMULA}]*[\])]")


def license_group(text: str) -> str:
    """The group (oa_comm, oa_noncomm or oa_other) by the Creative Commons licences that `text` names."""
    licenses = list(_CREATIVE_COMMONS.finditer(text))
    if not licenses:
        return "oa_other"
    return "oa_noncomm" if any("nc" in (match[1] or match[2] or "").lower() for match in licenses) else "oa_comm"


def _name(element: ElementTree.Element) -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if tag[0] == "{" else tag


def _is_english(element: ElementTree.Element) -> bool:
    return element.get(_LANGUAGE, "en").lower().partition("-")[0] in _ENGLISH


def _article_group(article: ElementTree.Element) -> str:
    """The licence group, by the stated licence and the code for it that PubMed Central adds."""
    paths = (f"{_META}/{{*}}{name}" for name in ("permissions", "custom-meta-group"))
    elements = (part for path in paths for element in article.iterfind(path) for part in element.iter())
    return license_group(" ".join(text for part in elements for text in (*part.attrib.values(), part.text or "")))


class _Prose:
    """Collects the paragraphs of elements, and counts what is left out, by reason."""

    def __init__(self, *, captions: bool, headings: bool = False):
        self.paragraphs: list[str] = []
        self.num_removed: Counter[str] = Counter()
        self._captions, self._headings = captions, headings
        self._pieces: list[str] = []  # of the paragraph being read
        self._floats: list[str] = []  # captions that will follow it

    def read(self, element: ElementTree.Element) -> None:
        """Adds the paragraphs of an element; the next element begins a new one."""
        self._read(element)
        self._end(is_last=True)

    def _read(self, element: ElementTree.Element) -> None:
        pieces = self._pieces
        if element.text:
            pieces.append(element.text)
        for part in element:
            name = _name(part)
            if name in _BLOCKS or (name == "title" and self._headings):
                self._end()
                self._read(part)
                self._end()
            elif name in _LEFT_OUT:
                self._leave_out(part, name, _LEFT_OUT[name])
            elif name == "xref" and part.get("ref-type") in _MARK_TARGETS:
                self._read_mark(part)
            else:
                self._read(part)
                if name in ("break", "term"):
                    pieces.append(" " if name == "break" else _TERM)
            if part.tail:
                pieces.append(part.tail)

    def _leave_out(self, element: ElementTree.Element, name: str, reason: str) -> None:
        if reason:
            self.num_removed[reason] += 1
        if reason == "formulas":
            self._pieces.append(FORMULA)
        elif self._captions and name in _WITH_CAPTION:
            self._floats += _captions_in(element)

    def _read_mark(self, element: ElementTree.Element) -> None:
        text = "".join(element.itertext())
        if _READABLE_CITATION.search(text):
            self._pieces.append(text)
        else:
            self.num_removed["citations"] += 1
            self._pieces.append(_CITED)

    def _end(self, *, is_last: bool = False) -> None:
        text = "".join(self._pieces).strip()
        if text.endswith(_TERM) and not is_last:  # its definition follows, as a block of its own
            return
        self._pieces.clear()
        if FORMULA in text:
            text = ONLY_FORMULAS.sub(_CITED, text).replace(FORMULA, " ")
        if _CITED in text:
            text = cut_out(_CITATIONS, text)
        if text:
            self.paragraphs.append(text.replace(_TERM, ": "))
        self.paragraphs += self._floats
        self._floats.clear()


def cut_out(pattern: re.Pattern[str], text: str) -> str:
    """The text without what the pattern matches, and without the space before that: "found [1, 2]." """
    *before, last = pattern.split(text)
    return "".join(map(str.rstrip, before)) + last


def _captions_in(element: ElementTree.Element) -> list[str]:
    captions = _Prose(captions=False, headings=True)
    for part in element.iter():
        if _name(part) == "caption":
            captions.read(part)
    return captions.paragraphs


def _clean_article(
    article: ElementTree.Element, *, group: str, groups: Collection[str], captions: bool
) -> Document | Dropped:
    if not _is_english(article):
        return Dropped("other_languages")
    if article.get("article-type") in _NOTICES:
        return Dropped("notices")
    if (group or _article_group(article)) not in groups:
        return Dropped("other_licenses")
    prose = _Prose(captions=captions)
    for name in ("article-title", "subtitle"):
        for element in article.iterfind(f"{_META}/{{*}}title-group/{{*}}{name}"):
            prose.read(element)
    title = ": ".join(prose.paragraphs)
    prose.paragraphs.clear()
    for abstract in article.iterfind(f"{_META}/{{*}}abstract"):
        if abstract.get("abstract-type") not in _OTHER_ABSTRACTS and _is_english(abstract):
            prose.read(abstract)
    for body in article.iterfind("{*}body"):
        prose.read(body)
    if not prose.paragraphs:
        return Dropped("without_text")
    floats = [text for group in article.iterfind("{*}floats-group") if captions for text in _captions_in(group)]
    return Document(as_line([title, *prose.paragraphs, *floats]), prose.num_removed)


def clean(name: str, xml: bytes, *, group: str, groups: Collection[str], captions: bool) -> list[Cleaned]:
    """The articles in `xml`, each as a line; several where a server has answered with a list.

    Args:
      name: what messages about a bad record call it.
      group: the licence group of these articles; if empty, the one that follows from their licences.
      groups: articles of other groups are dropped.
      captions: whether to keep the captions of figures and tables.
    """
    parser = ElementTree.XMLParser()
    parser.entity.update(_ENTITIES)
    try:
        parser.feed(xml)
        root = parser.close()
        articles = [root] if _name(root) == "article" else [*root.iterfind(".//{*}article")]
        if not articles:
            return [BadRecord(f"{name}: no <article> in it: not the full text of an article in JATS; take it out")]
        return [_clean_article(article, group=group, groups=groups, captions=captions) for article in articles]
    except (ElementTree.ParseError, LookupError, ValueError, RecursionError) as error:
        return [BadRecord(f"{name}: XML: {error}: the file was changed or damaged; fetch it again")]
