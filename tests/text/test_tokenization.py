"""The tokenizer against a slow, literal statement of Google's rules, and against Hugging Face's."""

from __future__ import annotations

import random
import re
import string
import sys
import unicodedata
from pathlib import Path

import pytest
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bert_tf.text import wordpiece
from bert_tf.text.basic_tokenizer import Casing, tokenize_words
from bert_tf.text.vocabulary import check_casing, load_pieces
from bert_tf.text.wordpiece import FullTokenizer
from tests.refusals import refused

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = string.ascii_letters + string.digits
PIECES = "un ##aff ##able the ##s ##ing run ab abc ##cd σ ##ς 中".split()
VOCABULARY = SPECIAL + PIECES + list(LETTERS) + ["##" + letter for letter in LETTERS if letter != "s"] + list("!,.[]'")


@pytest.fixture
def vocab_file(tmp_path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return path


# The reference: one character, one rule at a time; no pattern, no cache, no shortcut.

RANGES = "3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF 2F800-2FA1F"
IDEOGRAPHS = [tuple(int(end, 16) for end in ends.split("-")) for ends in RANGES.split()]


def classify(char: str) -> str:
    code_point, category = ord(char), unicodedata.category(char)
    if char in (" ", "\t", "\n", "\r") or category == "Zs":
        return "space"
    if code_point == 0 or code_point == 0xFFFD or category == "Cc" or category == "Cf":
        return "dropped"
    return "ideograph" if any(first <= code_point <= last for first, last in IDEOGRAPHS) else "other"


def is_punctuation(char: str) -> bool:
    if char in "!\"#$%&'()*+,-./" or char in ":;<=>?@" or char in "[\\]^_`" or char in "{|}~":
        return True
    return unicodedata.category(char).startswith("P")


def reference_words(text: str, do_lower_case: bool, strip_accents: bool | None = None) -> list[str]:
    strip_accents = do_lower_case if strip_accents is None else strip_accents
    cleaned = ""
    for char in text:
        cleaned += {"space": " ", "ideograph": f" {char} ", "other": char, "dropped": ""}[classify(char)]
    words = []
    for word in cleaned.split():
        if do_lower_case:
            word = word.lower()
        if strip_accents:
            word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
        spaced = "".join(" " + char + " " if is_punctuation(char) else char for char in word)
        words += spaced.split()
    return words


def reference_pieces(word: str, vocab) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces, rest = [], word
    while rest:
        prefix = "##" if pieces else ""
        fitting = [size for size in range(1, len(rest) + 1) if prefix + rest[:size] in vocab]
        if not fitting:
            return ["[UNK]"]
        pieces.append(prefix + rest[: max(fitting)])
        rest = rest[max(fitting) :]
    return pieces


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Strings of words, punctuation, and characters that have a rule of their own."""
    rng = random.Random(seed)
    odd = (
        "\0\t\n\r\x0b\x1c\x7f\x85\xa0\xad\u0130\u00df\u0301\u0345\u0378\u03a3\u03c3\u0660\u1e9e\u180e"
        "\u1fef\u2000\u200b\u2014\u2028\u2029\u202f\u20ac\u212b\u3000\u3042\ue000\uac00\uf900\ufeff"
        "\ufffd\uffff\U0001d7d9\U0001f600\U00020000\U0002f800\U0010fffd"
    )
    alphabets = [LETTERS, string.punctuation, odd, " ", "中文字", "ΑΣΟΔ"]
    texts = []
    for _ in range(count):
        size = rng.choice([1, 3, 10, 60])
        texts.append("".join(rng.choice(rng.choice(alphabets)) for _ in range(size)))
    return texts


@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_random_texts_follow_the_rules(monkeypatch, tmp_path, do_lower_case, strip_accents):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*VOCABULARY, "é", "##é", "É", "강", "##은", "가"]), encoding="utf-8")
    monkeypatch.setattr(wordpiece, "CACHE_WORDS", 3000)
    tokenizer = FullTokenizer(path, do_lower_case, strip_accents)
    for text in [*random_texts(4000), *random_texts(1000), "Éa aé 강은 E\u0301", "가", "Été ΟΔΟΣ, É"]:
        words = reference_words(text, do_lower_case, strip_accents)
        assert tokenize_words(text, Casing(do_lower_case, strip_accents)) == words, repr(text)
        expected = [piece for word in words for piece in reference_pieces(word, tokenizer.vocab)]
        assert tokenizer.tokenize(text) == expected, repr(text)
        assert tokenizer.convert_tokens_to_ids(expected) == tokenizer.tokenize_to_ids(text)
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode_lines([text])[0]) == expected, repr(text)


def all_code_points():
    """Every assigned code point, and every 61st of the 970,000 that are not assigned or for private use."""
    for number, char in enumerate(map(chr, range(sys.maxunicode + 1))):
        if number % 61 == 0 or unicodedata.category(char) not in ("Cn", "Co"):
            yield char


@pytest.mark.slow
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_code_point_follows_the_rules(do_lower_case):
    for char in all_code_points():
        found = tokenize_words(f"a{char}b", Casing.from_flags(do_lower_case))
        assert found == reference_words(f"a{char}b", do_lower_case), hex(ord(char))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unaffable", ["unaffable"]),
        (" \tHeLLo!how  \n Are yoU?  ", ["hello", "!", "how", "are", "you", "?"]),
        ("H\u00c9llo [MASK]", ["hello", "[", "mask", "]"]),
        ("$5+x=~^`|<", ["$", "5", "+", "x", "=", "~", "^", "`", "|", "<"]),
        ("ΟΔΟΣ", ["οδος"]),
        ("ΟΔΟΣ, ΟΔΟΣΑ", ["οδος", ",", "οδοσα"]),
        ("ΟΣ.Α Α.Σ", ["οσ", ".", "α", "α", ".", "ς"]),
        ("İ", ["i"]),
        ("a\ue000b a\u200db a\x1cb a\u2028b", ["a\ue000b", "ab", "ab", "a", "b"]),
        ("中国a人 ひらがな", ["中", "国", "a", "人", "ひらかな"]),
        ("\u1fef\u037e €5 ½", ["`", ";", "€5", "½"]),
        ("\u0301", []),
    ],
)
def test_words_of(text, words):
    assert tokenize_words(text, Casing.from_flags(True)) == words


def test_halves_of_characters_of_utf_16_and_words_of_more_than_200_characters_are_unknown(vocab_file):
    tokenizer = FullTokenizer(vocab_file)
    assert tokenizer.encode_lines(["a\ud83d", "b"])[0].tolist() == [1, VOCABULARY.index("b")]
    assert tokenizer.tokenize("a\ud83d b \ude00.") == ["[UNK]", "b", "[UNK]", "."]
    assert tokenizer.tokenize("a" * 200) == ["a"] + ["##a"] * 199
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"]
    assert tokenizer.tokenize("a" * 150 + "." + "a" * 150).count("[UNK]") == 0


def test_the_cache_is_bounded_in_words_and_in_their_length(vocab_file, monkeypatch):
    monkeypatch.setattr(wordpiece, "CACHE_WORDS", 10)
    tokenizer = FullTokenizer(vocab_file)
    for number in range(1000):
        tokenizer.tokenize_to_ids(f"word{number} {'x' * 100}{number}.")
        assert 0 < len(tokenizer._word_ids) <= 10 and all(len(word) <= 64 for word in tokenizer._word_ids)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lacks [PAD] [UNK] [CLS] [SEP] [MASK]"),
        ("\n".join(VOCABULARY[1:]).encode(), "lacks [PAD]"),
        ("\n".join([*SPECIAL, "a", "b", "a"]).encode(), "has 'a' twice"),
        ("\n".join([*SPECIAL, "é"]).encode("latin-1"), "not UTF-8"),
        ("\n".join(SPECIAL).encode("utf-16"), "is UTF-16, not UTF-8 text; convert it: iconv -f UTF-16"),
    ],
)
def test_a_vocabulary_that_cannot_be_right_is_refused(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    refused(f"{path}.*{re.escape(message)}", load_pieces, path)


def test_a_folder_without_a_vocabulary_file_has_another(tmp_path):
    """As transformers 5 writes it; to make a vocabulary would give the model's pieces other ids."""
    refused("vocab.txt does not exist; name .* create_vocab$", load_pieces, tmp_path / "vocab.txt")
    (tmp_path / "tokenizer.json").write_text("{}")
    refused(f"exist; name {tmp_path}/tokenizer.json$", load_pieces, tmp_path / "vocab.txt")


def test_only_line_ends_and_a_byte_order_mark_are_no_part_of_tokens(tmp_path):
    """As in transformers: Google's Chinese vocabulary has U+2028 on a line, others have a no-break space."""
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(VOCABULARY).encode() + b"\r\n")
    assert list(load_pieces(path)) == VOCABULARY
    path.write_bytes("\n".join([*SPECIAL, "\u2028", "", "\u00a0", "a", "\r", "", "‰", "##\u2028"]).encode() + b"\r\n")
    assert load_pieces(path) == (*SPECIAL, "\u2028", "", "\u00a0", "a", "", "", "‰", "##\u2028")
    tokenizer = FullTokenizer(path)
    assert tokenizer.tokenize_to_ids("‰") == [11] and tokenizer.vocab_size == 13
    assert "" not in tokenizer.vocab and tokenizer.vocab["\u2028"] == 5
    assert tokenizer.files()["vocab.txt"].split("\n") == [*load_pieces(path), ""]
    path.write_text("\n".join([*SPECIAL, "a\t7"]))
    assert FullTokenizer(path).vocab_size == 6


@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_spans_are_the_characters_that_tokens_stand_for(vocab_file, do_lower_case, strip_accents):
    tokenizer = FullTokenizer(vocab_file, do_lower_case, strip_accents)
    for text in random_texts(4000, seed=4):
        ids, starts, ends = tokenizer.tokenize_with_spans(text)
        assert ids == tokenizer.tokenize_to_ids(text), repr(text)
        assert all(0 <= start < end <= len(text) for start, end in zip(starts, ends)), repr(text)
        assert starts == sorted(starts) and ends == sorted(ends), repr(text)
        for token_id, start, end in zip(ids, starts, ends):
            piece = tokenizer.inv_vocab[token_id].removeprefix("##")
            own = "".join(reference_words(text[start:end], do_lower_case, strip_accents))
            # A sigma's form depends on what follows; one capital may become two letters, which are two tokens.
            assert piece == "[UNK]" or own.replace("ς", "σ").startswith(piece.replace("ς", "σ")) or "İ" in text, text


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Abc  réab\u0301c", ["A", "b", "c", "r", "é", "a", "b\u0301", "c"]),
        ("中\u200b中,x", ["中", "中", ",", "x"]),
        ("a\u200bb zz☃z. ab", ["a\u200bb", "zz☃z", ".", "ab"]),
        ("\u0301 a \u0301", ["a"]),
        ("中\u0301\u0301 \u0301, a\t\u0301b", ["中\u0301\u0301", ",", "a", "b"]),
    ],
)
def test_spans_by_hand(tmp_path, text, spans):
    path = tmp_path / "vocab.txt"
    ab = [] if text.startswith("Abc") else ["ab"]
    path.write_text("\n".join([*SPECIAL, *"abcrex中,.", *("##" + c for c in "bcea"), *ab]), encoding="utf-8")
    _, starts, ends = FullTokenizer(path).tokenize_with_spans(text)
    assert [text[start:end] for start, end in zip(starts, ends)] == spans


# Hugging Face's `tokenizers` follows the same rules, but
# - drops private-use and unassigned characters (category Co, Cn), which Google's code keeps;
# - lower-cases character by character, so that a final sigma becomes σ, not ς;
# - carries the tables of an older Unicode version than Python.


def was_settled_early(char: str) -> bool:
    category = unicodedata.ucd_3_2_0.category(char)
    return category == unicodedata.category(char) and category not in ("Co", "Cn", "Cs")


@pytest.mark.slow
def test_hugging_face_agrees_on_every_code_point_that_its_unicode_knows():
    normalizer, splitter = BertNormalizer(), BertPreTokenizer()
    num_compared = 0
    for char in map(chr, range(sys.maxunicode + 1)):
        if was_settled_early(char):
            text = f"a{char}b"
            theirs = splitter.pre_tokenize_str(normalizer.normalize_str(text))
            assert [word for word, _ in theirs] == tokenize_words(text, Casing.from_flags(True)), hex(ord(char))
            num_compared += 1
    assert num_compared > 90_000
    assert tokenize_words("a\ue000b", Casing.from_flags(True)) == ["a\ue000b"]
    assert normalizer.normalize_str("a\ue000b") == "ab"
    assert normalizer.normalize_str("ΟΔΟΣ") == "οδοσ"


def test_casing_that_contradicts_the_vocabulary_is_refused():
    special, cased, uncased = ["[CLS]", "[unused1]"], Casing(False, False), Casing(True, True)
    check_casing([*special, "cat", "##s"], uncased, "v")
    check_casing([*special, "cat", "Cat"], cased, "v")
    check_casing([*special, "猫"], cased, "v")  # no letters with case at all
    check_casing([*special, "강은", "북쪽", "##에", "km"], cased, "v")
    check_casing([*special, "canción", "año"], Casing(True, False), "v")
    refused("1 pieces such as 'Cat'.*pass --do_lower_case=0", check_casing, [*special, "cat", "Cat"], uncased, "v")
    refused("pass --do_lower_case=1 with an uncased model", check_casing, [*special, "cat"], cased, "v")
    for pieces in (["강은", "북쪽"], ["गाँव", "में"], ["canción", "la"]):
        refused("--strip_accents=0 for accents", check_casing, [*special, *pieces], uncased, "v")
