"""Compiled tokenising against Python's, on every kind of text."""

import concurrent.futures
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_tf.base.compiled import compile_code, load_library
from bert_tf.text import chunk_ids, wordpiece
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.wordpiece import FullTokenizer
from tests.compiled import compile_for_test
from tests.text.test_tokenization import VOCABULARY, all_code_points, random_texts


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    return compile_for_test(chunk_ids.SOURCE, tmp_path_factory.mktemp("environment") / "lib/chunk_ids.so")


@pytest.fixture
def tokenizers(tmp_path, compiled, monkeypatch):
    """(compiled, Python's) by do_lower_case."""
    monkeypatch.setattr(wordpiece, "compiled_file", lambda _: compiled)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")

    def both(do_lower_case: bool, vocab: Path = tmp_path / "vocab.txt") -> tuple[FullTokenizer, FullTokenizer]:
        found, expected = (FullTokenizer(vocab, do_lower_case) for _ in range(2))
        assert found._chunk_table is not None
        expected.__dict__["_chunk_table"] = None
        return found, expected

    return both


def assert_equal(found: FullTokenizer, expected: FullTokenizer, text: bytes) -> None:
    for ours, theirs in zip(found.tokenize_lines(text), expected.tokenize_lines(text)):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def encoded(lines: list[str]) -> bytes:
    return "".join(line.replace("\n", " ") + "\n" for line in lines).encode("utf-8", "surrogatepass")


@pytest.mark.slow
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_code_point(tokenizers, do_lower_case):
    found, expected = tokenizers(do_lower_case)
    lines = [f"a{char}b.{char}" for char in all_code_points()]
    for start in range(0, len(lines), 1000):
        assert_equal(found, expected, encoded(lines[start : start + 1000]))
    # Other cuts, where a capital sigma is near.
    assert_equal(found, expected, encoded([f"A{char}\u03a3 \u03a3{char}a" for char in all_code_points()][::9]))


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("max_cached_words", [1, 7, 10000])
def test_random_texts(tokenizers, monkeypatch, do_lower_case, max_cached_words):
    monkeypatch.setattr(wordpiece, "CACHE_WORDS", max_cached_words)
    found, expected = tokenizers(do_lower_case)
    texts = random_texts(1500, seed=3)
    rng = random.Random(4)
    words = [text for text in texts if len(text) < 11]
    lines = texts + [" ".join(rng.choices(words, k=30)) for _ in range(200)]
    lines += [text.replace("\u03a3", "s").replace("\u03a3".lower(), "S") for text in lines]
    for size in (1, 50, len(lines)):
        for start in range(0, min(len(lines), 60 * size), size):
            assert_equal(found, expected, encoded(lines[start : start + size]))


def test_long_and_empty_texts(tokenizers):
    found, expected = tokenizers(True)
    chunks = ["a" * size for size in (1, 63, 64, 65, 199, 200, 201)] + ["中" * 100, "é" * 32, "é" * 33, "\x01" * 70]
    for text in (b"", b"\n", b"\n\n", b" \n", encoded(chunks), encoded([" ".join(chunks)] * 3)):
        assert_equal(found, expected, text)


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("num_pieces", [6, 200])  # with few, most words are unknown
def test_words_of_ascii(tokenizers, tmp_path, do_lower_case, num_pieces):
    rng = random.Random(num_pieces)
    pieces = {"".join(rng.choices("abAB1", k=rng.randint(1, 6))) for _ in range(num_pieces)} | {"a" * 64, "b" * 67}
    pieces |= {f"##{piece}" for piece in rng.sample(sorted(pieces), len(pieces) // 2)} | {"##", "##" + "b" * 63}
    (tmp_path / "pieces.txt").write_text("\n".join([*SPECIAL_TOKENS, *sorted(pieces)]) + "\n")
    found, expected = tokenizers(do_lower_case, tmp_path / "pieces.txt")
    words = ["".join(rng.choices("abAB1", k=rng.choice((1, 2, 3, 5, 8, 20, 63, 64, 65)))) for _ in range(3000)]
    assert_equal(found, expected, encoded([*words, "a" * 64, "a" * 65, "b" * 64, "a##b", "##a", "[UNK]"]))
    ids = found.tokenize_lines(encoded(words)).ids
    assert 0 < np.count_nonzero(ids == 1) < len(ids)


def test_what_is_not_utf_8_is_refused(tokenizers):
    for tokenizer in tokenizers(True):
        for wrong in (b"\xff", b"\xe4\xb8", b"\xc0\xa0", b"\x80", b"\xf5\x80\x80\x80"):
            with pytest.raises(UnicodeDecodeError):
                tokenizer.tokenize_lines(b"abc " + wrong + b" abc\n")


def test_a_chunk_is_computed_once(tokenizers, monkeypatch):
    found, _ = tokenizers(True)
    calls = []
    table = found._chunk_table
    monkeypatch.setattr(table, "_compute_ids", lambda chunk: calls.append(chunk) or found._compute_chunk_ids(chunk))
    for _ in range(2):
        found.tokenize_lines("runs, runs. \u201cruns\u201d (中runs)\n".encode())
    # "runs" is a word of ASCII.
    assert sorted(calls) == sorted(text.encode() for text in [",", ".", "\u201c", "\u201d", "(", ")", "中"])


def test_the_table_is_emptied_when_it_is_full(tokenizers, monkeypatch):
    monkeypatch.setattr(wordpiece, "CACHE_WORDS", 2)
    found, expected = tokenizers(False)
    for number in range(300):
        assert_equal(found, expected, f"word{number} {'x' * 50}{number}.\n".encode())
        _, entries = found._chunk_table._chunks.arrays
        assert 0 < entries[1] <= 8 and 2 < entries[0] <= len(entries) == 96


def test_threads_share_a_table(tokenizers, monkeypatch):
    monkeypatch.setattr(wordpiece, "CACHE_WORDS", 5)
    found, expected = tokenizers(True)
    texts = [encoded(random_texts(60, seed)) for seed in range(4)]
    wanted = [expected.tokenize_lines(text) for text in texts]

    def is_right(number: int) -> bool:
        return all(map(np.array_equal, found.tokenize_lines(texts[number]), wanted[number]))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            assert all(threads.map(is_right, 10 * [0, 1, 2, 3]))
    finally:
        sys.setswitchinterval(interval)


def test_python_takes_over(tmp_path, monkeypatch, compiled):
    (tmp_path / "damaged.so").write_bytes(compiled.read_bytes()[:100])
    assert load_library(tmp_path / "damaged.so") is None
    assert load_library(tmp_path / "missing.so") is None
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    tokenizer = FullTokenizer(tmp_path / "vocab.txt")
    assert tokenizer._chunk_table is None
    assert tokenizer.convert_ids_to_tokens(tokenizer.tokenize_lines(b"runs\n").ids) == ["run", "##s"]


def test_a_compiler_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(OSError):
        compile_code(chunk_ids.SOURCE, tmp_path / "lib" / "x.so")
    assert list((tmp_path / "lib").iterdir()) == []
