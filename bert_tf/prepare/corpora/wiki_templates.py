"""Renders MediaWiki's links and templates as the text that a reader sees.

Links are rendered by the namespace of the page that they lead to. Only templates that stand for a part of a sentence
in many articles are rendered; the others are boxes, notes and marks. Where the right text is not certain nothing is
rendered: a number without its unit is worse than a gap.
"""

from __future__ import annotations

import calendar
import functools
import re
from collections.abc import Iterable
from typing import Callable, NamedTuple, Optional


class Namespaces(NamedTuple):
    """The names of some namespaces, as `namespace_key` writes them.

    Attributes:
      hidden: names of namespaces whose links show a picture or nothing in the text.
      templates: names of the namespace of templates.
    """

    hidden: frozenset[str]
    templates: frozenset[str]


# English names are valid in every wiki. A dump lists those in its own language, but not their aliases, which the
# Chinese Wikipedia uses most.
KNOWN_NAMESPACES = Namespaces(
    frozenset("file image media category 文件 檔案 档案 图像 圖像 媒体 媒體 分类 分類".split()), frozenset(["template"])
)
# A link into any namespace with a name like this is a picture or a sound, so that other aliases ("Bild") need not be
# known.
_MEDIA_FILE = re.compile(
    r"[^\W\d_][\w ]*:[^:]+\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|pdf|djvu|og[agvx]|opus|web[am]|wav|flac|mp3|mid|mpe?g)",
    re.IGNORECASE,
)
# A link to the article in another language; some projects have prefixes that look like languages.
_LANGUAGE_LINK = re.compile(r"(?!(?:wp|wt|mw|doi|rfc) *:)[a-z]{2,3}(?:-[a-z]+)* *:(?! )")


def namespace_key(name: str) -> str:
    """The name of a namespace or a template as MediaWiki compares it: in any case, with "_" for a space."""
    return " ".join(name.replace("_", " ").split()).lower()


def render_link(content: str, namespaces: Namespaces) -> str:
    # A bar from {{!}} separates like a literal one.
    target, *labels = content.replace("\x01", "|").split("|")
    target = target.strip()
    namespace, colon, _ = target.partition(":")
    is_hidden = colon and namespace_key(namespace) in namespaces.hidden
    if is_hidden or _MEDIA_FILE.fullmatch(target) or (not labels and _LANGUAGE_LINK.match(target)):
        return ""
    if not labels:
        return target.lstrip(":")
    # If the label is empty, or nothing is left of it, the target without its disambiguation: [[Paris (Texas)|]].
    return labels[-1] if labels[-1].strip() else target.partition("(")[0].partition(",")[0].strip()


# Keys are numbers ("1", "2", ...) and names.
Arguments = dict[str, str]
Render = Callable[[Arguments], Optional[str]]


def read_arguments(parts: Iterable[str]) -> Arguments:
    """A template's arguments, given the parts between its bars, as MediaWiki reads them.

    A part with "=" is named (its name may be a number), and white space around name and value is
    removed; the others are numbered. Of several with the same name the last one counts.
    """
    arguments: Arguments = {}
    num_unnamed = 0
    for part in parts:
        name, is_named, value = part.partition("=")
        if is_named:
            arguments[name.strip()] = value.strip()
        else:
            num_unnamed += 1
            arguments[str(num_unnamed)] = part
    return arguments


def _numbered(arguments: Arguments) -> list[str]:
    """The arguments 1, 2, ... up to the first that is not given."""
    values: list[str] = []
    while (value := arguments.get(str(len(values) + 1))) is not None:
        values.append(value.strip())
    return values


def _by_code(table: str) -> dict[str, str]:
    """A table "code code: text; code: text" as a dictionary of the text for each code."""
    rows = (row.partition(":") for row in table.split(";"))
    return {code: text.strip() for codes, _, text in rows for code in codes.split()}


_RANGE_WORDS = {
    **dict.fromkeys(("-", "–"), "–"),
    **{word: f" {word} " for word in ("to", "and", "by", "or", "±")},
    "to(-)": " to ",
    "and(-)": " and ",
    "x": " by ",
    "+/-": " ± ",
}
# Units that are shown as they are written.
_PLAIN_UNITS = """
    nm mm cm dm m km in ft yd mi nmi AU ly pc mm2 cm2 m2 km2 ha mm3 cm3 m3 km3 L ml mL cl hl mg g kg t oz lb st °C °F K
    km/h km/s m/s mph kn ft/s W kW MW GW hp bhp PS J kJ MJ kWh MWh N kN Nm Pa kPa MPa hPa bar atm psi V A Hz kHz MHz GHz
    min h
"""
_UNITS = {
    **{unit: unit for unit in _PLAIN_UNITS.split()},
    **_by_code("""
    sqmi mi2: sq mi; sqft ft2: sq ft; cuft ft3: cu ft; cuin: cu in; sqkm: km2; C C-change: °C; F F-change: °F;
    acre acres: acres; USgal impgal: gallons; MUSgal: million gallons; Tcuft: trillion cu ft; kph: km/h; carat: carats;
    MT: metric tons; LT: long tons; ST: short tons; PD/sqmi: people per square mile; /sqmi: per square mile;
    PD/km2: people per square kilometre; /km2: per square kilometre; oilbbl: barrels; oilbbl/d: barrels per day;
    koilbbl: thousand barrels; koilbbl/d: thousand barrels per day; Moilbbl: million barrels;
    Moilbbl/d: million barrels per day; Goilbbl: billion barrels
    """),
}
_POWERS = {"3": "thousand", "6": "million", "9": "billion", "12": "trillion"}
_POWER = re.compile(r"e(3|6|9|12)(?=\D)")
# The second unit of a measure such as 6 ft 2 in, by the first one.
_SMALLER_UNIT = {"mi": "yd", "yd": "ft", "ft": "in", "st": "lb", "lb": "oz", "h": "min"}
_NUMBER = re.compile(r"[-−–+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
# The "disp" options that show both the number and the unit given.
_DISPLAYS = frozenset(("", "b", "br", "comma", "flip", "or", "s", "semicolon", "slash", "sqbr"))


def _unit(code: str) -> str | None:
    power = _POWER.match(code)
    unit = _UNITS.get(code[power.end() :] if power else code)
    return f"{_POWERS[power[1]]} {unit}" if power and unit else unit


def _convert(arguments: Arguments) -> str | None:
    """``{{convert|10|-|20|km|mi}}`` -> 10–20 km: the measure as given, without its conversion."""
    if arguments.get("disp", "") not in _DISPLAYS or arguments.get("adj", "").startswith("pre"):
        return None
    values = [*_numbered(arguments), "", "", ""]
    text = ""
    index = 0
    # Each iteration reads a number and what follows it: a unit, a word like "to", or both.
    while _NUMBER.fullmatch(values[index]):
        text += values[index]
        index += 1
        if values[index] not in _RANGE_WORDS:
            unit = _unit(values[index])
            if unit is None:
                return None
            text += f" {unit}"
            index += 1
        if values[index] in _RANGE_WORDS:
            text += _RANGE_WORDS[values[index]]
        elif _NUMBER.fullmatch(values[index]) and _SMALLER_UNIT.get(values[index - 1]) == values[index + 1]:
            text += " "
            continue
        else:
            return text
        index += 1
    return None


def _value(arguments: Arguments) -> str | None:
    """``{{val|6.24|0.01|e=18|u=m}}`` -> 6.24 ± 0.01 ×10^18 m."""
    numbers = _numbered(arguments)
    # Not rendered: 1.234(56), where the uncertainty is of the last digits.
    if not arguments.keys() <= {"1", "2", "e", "u", "ul", "fmt"} or not all(map(_NUMBER.fullmatch, numbers)):
        return None
    text = " ± ".join(numbers)
    if power := arguments.get("e"):
        text += f" ×10^{power}"
    return f"{text} {arguments.get('u') or arguments.get('ul') or ''}".strip()


def _as_of(arguments: Arguments) -> str:
    date = _numbered(arguments)[:3]
    if len(date) > 1 and re.fullmatch("0?[1-9]|1[0-2]", date[1]):
        date[1] = calendar.month_name[int(date[1])]
    words = "since" if arguments.get("since") else "as of"
    text = " ".join((words if arguments.get("lc") else words.capitalize(), *reversed(date)))
    return arguments.get("alt") or text


def _formatted_number(arguments: Arguments) -> str:
    """``{{formatnum:1234567}}`` -> 1,234,567."""
    whole, point, decimals = arguments.get("1", "").strip().partition(".")
    return (f"{int(whole):,}" if re.fullmatch(r"[1-9]\d{3,30}", whole) else whole) + point + decimals


def _list(arguments: Arguments) -> str:
    return "".join(f"\n* {item}" for item in _numbered(arguments)) + "\n"


# What readers see: the first text whose fields are all given, else nothing. A field {a|b} is the first of these
# arguments that is given.
_TEXTS = {
    "nowrap, nobr, nobreak, small, smaller, big, large, abbr, em, strong, sic, num, sup, sub, var, mvar, math, "
    "linktext, nihongo2, sc, smallcaps, vanchor, visible anchor, keypress, key, noitalic, nobold, start date": ["{1}"],
    "quote, blockquote, bquote, cquote, quotation": ["{text|quote|1}"],
    "lang-": ["{text|1}"],  # of any language: lang-fr
    "lang, langx, rtl-lang, script, native name": ["{text|2}"],
    "ill, interlanguage link": ["{lt|1}"],
    "nihongo": ["{1|3|2}"],
    "transl, transliteration": ["{3|2}"],
    "angbr": ["⟨{1}⟩", "⟨⟩"],
    "circa, c.": ["c. {1} – c. {2}", "c. {1}", "c. "],
    "frac, fraction, sfrac": ["{1} {2}/{3}", "{1}/{2}", "1/{1}"],
    # A power of ten, or an exponent: without it the number before it would be wrong.
    "e, x10^": [" ×10^{1}"],
    "10^": ["10^{1}"],
    "esp": ["^{1}"],
    "us$, usd": ["US${1}"],
    "£, gbp, pound sterling": ["£{1}"],
    "€, eur, euro": ["€{1}"],
    "¥, jpy, yen": ["¥{1}"],
    "₹, inr, indian rupee": ["₹{1}"],
    "ndash, en dash, spaced ndash, spnd, snd, –": [" – "],
    "mdash, mdashb, em dash, spaced mdash, —": [" — "],
    "', `, okina, hamza, ayin": ["'"],
    "nbsp, space, spaces": [" "],
    "!, pipe": ["|"],
    "=": ["="],
    # Escaped, because next to italics marks ('') an apostrophe would be read as part of them.
    "'s": ["&#39;s"],
    "' \"": ['&#39;"'],
    "\" '": ['"&#39;'],
}
_FIELD = re.compile(r"\{([^{}]+)\}")


def _fill_in(arguments: Arguments, texts: Iterable[str]) -> str | None:
    for text in texts:
        fields = _FIELD.findall(text)
        values = {field: next(filter(None, map(arguments.get, field.split("|"))), "") for field in fields}
        if all(values.values()):
            return _FIELD.sub(lambda field: values[field[1]], text)  # noqa: B023 - called at once
    return None


_RENDERERS: dict[str, Render] = {
    **{name: functools.partial(_fill_in, texts=texts) for names, texts in _TEXTS.items() for name in names.split(", ")},
    **dict.fromkeys(("convert", "cvt"), _convert),
    **dict.fromkeys(("chem", "chem2"), lambda arguments: "".join(_numbered(arguments))),
    **dict.fromkeys(("ordered list", "bulleted list", "unbulleted list"), _list),
    "music": lambda arguments: {"flat": "♭", "sharp": "♯", "natural": "♮"}.get(arguments.get("1", "").strip()),
    "formatnum": _formatted_number,
    "val": _value,
    "as of": _as_of,
}


def render(content: str) -> str | None:
    """The text of ``{{content}}``, whose inner templates are rendered already; None where nothing is shown."""
    name, *parts = content.split("|")
    function, colon, first = name.partition(":")
    if colon and namespace_key(function) == "formatnum":
        name, parts = function, [first, *parts]
    name = namespace_key(name)
    renderer = _RENDERERS.get("lang-" if name.startswith("lang-") else name)
    return renderer(read_arguments(parts)) if renderer else None
