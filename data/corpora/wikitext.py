"""MediaWiki's markup to running text: what a reader of the article would read as sentences.

As BERT's authors did (Devlin et al. 2018, section 3.1), only text passages are kept: headings,
lists, tables, captions and references go. One pass over the brackets of the text keeps a stack of
what is open, so nesting of any depth costs linear time and unbalanced markup cannot swallow an
article.
"""

from __future__ import annotations

import html
import re
from typing import Callable

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOWIKI = re.compile(r"<nowiki>(.*?)</nowiki>", re.DOTALL | re.IGNORECASE)
# What these hold is not part of a sentence.
_DROPPED_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|imagemap|source|syntaxhighlight|pre|score|hiero|"
    "graph|templatedata|mapframe|maplink|table|noinclude|includeonly|section|inputbox|indicator"
)
_FORMULA = re.compile(r"<math\b[^<>/]*>(.*?)</math\s*>", re.DOTALL | re.IGNORECASE)
# Shown as it is written: "x + 1" but not what needs TeX.
_SIMPLE_FORMULA = re.compile(r"[\w\s+\-=*/().,'^{}]{1,40}")
_EMPTY_ELEMENT = re.compile(rf"<(?:{_DROPPED_TAGS})\b[^<>]*/\s*>", re.IGNORECASE)
_ELEMENT = re.compile(rf"<({_DROPPED_TAGS})\b[^<>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
_KEPT_TAGS = (
    "abbr|b|bdi|bdo|big|blockquote|br|center|cite|code|dd|del|dfn|div|dl|dt|em|font|h[1-6]|hr|i|ins|"
    "kbd|li|mark|nowiki|ol|onlyinclude|p|poem|q|rb|rp|rt|ruby|s|samp|small|span|strike|strong|sub|"
    "sup|td|th|tr|tt|u|ul|var|wbr"
)
_TAG = re.compile(rf"</?(?:{_KEPT_TAGS}|{_DROPPED_TAGS})\b[^<>]*>", re.IGNORECASE)
_BRACKETS = re.compile(r"\{\{+|\}\}+|\[\[|\]\]|^[ :]*\{\|(?!\})|^[ :]*\|\}(?!\})", re.MULTILINE)
_EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftp:|mailto:)?//[^\s\]]*\s*([^\]\n]*)\]")
_BARE_LINK = re.compile(r"\b(?:https?|ftp)://\S+")
_QUOTES = re.compile("''+")
_SWITCH = re.compile(r"__[A-Z]+__")
_HEADING = re.compile(r"=+.*=+\s*")
_EMPTY_PARENTHESES = re.compile(r"\s*[(\[][\s,;:.–-]*[)\]]")
_EMPTY_PARENTHESES_NEED = re.compile(r"[(\[][\s,;:.–-]*[)\]]")
_LEADING_COMMAS = re.compile(r"\(\s*(?:[,;:]\s*)+")
_TRAILING_COMMAS = re.compile(r"\s*(?:[,;:]\s*)+\)")
_TRAILING_COMMAS_NEED = re.compile(r"[,;:]\s*\)")
_REPEATED_COMMAS = re.compile(r",(?:\s*,)+")
_SPACE_BEFORE_STOP = re.compile(r"\s+([,.;:!?)])(?=[\s)\"'”]|$)")
_SPACE_BEFORE_STOP_NEEDS = re.compile(r"[,.;:!?)](?<=\s.)")
_SPACE_AFTER_PARENTHESIS = re.compile(r"\(\s+")
_SENTENCE_STOP = re.compile(r"[.!?…][\"'”’)\]]*(?:\s|$)|[。！？｡।॥؟۔]")
_TABLE_REMAINS = re.compile(r"^[|!]|^\s*(?:colspan|rowspan|style|class|align|width)\s*=")

# Namespaces whose links show a picture, or nothing, where they stand: English and Chinese names.
_HIDDEN_NAMESPACES = frozenset("file image media category 文件 檔案 档案 图像 圖像 媒体 媒體 分类 分類".split())
# Chinese: "-{zh-hans:计算机; zh-hant:電腦}-" has a form for each script and region, "-{T|...}-"
# changes what is shown elsewhere, "-{...}-" alone only protects its content.
_VARIANTS = re.compile(r"-\{(?:([^{}|]*)\|)?([^{}]*)\}-")
_VARIANT = re.compile(r"(?:^|;)\s*(zh(?:-\w+)?)\s*:\s*([^;]*)")
_VARIANT_ORDER = ("zh-hans", "zh-cn", "zh", "zh-sg", "zh-my", "zh-hant", "zh-tw", "zh-hk", "zh-mo")
_SILENT_FLAGS = frozenset("TH-")
_LANGUAGE_PREFIX = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*")
# Prefixes of two or three letters that are no languages: they show their text.
_PROJECT_PREFIXES = frozenset({"wp", "wt", "mw", "doi", "rfc", "s", "b", "n", "q", "v", "d", "m"})

_RANGE_WORDS = {
    "-": "–",
    "–": "–",
    "to": " to ",
    "and": " and ",
    "by": " by ",
    "x": " by ",
    "or": " or ",
    "to(-)": " to ",
    "+/-": " ± ",
    "±": " ± ",
}


def _convert(arguments: list[str]) -> str:
    """``{{convert|10|-|20|km}}`` -> 10–20 km."""
    shown = arguments[0] if arguments else ""
    rest = arguments[1:]
    while len(rest) >= 2 and rest[0] in _RANGE_WORDS:
        shown += _RANGE_WORDS[rest[0]] + rest[1]
        rest = rest[2:]
    return f"{shown} {rest[0]}" if rest else shown


def _argument(number: int) -> Callable[[list[str]], str]:
    return lambda arguments: arguments[number] if len(arguments) > number else ""


def _constant(text: str) -> Callable[[list[str]], str]:
    return lambda _: text


# Templates that stand for a piece of the sentence; all others are boxes, notes and marks.
_SHOWN_TEMPLATES: dict[str, Callable[[list[str]], str]] = {
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("lang", "transl", "script", "nihongo2"), lambda a: a[-1] if len(a) > 1 else ""),
    **dict.fromkeys(
        (
            "nihongo",
            "nowrap",
            "nobr",
            "nobreak",
            "small",
            "smaller",
            "big",
            "abbr",
            "em",
            "strong",
            "sic",
            "quote",
            "blockquote",
            "cquote",
            "val",
            "num",
            "formatnum",
            "sup",
            "sub",
            "var",
            "mvar",
            "math",
            "okina",
            "linktext",
            "visible anchor",
            "ill",
            "interlanguage link",
            "ship",
            "old style date",
            "start date",
            "keypress",
            "key",
            "ordinal",
            "age",
        ),
        _argument(0),
    ),
    **dict.fromkeys(("as of",), lambda a: "As of " + " ".join(a[:1])),
    **dict.fromkeys(("circa", "c."), lambda a: "c. " + " ".join(a[:1])),
    **dict.fromkeys(("ndash", "en dash", "spaced ndash", "spnd", "snd", "–"), _constant(" – ")),
    **dict.fromkeys(("mdash", "em dash", "spaced mdash", "—"), _constant(" — ")),
    **dict.fromkeys(("frac", "fraction", "sfrac"), "/".join),
    **dict.fromkeys(("'", "`", "okina", "hamza", "ayin"), _constant("'")),
    **dict.fromkeys(("nbsp", "space", "spaces"), _constant(" ")),
    **dict.fromkeys(("!",), _constant("|")),
}


def _render_template(content: str) -> str:
    name, *parts = content.split("|")
    name = " ".join(name.replace("_", " ").split()).lower()
    if name.startswith("lang-"):
        render: Callable[[list[str]], str] | None = _argument(0)
    else:
        render = _SHOWN_TEMPLATES.get(name)
    if render is None:
        return ""
    return render([part.strip() for part in parts if not re.match(r"\s*[a-z_ -]+=", part)])


def _render_link(content: str) -> str:
    target, *rest = content.split("|")
    target = target.strip()
    shown = rest[-1] if rest else target.lstrip(":")
    prefix, colon, name = target.partition(":")
    if colon:
        prefix = prefix.strip()
        if prefix.lower() in _HIDDEN_NAMESPACES:
            return ""
        if (
            not rest
            and _LANGUAGE_PREFIX.fullmatch(prefix)
            and prefix not in _PROJECT_PREFIXES
            and not name.startswith(" ")
        ):
            return ""
    if rest and not shown.strip():
        # The pipe trick: [[Paris (Texas)|]] shows Paris.
        return re.sub(r"\s*\(.*?\)\s*$|,.*$", "", target)
    return shown


def _render_formula(match: re.Match[str]) -> str:
    content = match[1].strip()
    if not _SIMPLE_FORMULA.fullmatch(content):
        return ""
    return re.sub("[{}]", "", content)


class _Brackets:
    """The open brackets of a text and what has been collected inside each."""

    def __init__(self) -> None:
        self._open: list[tuple[str, list[str]]] = [("", [])]

    def add(self, text: str) -> None:
        self._open[-1][1].append(text)

    def open(self, kind: str) -> None:
        self._open.append((kind, []))

    def close(self, kind: str) -> bool:
        """Ends the innermost `kind`; what was opened inside and not closed was no markup."""
        if all(opened != kind for opened, _ in self._open):
            return False
        while self._open[-1][0] != kind:
            self._give_up()
        _, pieces = self._open.pop()
        content = "".join(pieces)
        if kind == "{{":
            self.add(_render_template(content))
        elif kind == "[[":
            self.add(_render_link(content))
        return True

    def text(self) -> str:
        while len(self._open) > 1:
            self._give_up()
        return "".join(self._open[0][1])

    def _give_up(self) -> None:
        _, pieces = self._open.pop()
        self._open[-1][1].extend(pieces)


def _braces(length: int) -> list[str]:
    """A run of braces as the brackets it opens, outermost first: parameters have three."""
    threes = length % 2
    return ["{{{"] * threes + ["{{"] * ((length - 3 * threes) // 2)


def _without_brackets(text: str) -> str:
    brackets = _Brackets()
    position = 0
    for match in _BRACKETS.finditer(text):
        brackets.add(text[position : match.start()])
        position = match.end()
        mark = match[0].lstrip(" :")
        if mark == "[[":
            brackets.open("[[")
        elif mark == "]]":
            brackets.close("[[")
        elif mark == "{|":
            brackets.open("{|")
        elif mark == "|}":
            brackets.close("{|")
        elif mark[0] == "{":
            for kind in _braces(len(mark)):
                brackets.open(kind)
        else:
            for kind in reversed(_braces(len(mark))):
                if not brackets.close(kind) and kind == "{{{":
                    brackets.close("{{")
    brackets.add(text[position:])
    return brackets.text()


def _render_variants(match: re.Match[str]) -> str:
    flags, content = (match[1] or "").strip(), match[2]
    if _SILENT_FLAGS & set(flags.upper()) and not flags.lower().startswith("zh"):
        return ""
    forms = dict(_VARIANT.findall(content))
    for variant in _VARIANT_ORDER:
        if variant in forms:
            return forms[variant].strip()
    return content


def _without_inline_markup(text: str) -> str:
    text = _EXTERNAL_LINK.sub(r"\1", text)
    if "://" in text:
        text = _BARE_LINK.sub("", text)
    text = _TAG.sub("", _BREAK.sub(" ", text))
    text = _SWITCH.sub("", _QUOTES.sub("", text))
    # Twice: "&amp;nbsp;" is how some editors write a space.
    return html.unescape(html.unescape(text)).replace("\u00ad", "").replace("\u200b", "")


def _tidy(paragraph: str) -> str:
    """Mends what the removed pieces left: empty parentheses, doubled commas, lonely spaces."""
    # Patterns that may begin with white space are tried at every space; what they need is rarer.
    if _EMPTY_PARENTHESES_NEED.search(paragraph):
        paragraph = _EMPTY_PARENTHESES.sub("", paragraph)
    paragraph = _LEADING_COMMAS.sub("(", _REPEATED_COMMAS.sub(",", paragraph))
    if _TRAILING_COMMAS_NEED.search(paragraph):
        paragraph = _TRAILING_COMMAS.sub(")", paragraph)
    paragraph = _SPACE_AFTER_PARENTHESIS.sub("(", paragraph)
    if _SPACE_BEFORE_STOP_NEEDS.search(paragraph):
        paragraph = _SPACE_BEFORE_STOP.sub(r"\1", paragraph)
    return " ".join(paragraph.split())


def has_stop(paragraph: str) -> bool:
    """Whether a sentence ends in it; headings, captions and cells have no stop."""
    return bool(_SENTENCE_STOP.search(paragraph))


def paragraphs_of(wikitext: str) -> list[str]:
    """The text passages of an article; a passage without the end of a sentence is none."""
    text = _COMMENT.sub("", wikitext)
    text = _NOWIKI.sub(lambda match: re.sub(r"[\[\]{}|<>']", lambda c: f"&#{ord(c[0])};", match[1]), text)
    text = _FORMULA.sub(_render_formula, text)
    text = _ELEMENT.sub("", _EMPTY_ELEMENT.sub("", text))
    text = _without_inline_markup(_without_brackets(_VARIANTS.sub(_render_variants, text)))
    paragraphs: list[str] = []
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        line = line.strip()
        is_list = line[:1] in ("*", "#", ";")
        if line and not is_list and not _HEADING.fullmatch(line) and not _TABLE_REMAINS.match(line):
            lines.append(line.lstrip(":").strip())
            continue
        paragraph = _tidy(" ".join(lines))
        lines = []
        if has_stop(paragraph):
            paragraphs.append(paragraph)
    return paragraphs
