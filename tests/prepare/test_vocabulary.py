"""Vocabularies made from text: WordPiece with large alphabets, SentencePiece, and Chinese from end to end."""

import random
from pathlib import Path

import numpy as np
import pytest

from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.token_set import TokenSet
from bert_tf.prepare.instances import vocabulary
from bert_tf.records.token_file import TokenFile
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.tokenizer import open_tokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS, guess_casing, load_pieces
from bert_tf.text.wordpiece import FullTokenizer
from tests import preparation
from tests.preparation import SHARDS, token_files
from tests.preparation import run as prep
from tests.refusals import refused

UNCASED, CASED = Casing.from_flags(True), Casing.from_flags(False)
CHINESE = """
清晨的集市上已经有很多人。卖菜的老人把新鲜的白菜和萝卜摆在地上。孩子们在旁边追逐一只小黄狗。“慢一点！”母亲喊道。

这座城市建在两条河之间。春天的时候，河水会涨得很高。人们用石头修了一道长长的堤。从那以后，洪水再也没有进过城。

图书馆在山脚下。里面有三万多册书，其中一半是关于历史的。每个星期六，学生们来这里读书、写字。你喜欢哪一本书？
"""


def originals(folder: Path, vocab) -> list[str]:
    """The tokens of all training shards."""
    names = list(vocab)
    paths = sorted((folder / "training").glob("*.tokens"))
    return [names[token] for path in paths for token in TokenFile(path).text().token_ids.tolist()]


def test_chinese_from_text_to_token_files(tmp_path):
    preparation.shard(tmp_path, CHINESE.strip().split("\n\n"), *SHARDS)
    texts = [path.read_text(encoding="utf-8") for path in tmp_path.glob("sharded/custom/*/*.txt")]
    sentences = [line for text in texts for line in text.split("\n") if line]
    assert len(sentences) == 13 and "“慢一点！”" in sentences and "你喜欢哪一本书？" in sentences
    prep(tmp_path, "create_vocab", "--vocab_size", 600)
    made = {path: path.read_bytes() for path in tmp_path.glob("vocab/custom/[!.]*")}
    for path in made.keys() - {tmp_path / "vocab/custom/vocab.txt"}:
        path.unlink()  # as a kill leaves it behind the vocabulary
    prep(tmp_path, "create_vocab", "--vocab_size", 600)
    assert {path: path.read_bytes() for path in made} == made
    prep(tmp_path, "create_token_files")
    folder, manifest = token_files(tmp_path)
    assert manifest["counts"]["unknown_share"] == 0
    vocab = load_pieces(folder / "vocab.txt")
    characters = {character for character in CHINESE if not character.isspace()}
    assert characters < set(vocab)
    assert not [token for token in vocab if token.startswith("##") and token[2].isalnum()], "a character is a word"
    tokens = originals(folder, vocab)
    assert {token for token in tokens if token not in SPECIAL_TOKENS} <= characters
    assert FullTokenizer(folder / "vocab.txt").tokenize("山下了。") == ["山", "下", "了", "。"]


def test_more_characters_than_latin_has_are_kept_unless_they_are_rare(tmp_path, monkeypatch):
    ideographs = [chr(0x4E00 + number) for number in range(1500)]
    rng = random.Random(0)
    documents = ["".join(rng.choices(ideographs, k=200)) for _ in range(100)] + ["a b " * 50]
    text = preparation.write(tmp_path / "text.txt", "\n".join(documents) + "\n")
    pieces = vocabulary.train_vocabulary([text], 2000, UNCASED)
    assert set("".join(documents).replace(" ", "")) < set(pieces)
    assert [piece for piece in pieces if piece.startswith("##")] == ["##a", "##b"]
    # In a longer text a thousandth is what a millionth is in Wikipedia.
    monkeypatch.setattr(vocabulary, "RARE_SHARE", 1e-3)
    monkeypatch.setattr(vocabulary, "MAX_ALPHABET", 10)
    few = vocabulary.train_vocabulary([text], 2000, UNCASED)
    assert 10 < len(few) < 500


WORDS = "the a river flows into sea from mountain and town where people live by trade flowing rivers seas".split()


@pytest.mark.slow
def test_sentencepiece_from_text_to_token_files(tmp_path):
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=rng.randrange(4, 12))).capitalize() + "." for _ in range(400)]
    preparation.shard(tmp_path, [" ".join(sentences[first : first + 8]) for first in range(0, 400, 8)], *SHARDS)
    own, (text,) = tmp_path / "vocab/own.model", tmp_path.glob("formatted_one_article_per_line/*.txt")
    prep(tmp_path, "create_vocab", "--vocab_size", 60, "--vocab_file", own)
    assert vocabulary.train_sentencepiece([text], 60, UNCASED) == own.read_bytes()
    refused("vocab_size=10.*SentencePiece refuses", vocabulary.train_sentencepiece, [text], 10, UNCASED)
    prep(tmp_path, "create_token_files", "--vocab_file", own)
    folder, manifest = token_files(tmp_path)
    assert (folder / "vocab.model").read_bytes() == own.read_bytes()
    vocab = load_pieces(folder / "vocab.txt")
    assert vocab == open_tokenizer(own).inv_vocab and manifest["vocab"]["size"] == len(vocab) <= 60
    assert vocab[:5] == SPECIAL_TOKENS and manifest["counts"]["unknown_share"] == 0
    tokens = "".join(originals(folder, vocab)).replace("▁", " ")
    assert " the river" in tokens and "##" not in tokens
    data = TokenSet(str(folder / "training"), "input_files", 32, MaskingRules(0.15, 5, True))
    assert data.vocab_size == len(vocab)
    assert data.features(data.ranges_in_file_order(0, 9), 1)["input_ids"].shape == (9, 32)
    starts = ~data.masker.ids.continues_word
    assert all(starts[number] for number, token in enumerate(vocab) if token.startswith("▁"))
    assert np.count_nonzero(~starts) > 5
    assert {"vocab.txt", "tokenizer.json"} <= data.tokenizer_files().keys(), "which are stored with the weights"


def test_sentencepiece_learns_of_long_sentences(tmp_path, capsys):
    """Of text without stops a paragraph is a sentence; the library's default leaves out 4,192 bytes."""
    (tmp_path / "a.txt").write_text(("ประเทศไทยมีแม่น้ำ" * 200 + "\n") * 3, encoding="utf-8")
    model = tmp_path / "own.model"
    model.write_bytes(vocabulary.train_sentencepiece([tmp_path / "a.txt"], 60, CASED))
    assert any(len(piece) > 3 and "ไทย" in piece for piece in open_tokenizer(model).inv_vocab)
    assert "training the vocabulary (seconds" in capsys.readouterr().out


def test_a_word_includes_its_vowel_signs():
    assert vocabulary._WORD.findall("ภูเขาน้ำ คน, हिन्दी 中x") == ["ภูเขาน้ำ", "คน", "हिन्दी", "x"]


def test_words_beyond_what_memory_allows_are_the_rare_ones(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    rare = [f"zq{chr(97 + n % 26)}{chr(97 + n // 26)}x" for n in range(400)]
    path.write_text("".join(f"often seen {word}, 今天 here.\n" for word in rare))
    whole = vocabulary.train_vocabulary([path], 300, UNCASED)
    monkeypatch.setattr(vocabulary, "MOST_WORDS", 1000)
    assert vocabulary.train_vocabulary([path], 300, UNCASED) == whole, "few words are all looked at"
    monkeypatch.setattr(vocabulary, "MOST_WORDS", 20)
    pieces = vocabulary.train_vocabulary([path], 300, UNCASED)
    assert {"often", "seen", "here", "今", "天", "z"} <= set(pieces)
    assert "##qa" not in pieces and any(piece.startswith("zq") for piece in whole)


@pytest.mark.parametrize("name", ["vocab.txt", "own.model"])
def test_capitals_end_in_the_sigma_that_they_are_tokenized_with(tmp_path, name):
    (tmp_path / "a.txt").write_text("Ο ΠΟΤΑΜΟΣ ΚΑΙ Ο ΑΝΘΡΩΠΟΣ. ΜΙΑ ΟΔΟΣ, ΕΝΑΣ ΛΟΓΟΣ.\n" * 50, encoding="utf-8")
    train = vocabulary.train_sentencepiece if name.endswith("model") else vocabulary.train_vocabulary
    content = train([tmp_path / "a.txt"], 60, UNCASED)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else "\n".join(content).encode())
    pieces = open_tokenizer(tmp_path / name).tokenize("ΠΟΤΑΜΟΣ, ΟΔΟΣ")
    assert "[UNK]" not in pieces and pieces[-1].endswith("ς")


def test_casing_of_a_vocabulary_shows_in_its_capitals():
    assert guess_casing(["[CLS]", "a", "##b", "42"]) == (True, True)
    assert guess_casing([*map(str, range(200)), "A"]) == (True, True)  # a stray one
    assert guess_casing(["[CLS]", "a", "Anna", "Rome"]) == (False, False)
    assert guess_casing(["la", "canción", "año"]) == (True, False)
    assert guess_casing(["강은", "##은", "북쪽", "a"]) == (True, False)  # NFD would break syllables into letters
    assert guess_casing(["गाँव", "में", "है"]) == (True, False)  # and take vowel signs away
    assert guess_casing(["中", "国", "a", "##b"]) == (True, True)


@pytest.mark.parametrize("name", ["vocab.txt", "own.model"])
def test_words_that_are_no_language_are_left_out(tmp_path, name):
    english = "the river flows into the sea and the sea is deep. " * 20
    words = ["ACGT" * 75_000, "aGVsbG8+d29y/bGQ=" * 100, "ж" * 1001]
    texts = {"with.txt": " ".join([english, *words, english]), "without.txt": " ".join([english, english])}
    kept = "今天天气好。" * 300 + " " + "й" * 1000
    counts = {}
    for file, text in texts.items():
        (tmp_path / file).write_text(f"{text} {kept}\n", encoding="utf-8")
        lines = [tmp_path / file]
        train = vocabulary.train_sentencepiece if name.endswith("model") else vocabulary.train_vocabulary
        counts[file] = train(lines, 80, UNCASED)
    if not name.endswith("model"):
        assert counts["with.txt"] == counts["without.txt"] and {"и", "今"} <= {*counts["with.txt"]}


@pytest.mark.parametrize("vocab_size,is_said", [(1200, True), (40, False)])
def test_a_text_too_small_for_the_vocabulary_says_so(tmp_path, capsys, vocab_size, is_said):
    text = "the river flows into the sea and the sea is deep. " * 20
    preparation.shard(tmp_path, [text, text + "Or not."], "--n_training_shards", 1, "--n_test_shards", 1)
    prep(tmp_path, "create_vocab", "--vocab_size", vocab_size)
    size = len(load_pieces(tmp_path / "vocab/custom/vocab.txt"))
    warning = f"warning: vocab_size={vocab_size}: the text is too small for it and gave only {size:,} pieces"
    assert (warning in capsys.readouterr().err) == is_said and (size < vocab_size) == is_said
