"""SentencePiece models give the ids of their own library, and the characters that each token stands for."""

import sys
import unicodedata

import pytest
import sentencepiece
import tokenizers

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.export import tokenizer_files
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.sentencepiece import parse_model, with_exact_sums
from bert_tf.text.tokenizer import CasingFlags, StoredTokenizer, open_stored, open_tokenizer, open_vocab_file
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.wordpiece import FullTokenizer
from tests.refusals import refused
from tests.sentencepiece_models import SCRIPTS, write_model

TEXTS = [
    *SCRIPTS,
    *(unicodedata.normalize(form, text) for text in SCRIPTS for form in ("NFD", "NFKC", "NFKD")),
    "The river flows.... into........ the sea; ",
    "",
    "  ",
    "aaaaaaa the theriver --- ((a)) <num> ½",
]
SYLLABLES = unicodedata.normalize("NFD", "한국")
KINDS = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "unigram_bytes": {"byte_fallback": True, "character_coverage": 0.98},
    "bpe_bytes": {"model_type": "bpe", "byte_fallback": True, "character_coverage": 0.98},
    "user_defined": {"user_defined_symbols": ["(", ")", "<num>", "the"]},
    "case_folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "identity": {"normalization_rule_name": "identity"},
    "all_spaces": {"remove_extra_whitespaces": False},
    "no_prefix": {"add_dummy_prefix": False},
    "over_spaces": {"split_by_whitespace": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def opened(folder, kind="unigram", casing=Casing(True, True)):  # noqa: B008
    """A tokenizer and the library's model."""
    path = write_model(folder / f"{kind}.model", **KINDS[kind])
    if "bpe" not in kind:
        path.write_bytes(with_exact_sums(path.read_bytes()))
    library = sentencepiece.SentencePieceProcessor()
    library.LoadFromSerializedProto(path.read_bytes())
    return open_tokenizer(path, *casing), library


@pytest.mark.parametrize("casing", [Casing(True, True), Casing(True, False), Casing(False, False)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library(folder, kind, casing):
    tokenizer, library = opened(folder, kind, casing)
    for text in TEXTS:
        expected = library.encode(casing.apply(text))
        assert tokenizer.tokenize_to_ids(text) == expected, repr(text)
        assert tokenizer.tokenize_lines(f"{text}\n".encode()).ids.tolist() == expected, repr(text)


def test_a_user_defined_piece_wins_as_in_the_library(tmp_path):
    """With these scores "town" + "o" + "f" costs 3.0, and "t" + "o" + "w" + "nof" 3.1, but for what "nof" is worth."""
    path = write_model(tmp_path / "x.model", user_defined_symbols=["nof"])
    model = parse_model(path.read_bytes())
    scores = {"▁town": -1, "o": -1, "f": -1, "▁": -1, "t": -1, "w": -0.1}
    for piece in model.pieces:
        piece.score = scores.get(piece.piece, -5)
    path.write_bytes(model.SerializeToString())
    expected = sentencepiece.SentencePieceProcessor(model_file=str(path)).encode("townof", out_type=str)
    assert open_tokenizer(path).tokenize("townof") == expected == ["▁", "t", "o", "w", "nof"]


@pytest.mark.parametrize("kind", ["unigram", "bpe_bytes", "user_defined"])
def test_what_is_exported_gives_the_same_ids_and_is_read_back(folder, tmp_path, kind):
    tokenizer, _ = opened(folder, kind)
    files = tokenizer_files(tokenizer, BertConfig.preset("tiny", 128))
    theirs = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    again, assumed = open_stored(StoredTokenizer(tmp_path, is_hugging_face=True))
    assert assumed == "" and again.files() == tokenizer.files()
    for text in TEXTS:
        ids = tokenizer.tokenize_to_ids(text)
        assert theirs.encode(text, add_special_tokens=False).ids == again.tokenize_to_ids(text) == ids
    assert theirs.encode("the sea", "a town").type_ids[-1] == 1
    assert theirs.decode(theirs.encode("the river flows").ids) == "the river flows"


@pytest.mark.parametrize("casing", [Casing(True, True), Casing(False, False)], ids=str)
@pytest.mark.parametrize("kind", ["unigram", "bpe", "user_defined", "bpe_bytes"])
def test_the_characters_of_a_token_become_its_piece(folder, kind, casing):
    tokenizer, library = opened(folder, kind, casing)
    for text in TEXTS:
        ids, starts, ends = tokenizer.tokenize_with_spans(text)
        assert ids == tokenizer.tokenize_to_ids(text)
        assert starts == sorted(starts) and ends == sorted(ends) and all(map(int.__lt__, starts, ends)), repr(text)
        for token_id, start, end in zip(ids, starts, ends):
            piece = tokenizer.inv_vocab[token_id].lstrip("▁")
            own = library.normalize(casing.apply(text[start:end])).lstrip("▁")
            # Of what one character becomes, a token may be a part; a sigma's form depends on what follows.
            assert piece in ("[UNK]", own) or piece in own or piece.startswith("<0x") or "Σ" in text, (text, own)


@pytest.mark.parametrize(
    ("text", "casing", "spans"),
    [
        ("  The  sea", Casing(True, True), ["The", "sea"]),
        # A ▁ by itself has the first character of its word.
        ("中文 中文", Casing(True, True), ["中", "中", "文", "中", "中", "文"]),
        ("the e\u0301", Casing(True, True), ["the", "e", "e\u0301"]),
        ("the ｶﾞｷﾞ", Casing(False, False), ["the", "ｶ", "ｶﾞ", "ｷﾞ"]),
        (f"the {SYLLABLES}", Casing(False, False), ["the", SYLLABLES[0], SYLLABLES[:3], SYLLABLES[3:]]),
        ("the\u200bsea", Casing(True, True), ["the", "sea"]),
        ("½", Casing(False, False), ["½", "½", "½"]),
    ],
)
def test_characters_by_hand(folder, text, casing, spans):
    tokenizer, _ = opened(folder, "unigram", casing)
    _, starts, ends = tokenizer.tokenize_with_spans(text)
    assert [text[start:end] for start, end in zip(starts, ends)] == spans


def test_the_interface_and_the_special_tokens(folder):
    tokenizer = open_tokenizer(
        write_model(folder / "other.model", pad_id=0, unk_id=1, control_symbols=["[CLS]", "[SEP]", "[MASK]", "<other>"])
    )
    assert list(tokenizer.inv_vocab[:6]) == [*SPECIAL_TOKENS, "[unused5]"]
    assert tokenizer.vocab_size == len(tokenizer.inv_vocab) == len(tokenizer.vocab)
    ids, pieces = tokenizer.tokenize_to_ids("the river flows\n"), tokenizer.tokenize("the river flows\n")
    assert tokenizer.convert_tokens_to_ids(pieces) == ids and "".join(pieces) == "▁the▁river▁flows"
    with pytest.raises(KeyError):
        tokenizer.convert_tokens_to_ids(["missing"])
    assert tokenizer.tokenize_lines(b"the river flows\n\nthe\n").sizes.tolist() == [len(ids), 0, 1]
    assert tokenizer.encode_lines(["the river\nflows", ""]).sizes.tolist() == [len(ids), 0]
    assert tokenizer.continues_word()[ids].tolist() == [not piece.startswith("▁") for piece in pieces]


def test_special_tokens_in_text_to_pretrain_on_are_text(folder):
    tokenizer, _ = opened(folder)
    for token in (*SPECIAL_TOKENS, "<pad>"):
        ids = tokenizer.tokenize_lines(f"the {token} sea\n".encode()).ids
        assert not set(ids.tolist()) & {0, 2, 3, 4}
    assert "[UNK]" in tokenizer.tokenize("the %")


@pytest.mark.parametrize(
    ("symbols", "special"),
    [
        ({"control_symbols": ["<cls>", "<sep>", "<mask>"]}, ["<cls>", "<sep>", "<mask>"]),  # XLNet
        ({"bos_id": 2, "eos_id": 3, "control_symbols": ["<mask>"]}, ["<s>", "</s>", "<mask>"]),  # RoBERTa's names
        ({"control_symbols": [], "user_defined_symbols": ["[CLS]", "[SEP]", "[MASK]"]}, ["[CLS]", "[SEP]", "[MASK]"]),
        ({"pad_id": -1, "control_symbols": ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]}, ["[CLS]", "[SEP]", "[MASK]"]),
    ],
)
def test_special_tokens_by_other_names(folder, symbols, special):
    path = write_model(folder / "names.model", **{"pad_id": 0, "unk_id": 1, **symbols})
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert open_tokenizer(path).convert_tokens_to_ids(SPECIAL_TOKENS[2:]) == [*map(library.piece_to_id, special)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"control_symbols": []}, r"lacks \[PAD\] \[CLS\] \[SEP\] \[MASK\]; .*create_vocab"),
        ({"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "control_symbols": []}, r"lacks \[MASK\]"),
        ({"model_type": "char"}, "is neither of unigrams nor of BPE .*; train one of unigrams"),
        ({"model_type": "bpe", "user_defined_symbols": ["<num>"]}, "nor of BPE without user-defined and unused pieces"),
        ({"user_defined_symbols": ["½"]}, "changes characters as no tokenizer of .* can .*where it makes '½'"),
        ({"treat_whitespace_as_suffix": True}, "changes characters as no tokenizer"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused(tmp_path, options, message):
    refused(f"x.model.* {message}", open_tokenizer, write_model(tmp_path / "x.model", **options))


def test_a_damaged_model_is_refused(tmp_path):
    path = write_model(tmp_path / "whole.model")
    whole = path.read_bytes()
    for size in range(0, len(whole), 9973):
        (tmp_path / "cut.model").write_bytes(whole[:size])
        refused("cut.model .* SentencePiece model", open_tokenizer, tmp_path / "cut.model")
    mark = "▁".encode()
    (tmp_path / "letter.model").write_bytes(whole.replace(mark, b"\xff" + mark[1:], 1))
    refused("letter.model is no SentencePiece model", open_tokenizer, tmp_path / "letter.model")
    (tmp_path / "text.model").write_text("the\nriver\n")
    refused("text.model is no SentencePiece model", open_tokenizer, tmp_path / "text.model")
    refused("missing.model does not exist; make one by bertPrep", open_tokenizer, tmp_path / "missing.model")


def test_the_casing_of_a_model_that_is_named_is_guessed_from_its_pieces(folder):
    opened(folder)
    tokenizer, assumed = open_vocab_file(folder / "unigram.model", CasingFlags(), is_hugging_face=False)
    assert not tokenizer.do_lower_case and "do_lower_case=0, strip_accents=0 is assumed" in assumed
    for is_hugging_face in (False, True):
        flags = CasingFlags(do_lower_case=False)
        tokenizer, assumed = open_vocab_file(folder / "unigram.model", flags, is_hugging_face)
        assert not assumed
        assert tokenizer.tokenize("the Sea")[0] == "▁the"


def test_a_list_of_pieces_alone_cuts_no_text(folder, tmp_path):
    tokenizer, _ = opened(folder)
    (tmp_path / "vocab.txt").write_text(tokenizer.files()["vocab.txt"], encoding="utf-8")
    said = "lists the pieces of a SentencePiece model.*--vocab_file .*.model; in Python vocab_file="
    refused(said, FullTokenizer, tmp_path / "vocab.txt")
    for is_hugging_face in (True, False):  # weights beside it
        refused(said, open_stored, StoredTokenizer(tmp_path, is_hugging_face))


def test_without_the_library_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    refused("pip install sentencepiece", open_tokenizer, tmp_path / "x.model")
