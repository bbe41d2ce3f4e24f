"""MediaWiki's markup to running text: the sentences of an article.

As in BERT's paper (Devlin et al. 2018, section 3.1) only text passages are kept: headings, tables,
captions, references and lists are removed, except for list items that are sentences. Removed pieces
are counted by reason.

Every step takes linear time for any text: no pattern searches for the same end from many starts, and
brackets are matched in one pass with a stack, so that unbalanced markup cannot remove a whole article.
"""

from __future__ import annotations

import functools
import html
import itertools
import json
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_tf.prepare.corpora import wiki_templates
from bert_tf.prepare.corpora.tidying import tidy
from bert_tf.prepare.corpora.wiki_templates import KNOWN_NAMESPACES, Namespaces, namespace_key, render_link
from bert_tf.prepare.corpora.words import MIN_WORDS_WITHOUT_STOP, find_words, has_words
from bert_tf.prepare.sharding.sentences import OTHER_STOPS

# The number of removed pieces by reason.
Removed = Counter[str]

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# A comment or <nowiki>, whichever begins first: inside it, marks of the other mean nothing. Group 1: nowiki's text.
_COMMENT_OR_NOWIKI = re.compile(
    r"<(?:!--.*?(?:-->|\Z)|nowiki>([^<]*(?:<(?!/?nowiki>)[^<]*)*)</nowiki>)", re.DOTALL | re.IGNORECASE
)
# Elements whose content is not part of a sentence.
_DROPPED_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|imagemap|source|syntaxhighlight|pre|score|hiero|"
    "graph|templatedata|mapframe|maplink|table|noinclude|includeonly|section|inputbox|indicator"
)
# Formulas that can be kept as written: "x + 1", but nothing that needs TeX.
_SIMPLE_FORMULA = re.compile(r"[\w\s+\-=*/().,'^{}]{1,40}")
_ELEMENT_TAG = re.compile(rf"<(/?)({_DROPPED_TAGS})\b([^<>]*)>", re.IGNORECASE)
# An unclosed reference ends at a blank line, a heading or a list.
_PARAGRAPH_END = re.compile(r"\n[ \t]*(?=[\n=*#:;]|\Z)")
_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
_KEPT_TAGS = (
    "abbr|b|bdi|bdo|big|blockquote|br|center|cite|code|dd|del|dfn|div|dl|dt|em|font|h[1-6]|hr|i|ins|"
    "kbd|li|mark|nowiki|ol|onlyinclude|p|phonos|poem|q|rb|rp|rt|ruby|s|samp|small|span|strike|strong|sub|"
    "sup|td|templatestyles|th|tr|tt|u|ul|var|wbr"
)
_TAG = re.compile(rf"</?(?:{_KEPT_TAGS}|{_DROPPED_TAGS})\b[^<>]*>", re.IGNORECASE)
_HTML_LINK = re.compile(r"</?a(?:\s[^<>]*)?>", re.IGNORECASE)
# Two or more braces, two square brackets, or a table's mark. It begins with a set of characters, as such patterns are
# several times faster than alternatives.
_BRACKETS = re.compile(r"[{}[\]](?:(?<={)(?:{+|\|(?!}))|(?<=})}+|(?<=\[)\[|(?<=\])\])|\|}(?!})")
# Group 1 is the text that is shown for the link.
_EXTERNAL_LINK = re.compile(r"\[(?:(?:https?:|ftp:)?//|mailto:)[^\[\]\s]*(?:[^\S\n]([^\[\]\n]*))?\]")
# Excludes punctuation at the link's end, which belongs to the sentence; a link that holds "(" may end with ")".
_REST_OF_LINK = r"[^\s<>\[\]\"]*"
_BARE_LINK = re.compile(
    rf"\b(?:https?|ftp)://(?:{_REST_OF_LINK}\({_REST_OF_LINK}(?<![,;.:!?])|{_REST_OF_LINK}(?<![,;.:!?)]))"
)
_QUOTES = re.compile("''+")
# "__NOTOC__", in any language, and "__init__", which `_without_switches` keeps.
_SWITCH = re.compile(r"__([^\W\d_]+(?:_[^\W\d_]+)*)__")
# References this long are not characters, and parsing them as numbers takes quadratic time.
_LONG_CHARACTER_REFERENCE = re.compile(r"&#[0-9]{8,};?")
_TABLE_REMAINS = re.compile(r"[|]|\{[|]|(?:colspan|rowspan|style|class|align|width)\s*=")

_SENTENCE_STOP = re.compile(rf"[.!?…][\"'”’)\]]*(?:\s|$)|[{OTHER_STOPS}]")
# Prose has a full stop or many words, or introduces a list ("They are:") with at least this many words.
_MIN_WORDS_BEFORE_COLON = 2
_MIN_WORDS_OF_LIST_ITEM = 5


# The names of sections whose list items (books, links, notes) have full stops but are not sentences.
_SECTIONS_BY_LANGUAGE = json.loads(Path(__file__).with_name("reference_sections.json").read_text(encoding="utf-8"))
_REFERENCE_SECTIONS = frozenset(itertools.chain.from_iterable(_SECTIONS_BY_LANGUAGE.values()))
# The end of a list item that the next one continues ("a;", "b; and", "c.").
_CONTINUED = re.compile(r"[;；](?: ?[^\W\d_]{1,5})?$|[,，、](?: (?:and|or))?$")

# "-{zh-hans:计算机; zh-hant:電腦}-" has a form for each script and region, "-{T|...}-" changes what is shown elsewhere,
# "-{...}-" alone only protects its content. Languages other than Chinese have them, too: "-{sr-ec:беше; sr-el:beše}-".
_VARIANTS = re.compile(r"-\{(?:([^{}|]*)\|)?([^{}]*)\}-")
_VARIANT = re.compile(r"(?:^|;)\s*(zh(?:-\w+)?|(?:ban|crh|gan|iu|kk|ku|mni|sh|shi|sr|tg|tly|uz|wuu)-\w+)\s*:\s*([^;]*)")
_VARIANT_ORDER = ("zh-hans", "zh-cn", "zh", "zh-sg", "zh-my", "zh-hant", "zh-tw", "zh-hk", "zh-mo")
_SILENT_FLAGS = frozenset("TH-")

# MediaWiki stops at 40 nested templates; brackets nested deeper than this are dropped.
_MAX_DEPTH = 100
# Brackets, and the reason counted when their content is removed. An article has no parameters, so {{{1}}} counts as
# a template.
_REASONS = {"{{": "templates", "[[": "hidden_links", "{|": "tables"}


def _protected(text: str) -> str:
    """The text with its bars and equals signs as characters that XML does not allow, until all brackets are closed:
    otherwise they would be read as syntax of the template around the text.
    """
    return text.replace("|", "\x01").replace("=", "\x02")


def _render_formula(content: str) -> str:
    content = content.strip()
    if not _SIMPLE_FORMULA.fullmatch(content):
        return ""
    return _protected(re.sub("[{}]", "", content))


@functools.cache
def _end_of_element(name: str) -> re.Pattern[str]:
    """A pattern of an element's closing tag, with the slash as group 1.

    References do not nest: of an unclosed one, it finds the next one's opening tag, without group 1.
    """
    return re.compile(rf"<(/){name}\s*>" + (r"|<ref\b[^<>]*(?<!/)>" if name == "ref" else ""), re.IGNORECASE)


def _without_elements(text: str, removed: Removed) -> str:
    """Removes elements that hold no sentences.

    Of an unclosed element only the tag is removed, of an unclosed reference all up to the paragraph's end.
    """
    pieces: list[str] = []
    position = 0
    unclosed: set[str] = set()  # from `position` on; searching for their ends again would take quadratic time
    while tag := _ELEMENT_TAG.search(text, position):
        pieces.append(text[position : tag.start()])
        position = tag.end()
        name = tag[2].lower()
        if tag[1] or tag[3].endswith("/"):
            continue
        end = None if name in unclosed else _end_of_element(name).search(text, position)
        if end and end[1]:
            if name == "math":
                pieces.append(_render_formula(text[position : end.start()]))
            position = end.end()
        elif name == "ref":
            paragraph_end = _PARAGRAPH_END.search(text, position)
            position = paragraph_end.start() if paragraph_end else len(text)
        if not end:
            unclosed.add(name)
        removed["references" if name == "ref" else "elements"] += 1
    pieces.append(text[position:])
    return "".join(pieces)


def _render(kind: str, content: str, namespaces: Namespaces) -> str | None:
    """What a reader sees of a pair of brackets, whose inner brackets are rendered already; None or "" for nothing."""
    if kind == "[[":
        return render_link(content, namespaces)
    if kind == "{{":
        namespace, colon, name = content.partition(":")
        is_named = colon and namespace_key(namespace) in namespaces.templates
        return wiki_templates.render(name if is_named else content)
    return None


def _without_brackets(text: str, removed: Removed, namespaces: Namespaces) -> str:
    """The text with links and templates rendered, and without tables.

    Brackets that are never closed do not remove what follows them.
    """
    pieces: list[str] = []
    # The open brackets, innermost last, each with the number of pieces before it; and how many there are of each kind.
    opened: list[tuple[str, int]] = []
    num_open = dict.fromkeys(_REASONS, 0)

    def close(kind: str) -> None:
        innermost = ""
        while innermost != kind:
            innermost, start = opened.pop()
            num_open[innermost] -= 1
        content = "".join(pieces[start:])
        del pieces[start:]
        if len(opened) >= _MAX_DEPTH:
            return
        rendered = _render(kind, content, namespaces)
        if not rendered:
            removed[_REASONS[kind]] += 1
            rendered = " " if kind == "[[" else ""  # a picture may stand between two sentences
        pieces.append(_protected(rendered) if opened else rendered)

    position = 0
    for match in _BRACKETS.finditer(text):
        mark = match[0]
        before, position = text[position : match.start()], match.end()
        kind = "[[" if mark[0] in "[]" else "{|" if "|" in mark else "{{"
        if kind == "{|":
            _, newline, line = before.rpartition("\n")
            if line.strip(" :") or (pieces and not newline):
                pieces.append(before + mark)  # it does not begin its line
                continue
            before = before.rstrip(" :")
        pieces.append(before)
        for _ in range(len(mark) // 2):
            if mark[0] in "[{":
                opened.append((kind, len(pieces)))
                num_open[kind] += 1
                if kind == "{|":
                    # Stays in the text if the table is never closed; `_blocks` then takes what follows for table rows.
                    pieces.append("\n{|")
            elif num_open[kind]:
                close(kind)
    pieces.append(text[position:])
    return "".join(pieces).replace("\x01", "|").replace("\x02", "=")


def _render_variants(match: re.Match[str]) -> str:
    flags, content = (match[1] or "").strip(), match[2]
    if _SILENT_FLAGS & set(flags.upper()) and not flags.lower().startswith("zh"):
        return ""
    forms = dict(_VARIANT.findall(content))
    return next((forms[variant].strip() for variant in (*_VARIANT_ORDER, *forms) if variant in forms), content)


def unescape(text: str) -> str:
    """Entities as the characters they stand for."""
    return html.unescape(_LONG_CHARACTER_REFERENCE.sub("\ufffd", text))


def _without_switches(text: str) -> str:
    return _SWITCH.sub(lambda switch: "" if switch[1] == switch[1].upper() else switch[0], text)


def without_tags(text: str, removed: Removed) -> str:
    """Removes tags, comments and elements without sentences from text whose only markup these are.

    Each line of it is a paragraph; in the result, blank lines end paragraphs.
    """
    # Where a comment has no end, its mark is shown, as in an article about HTML.
    text = _COMMENT.sub(lambda comment: "" if comment[0].endswith("-->") else comment[0], text)
    text = _without_elements(text.replace("\n", "\n\n"), removed)
    return _without_switches(_HTML_LINK.sub("", _TAG.sub("", _BREAK.sub(" ", text))))


def _without_inline_markup(text: str) -> str:
    text = _EXTERNAL_LINK.sub(r"\1", text)
    if "://" in text:
        text = _BARE_LINK.sub("", text)
    text = _TAG.sub("", _BREAK.sub(" ", text))
    text = _without_switches(_QUOTES.sub("", text))
    # Twice: "&amp;nbsp;" is how some editors write a space.
    return unescape(unescape(text)).replace("\u00ad", "").replace("\u200b", "")


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph has a sentence end, introduces a list, or has more words than headings and captions."""
    return (
        bool(_SENTENCE_STOP.search(paragraph))
        or has_words(paragraph, MIN_WORDS_WITHOUT_STOP)
        or (paragraph.endswith((":", "：")) and has_words(paragraph, _MIN_WORDS_BEFORE_COLON))
    )


def is_sentence(item: str) -> bool:
    """Whether a list item is a sentence: it has a sentence end, and most of its words are not names or numbers."""
    stop = _SENTENCE_STOP.search(item)
    if not stop:
        return False
    words = find_words(item)
    is_long = len(words) >= _MIN_WORDS_OF_LIST_ITEM or not stop[0].isascii()
    return is_long and 2 * sum(word[0].isalpha() and not word[0].isupper() for word in words) >= len(words)


def _kind_of(line: str, *, has_open_table: bool) -> str:
    """What a line is part of, named as its removal is counted ("fragments": a paragraph); "" for a blank line."""
    if not line:
        return ""
    if line[0] == line[-1] == "=" and len(line) > 2:
        return "headings"
    if _TABLE_REMAINS.match(line) or (has_open_table and line[0] == "!"):
        return "table_rows"
    # A list item or a reply begins with "*", "#" or ";", perhaps after colons.
    return "list_items" if line.lstrip(":")[:1] in "*#;" else "fragments"


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of each heading, list item and row of a broken table, and of each paragraph between them, tidied."""
    kind_of = functools.partial(_kind_of, has_open_table="\n{|" in text)
    for kind, lines in itertools.groupby(map(str.strip, text.split("\n")), kind_of):
        if kind == "fragments":
            yield kind, tidy(" ".join(line.lstrip(": ") for line in lines))
        elif kind:
            yield from ((kind, line) for line in lines)


def _whole_items(items: Iterable[str]) -> Iterator[str]:
    """List items without their marks, tidied; those that the next one continues ("a;", "b; and", "c.") are joined
    with it, as they are one sentence.
    """
    parts: list[str] = []
    for item in items:
        parts.append(tidy(item.lstrip("*#:; ")))
        if not _CONTINUED.search(parts[-1]):
            yield " ".join(parts)
            parts = []
    yield " ".join(parts)


def _passages(text: str, removed: Removed) -> Iterator[str]:
    reference_level = 0  # the heading level of the section of references that a block is in, if any
    for kind, group in itertools.groupby(_blocks(text), operator.itemgetter(0)):
        blocks: Iterable[str] = (block for _, block in group)
        for block in filter(None, _whole_items(blocks) if kind == "list_items" else blocks):
            is_passage = kind == "fragments" and is_prose(block)
            if kind == "headings":
                level = len(block) - len(block.lstrip("="))
                if not reference_level or level <= reference_level:
                    is_of_references = block.strip("= ").lower() in _REFERENCE_SECTIONS
                    reference_level = level if is_of_references else 0
            elif kind == "list_items":
                is_passage = not reference_level and is_sentence(block)
            if is_passage:
                yield block
            else:
                removed[kind] += 1


def paragraphs_of(wikitext: str, removed: Removed, namespaces: Namespaces = KNOWN_NAMESPACES) -> list[str]:
    """The text passages of an article; counts everything else in `removed`."""
    text = _COMMENT_OR_NOWIKI.sub(
        lambda match: re.sub(r"[\[\]{}|<>'=]", lambda c: f"&#{ord(c[0])};", match[1] or ""), wikitext
    )
    text = _without_elements(text, removed)
    text = _without_brackets(_VARIANTS.sub(_render_variants, text), removed, namespaces)
    text = _VARIANTS.sub(_render_variants, text)  # variants that held templates, which are rendered now
    return list(_passages(_without_inline_markup(text), removed))
