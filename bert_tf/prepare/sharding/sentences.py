"""Splits running text into sentences by rules: offline, tens of megabytes a second.

A full stop, question or exclamation mark (with closing quotes and brackets after it) ends a
sentence if white space and something that can begin a sentence follow, unless the word before
the stop is an abbreviation, an initial or a list number. Formatted files hold one document per line,
with two spaces between paragraphs; these also end a sentence. Where the user has
given the sentences, a document has a mark (`SENTENCE_END`) after each of them, and is split only there.
"""

from __future__ import annotations

import itertools
import re
from typing import Callable

from bert_tf.base.errors import UserError

Splitter = Callable[[str], list[str]]

PARAGRAPH_SEPARATOR = "  "
# U+001E RECORD SEPARATOR. It is white space, so where it is no mark, formatting has replaced it by a space. The last
# sentence has one, too: it tells a document of a single sentence from running text.
SENTENCE_END = "\x1e"
# Sentence ends of other scripts, after which there may be no space: of Chinese and Japanese, of India, Arabic, Urdu,
# Armenian, Ethiopia, Burmese, Khmer and Santali.
OTHER_STOPS = "。！？｡।॥؟۔։።፧፨။។៕᱾᱿"

# Abbreviations that never end a sentence ("Mr. Smith").
_NEVER_LAST = frozenset(
    """
    mr mrs ms messrs mme mlle dr prof rev fr hon st sts gen col maj capt cpt cmdr lt lieut sgt cpl
    pvt adm gov sen rep pres amb supt insp det mt cf viz vs e.g i.e eg ie ca approx fig figs eq eqs
    sec secs ch chap nos vol vols pp eds dept univ assn ph resp incl esp
    """.split()
)
# Abbreviations only before a number ("No. 5"); otherwise the full stop ends the sentence ("He said no.").
_BEFORE_NUMBER = frozenset("no nr art pt jan feb mar apr jun jul aug sep sept oct nov dec par verse op".split())
# Abbreviations that end a sentence only if the next word is one that often begins sentences (_OPENERS).
_MAYBE_LAST = frozenset(
    """
    inc ltd co corp llc plc jr sr esq etc al bros ave blvd rd km cm mm kg lb lbs oz sq ft hr hrs mi
    a.m p.m u.s u.k u.n b.c a.d calif conn penn mich minn ariz tenn
    """.split()
)
_OPENERS = frozenset(
    """
    the a an this that these those there here it its he she they his her their we our you your i my
    in on at by for from with after before during since until when while where if as although though
    because however therefore thus then also both each all many most some several such other another
    one two three today later early soon once under over between among according despite no not
    what who which why how but and or so yet
    """.split()
)

# Words before which a number of one or two digits with a full stop is an ordinal ("28. August", "2. Dünya Savaşı"), in
# languages that write these words with a capital: German and Turkish.
_AFTER_ORDINAL = frozenset(
    """
    januar jänner februar feber märz april mai juni juli august september oktober november dezember
    jahrhundert jahrhunderts jahrtausend jahrtausends weltkrieg weltkriegs weltkrieges
    ocak şubat mart nisan mayıs haziran temmuz ağustos eylül ekim kasım aralık yüzyıl yüzyılda yüzyılın dünya
    """.split()
)

# The word before a full stop is searched for in this many characters.
_LONGEST_WORD = 40

_QUOTES = "\"'”’»›“‘«‹"  # each closes a quotation in some language: in German “ or «
_CLOSING = "\"'”’»›)\\]}"
_OPENING = "\"'“‘«‹(\\[{¿¡"
# A stop before a lower-case letter ends no sentence, so the pattern does not match it. Patterns that begin
# with a set of characters are several times faster than with alternatives. The look-behind makes a row of
# stops match only from its first one: trying each would take quadratic time. French has a space inside of « and ».
_LATIN_STOP = (
    rf"(?P<stop>[.!?…](?<![.!?…].)[.!?…]*)(?P<closing>(?: »(?= ))?[{_QUOTES}{_CLOSING}]*) "
    rf"(?=(?P<opening>[{_OPENING}]*(?:« )?)(?P<next>[^\sa-z{_OPENING}]\w*))"
)
_STOP = re.compile(_LATIN_STOP)
_ANY_STOP = re.compile(rf"[{OTHER_STOPS}]+[{_CLOSING}」』）]*|{_LATIN_STOP}")
_DASH = re.compile("--|[—–/]")
_WORD_START = re.compile(r"\w+")
_LIST_NUMBER = re.compile(r"\(?(?:\d{1,3}|[a-zA-Z]|[ivxlcIVXLC]{1,5})")


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the stop that `match` found ends the sentence that begins at `start`."""
    stop, closing, opening, following = match.group("stop", "closing", "opening", "next")
    if stop is None:  # the stop is of another script
        return True
    first = following[0]
    if first.islower():
        return False
    if stop != ".":
        return first.isalnum() or bool(opening or closing) or stop[0] in "!?"
    before = text[max(start, match.start() - _LONGEST_WORD) : match.start()]
    last_word = before.rpartition(" ")[2].lstrip("\"'“‘«‹([{")
    if not last_word:
        return True
    if len(before) == len(last_word) and _LIST_NUMBER.fullmatch(last_word):
        return False
    if closing.strip(" " + _QUOTES):
        return True
    if len(last_word) == 1 and last_word.isalpha():
        # An initial ("J. Smith") or the end of a sentence ("vitamin C. It helps").
        return _opens_sentence(following)
    if last_word.isdecimal() and len(last_word) <= 2:
        return _first_word(following) not in _AFTER_ORDINAL
    word = last_word.lower()
    if not word.isalpha():  # a dash separates words, too: "his chief--Mr. Smith"
        word = _DASH.split(word)[-1]
    if word in _BEFORE_NUMBER:
        return not first.isdigit()
    if word in _NEVER_LAST:
        return False
    if word in _MAYBE_LAST or ("." in word and word.replace(".", "").isalpha()):
        return _opens_sentence(following) or bool(opening)
    return True


def _opens_sentence(following: str) -> bool:
    return _first_word(following) in _OPENERS


def _first_word(text: str) -> str:
    """The word that the text begins with, in lower case; "" if it begins with none."""
    word = _WORD_START.match(text)
    return word[0].lower() if word else ""


def _sentence_starts(paragraph: str, stop: re.Pattern[str]) -> list[int]:
    """Where a paragraph's sentences begin: at 0, and after each stop that ends a sentence."""
    starts = [0]
    for match in stop.finditer(paragraph):
        if _ends_sentence(paragraph, starts[-1], match):
            starts.append(match.end())
    return starts


def split_by_rules(text: str) -> list[str]:
    """The sentences of one line of text, in order, without the spaces between them."""
    has_other_stops = not text.isascii() and any(stop in text for stop in OTHER_STOPS)
    stop = _ANY_STOP if has_other_stops else _STOP
    sentences = []
    for paragraph in text.split(PARAGRAPH_SEPARATOR):
        starts = _sentence_starts(paragraph, stop)
        sentences += [paragraph[start:end].strip() for start, end in zip(starts, [*starts[1:], None])]
    return list(filter(None, sentences))


def _nltk_splitter() -> Splitter:
    try:
        import nltk

        nltk.tokenize.sent_tokenize("One. Two.")
    except (ImportError, LookupError):
        raise UserError(
            "segmentation_method=nltk needs the package nltk and its data: pip install nltk, then python3 -m "
            "nltk.downloader punkt_tab; or use --segmentation_method=rules"
        ) from None

    def split(text: str) -> list[str]:
        return list(itertools.chain.from_iterable(map(nltk.tokenize.sent_tokenize, text.split(PARAGRAPH_SEPARATOR))))

    return split


def get_splitter(method: str) -> Splitter:
    """The function that splits a line into sentences: at the user's marks or, where there are none, by the method.

    Raises: UserError where NLTK or its data are missing.
    """
    split = split_by_rules if method == "rules" else _nltk_splitter()
    return lambda text: text.split(SENTENCE_END)[:-1] if text.endswith(SENTENCE_END) else split(text)
