"""Hugging Face's tokenizers: as we export them, they give our ids; those of others give the ids of transformers.

The expected tokens are those of transformers 4.57 and 5.24 (AutoTokenizer) for the same folders.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.export import tokenizer_files
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.hugging_face import SPECIAL_FIELDS, HuggingFaceTokenizer, open_json, wordpiece_pipeline
from bert_tf.text.tokenizer import CasingFlags, StoredTokenizer, open_stored
from bert_tf.text.vocabulary import SPECIAL_TOKENS, ids_by_piece, load_pieces
from bert_tf.text.wordpiece import MAX_WORD_CHARS, FullTokenizer
from tests.exported import CASED_VOCAB, VOCAB
from tests.refusals import refused

HARD = [
    "",
    "   ",
    "The river flows into the SEA.",
    "Unaffable café CAFÉ cafe\u0301 résumé naïve",
    "中文and kana のの, ſtraße STRASSE İstanbul",
    "tab\there\r\nline\u2028sep\u00a0nbsp\u3000wide\u200bzero\u00adsoft\x00nul\x7fdel\x1b[0m\ufffdbad\ufeffbom",
    "it's $5.00 -- <b>^_^</b> [x] `a|b~c` {n}",
    "a" * (MAX_WORD_CHARS - 1) + " " + "a" * MAX_WORD_CHARS + " " + "a" * (MAX_WORD_CHARS + 1),
    "b" * 150,  # more than the 100 characters at which Hugging Face stops by default
    "«quotes» „low“ …dots… ‽ ¿?",
    "☃ 😀 unknown",
    "д й ё Ё",
    "1234567890 3.14159 1,000,000",
    "한국어 and ไทย",
]


@pytest.mark.parametrize(("vocab", "do_lower_case"), [(VOCAB, True), (CASED_VOCAB, False)])
def test_hard_texts(tmp_path, vocab, do_lower_case):
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(vocab) + "\n", encoding="utf-8")
    ours = FullTokenizer(file, do_lower_case)
    theirs = tokenizers.Tokenizer.from_str(tokenizer_files(ours, BertConfig.preset("tiny", 512))["tokenizer.json"])
    for text in HARD:
        assert theirs.encode(text, add_special_tokens=False).ids == ours.tokenize_to_ids(text), repr(text)


def test_what_it_adds():
    tokenizer = wordpiece_pipeline(ids_by_piece(VOCAB), Casing.from_flags(True))
    encoded = tokenizer.encode("The river", "flows")
    assert encoded.tokens == ["[CLS]", "the", "river", "[SEP]", "flows", "[SEP]"]
    assert encoded.type_ids == [0, 0, 0, 0, 1, 1]
    assert tokenizer.encode("the [MASK].").tokens == ["[CLS]", "the", "[MASK]", ".", "[SEP]"]
    assert tokenizer.decode(tokenizer.encode("unaffable").ids) == "unaffable"
    assert tokenizer.get_vocab_size() == len(VOCAB), "no token is added"


def reason_to_differ(line: str, do_lower_case: bool) -> str | None:
    """The rule of Hugging Face's by which a line may get other ids; docs/fine_tuning.md lists them."""
    if do_lower_case and "Σ" in line:
        return "a capital sigma at a word's end becomes σ, not ς"
    if re.search("|".join(map(re.escape, SPECIAL_TOKENS)), line):
        return "the name of a special token in a text is that token"
    if any(unicodedata.category(char) in ("Co", "Cn") for char in line):
        return "private-use characters are dropped"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_real_text(do_lower_case):
    folder = os.environ.get("BERT_TF_REAL_DATA")
    if not folder:
        pytest.skip("BERT_TF_REAL_DATA names no folder with texts")
    file = Path(folder) / "uncased_vocab.txt"
    ours = FullTokenizer(file, do_lower_case)
    theirs = wordpiece_pipeline(ids_by_piece(load_pieces(file)), ours.casing, MAX_WORD_CHARS)
    for path in sorted([*Path(folder).glob("*.t*"), *Path(folder).glob("books/*.txt")]):
        lines = path.read_text(encoding="latin-1" if "latin1" in path.name else "utf-8").splitlines()[::5]
        for line, encoded in zip(lines, theirs.encode_batch(lines, add_special_tokens=False)):
            assert encoded.ids == ours.tokenize_to_ids(line) or reason_to_differ(line, do_lower_case), (path, line)


def test_words_get_ids_by_themselves_only_where_these_are_the_same():
    """They are kept for the next line that has them."""
    lines = [*HARD, "the [MASK]. unaffable [SEP]the", " ".join(HARD)]
    for name, splits in ((None, True), ("the river", False), ("[X]", True), (pre_tokenizers.Metaspace(), False)):
        pipeline = wordpiece_pipeline(ids_by_piece(VOCAB), Casing.from_flags(True))
        if isinstance(name, str):
            pipeline.add_tokens([name])
        elif name:
            pipeline.pre_tokenizer = name
        tokenizer = HuggingFaceTokenizer(pipeline, "it")
        expected = [encoded.ids for encoded in pipeline.encode_batch(lines, add_special_tokens=False)]
        for _ in range(2):
            ids, sizes = tokenizer.encode_lines(lines)
            assert [part.tolist() for part in np.split(ids, np.cumsum(sizes)[:-1])] == expected
        assert bool(tokenizer._word_ids) == splits


SPANISH = "la el una canción cancion año ano compañera esta está es bonita , . ñ n o é e Compañera"
KOREAN = "강은 북쪽 ##에 있다 . km"
TEXT = "La canción es BONITA. El año."


def folder_with(tmp_path, pieces, settings=None, pipeline=None):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*SPECIAL_TOKENS, *pieces.split()]))
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if pipeline is not None:
        pipeline.save(str(tmp_path / "tokenizer.json"))
    return StoredTokenizer(tmp_path, is_hugging_face=True)


def pipeline_of(pieces, casing=(True, True)):
    return wordpiece_pipeline(ids_by_piece([*SPECIAL_TOKENS, *pieces.split()]), Casing(*casing))


@pytest.mark.parametrize(
    ("pieces", "settings", "text", "expected"),
    [
        (SPANISH, {"do_lower_case": True, "strip_accents": False}, TEXT, "la canción es bonita . el año ."),
        (SPANISH, {"do_lower_case": True}, TEXT, "la cancion es bonita . el ano ."),
        (SPANISH, {"do_lower_case": False}, TEXT, "[UNK] canción es [UNK] . [UNK] año ."),
        (SPANISH, {"do_lower_case": False, "strip_accents": True}, TEXT, "[UNK] cancion es [UNK] . [UNK] ano ."),
        (KOREAN, {"do_lower_case": False}, "강은 북쪽에 있다.", "강은 북쪽 ##에 있다 ."),
        (KOREAN, {"do_lower_case": True}, "강은 북쪽에 있다.", "[UNK] [UNK] [UNK] ."),
        # Nothing is said: transformers breaks Hangul up; here the vocabulary decides.
        (KOREAN, None, "강은 북쪽에 있다. KM", "강은 북쪽 ##에 있다 . km"),
        ("la el e", {"strip_accents": False}, "LA É", "la [UNK]"),
        ("東京 ##京 東 京", {"tokenize_chinese_chars": False}, "東京", "東京"),
        ("東京 ##京 東 京", {"tokenize_chinese_chars": True}, "東京", "東 京"),
    ],
)
def test_what_a_vocabulary_and_its_settings_mean(tmp_path, pieces, settings, text, expected):
    tokenizer, assumed = open_stored(folder_with(tmp_path, pieces, settings))
    assert tokenizer.tokenize(text) == expected.split()
    assert tokenizer.encode_lines([text, ""])[0].tolist() == tokenizer.tokenize_to_ids(text)
    assert tokenizer.tokenize_lines(f"{text}\n\n".encode()).sizes.tolist() == [len(expected.split()), 0]
    assert bool(assumed) == ("do_lower_case" not in (settings or {}))


def test_a_tokenizer_json_is_the_tokenizer(tmp_path):
    """Normalizers and pre-tokenizers that are not BERT's, no markers around texts; its own files open it again."""
    vocab = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *SPANISH.split(), "e-mail", "u.s.", "[A]"])}
    pipeline = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    pipeline.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.add_special_tokens([*SPECIAL_TOKENS, "[A]"])
    pipeline.enable_truncation(2)
    pipeline.save(str(tmp_path / "tokenizer.json"))
    text = "Cancio\u0301n E-mail [A] u.s. año, [SEP]"
    tokenizer, _ = open_stored(StoredTokenizer(tmp_path))
    for _ in range(2):
        assert tokenizer.tokenize(text) == ["canción", "e-mail", "[A]", "u.s.", "[UNK]", "[SEP]"]
        ids, starts, ends = tokenizer.tokenize_with_spans(text)
        assert ids == tokenizer.tokenize_to_ids(text) and tokenizer.casing == (True, False)
        assert [text[start:end] for start, end in zip(starts, ends)] == text.split()
        for name, content in tokenizer.files().items():
            (tmp_path / name).write_text(content, encoding="utf-8")
        tokenizer, _ = open_stored(StoredTokenizer(tmp_path))
    ids, _ = tokenizer.tokenize_lines(b"el [SEP] [A]\n")
    assert tokenizer.convert_ids_to_tokens(ids) == ["el", "[UNK]", "[UNK]", "[A]"], "in text to pre-train on"
    theirs = tokenizers.Tokenizer.from_str(tokenizer.files()["tokenizer.json"])
    assert theirs.encode("el").tokens == ["[CLS]", "el", "[SEP]"], "BERT's markers, where it has none"
    said = "--do_lower_case=0: .*tokenizer.json says that its text has do_lower_case=1"
    refused(said, open_stored, StoredTokenizer(tmp_path), CasingFlags(False))
    lines = (tmp_path / "vocab.txt").read_text().split("\n")
    (tmp_path / "vocab.txt").write_text("\n".join([*lines[:6], "otro", *lines[7:]]))
    said = "vocab.txt, line 7: 'otro' has id 6, which tokenizer.json .* gives to 'el'"
    refused(said, open_stored, StoredTokenizer(tmp_path))


def test_names_of_bert_s_own_class_in_other_models(tmp_path):
    """transformers 5.24: ElectraTokenizer and others are BertTokenizer, DistilBertTokenizer is a subclass of it."""
    for model in ("Bert", "ConvBert", "DistilBert", "Electra", "LayoutLM", "Lxmert", "MobileBert", "SqueezeBert"):
        for name in (f"{model}Tokenizer", f"{model}TokenizerFast"):
            stored = folder_with(tmp_path, "the river", {"tokenizer_class": name, "do_lower_case": False})
            assert open_stored(stored)[0].tokenize("the River") == ["the", "[UNK]"]


def test_settings_that_are_lost_are_not_guessed(tmp_path):
    """As in a copy of Hugging Face's cache whose links lead nowhere."""
    stored = folder_with(tmp_path, "the river")
    (tmp_path / "tokenizer_config.json").symlink_to("../../blobs/0123")
    refused("tokenizer_config.json cannot be read .No such file", open_stored, stored)


def test_added_tokens_are_those_of_tokenizer_json_or_refused(tmp_path):
    pipeline = pipeline_of("the x")
    pipeline.add_tokens([tokenizers.AddedToken("<user>", normalized=False)])
    added = {"4": {"content": "[MASK]", "special": True}, "7": {"content": "<user>", "normalized": False}}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "added_tokens_decoder": added}
    stored = folder_with(tmp_path, "the x", settings, pipeline)
    assert open_stored(stored)[0].tokenize("The<user>x <USER>") == ["the", "<user>", "x", "[UNK]", "[UNK]", "[UNK]"]
    (tmp_path / "added_tokens.json").write_text('{"<user>": 8}')
    refused("tokenizer.json has no added token '<user>' with id 8, .* make one tokenizer", open_stored, stored)
    (tmp_path / "tokenizer.json").unlink()
    for is_hugging_face in (True, False):
        refused("has no added token '<user>' with id", open_stored, stored._replace(is_hugging_face=is_hugging_face))
    stored = folder_with(tmp_path, "the x", {**settings, "added_tokens_decoder": {"7": "<user>"}}, pipeline)
    refused("tokenizer_config.json: added_tokens_decoder names no content of a token; fetch", open_stored, stored)


@pytest.mark.parametrize("has_json", [False, True])
@pytest.mark.parametrize("listed", [["[E1]"], [{"content": "[E1]", "special": True}], {"entity_token": "[E1]"}])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_that_are_listed_are_cut_from_the_text_first(tmp_path, name, listed, has_json):
    """As transformers 4.46 does; it does not look at the names' own file where there is an added_tokens_decoder."""
    pieces, settings = "the river [E1] [ ] e1", {"do_lower_case": True}
    stored = folder_with(tmp_path, pieces, settings, pipeline_of(pieces) if has_json else None)
    key = "extra_special_tokens" if isinstance(listed, dict) else "additional_special_tokens"
    others = settings if name == "tokenizer_config.json" else {}
    (tmp_path / name).write_text(json.dumps({**others, key: listed}))
    tokenizer, _ = open_stored(stored)
    assert tokenizer.tokenize("The [E1]river") == ["the", "[E1]", "river"]
    assert "[E1]" in tokenizer.markers and "[E1]" in tokenizer.files()["tokenizer.json"]
    if name == "special_tokens_map.json":
        added = {"added_tokens_decoder": {"4": {"content": "[MASK]", "special": True}}}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, **added}))
        assert open_stored(stored)[0].tokenize("The [E1]river") == ["the", "[", "e1", "]", "river"]
    else:
        for damaged in ([{"id": 7}], "[E1]", 5):
            (tmp_path / name).write_text(json.dumps({**settings, key: damaged}))
            refused("tokenizer_config.json: a special token has no content; fetch", open_stored, stored)


@pytest.mark.parametrize("has_json", [False, True])
def test_what_only_transformers_reads_is_kept_in_checkpoints_and_exports(tmp_path, has_json):
    kept = {"padding_side": "left", "clean_up_tokenization_spaces": False, "additional_special_tokens": ["[E1]"]}
    settings = {"do_lower_case": True, "unk_token": "[UNK]", "never_split": None, **kept}
    pieces = "the [E1]"
    tokenizer, _ = open_stored(folder_with(tmp_path, pieces, settings, pipeline_of(pieces) if has_json else None))
    for name, content in tokenizer.files().items():  # as a run of ours that starts from there
        (tmp_path / name).write_text(content, encoding="utf-8")
    again, _ = open_stored(StoredTokenizer(tmp_path))
    exported = json.loads(tokenizer_files(again, BertConfig.preset("tiny", 512))["tokenizer_config.json"])
    assert {name: exported.get(name) for name in kept} == kept and "never_split" not in exported


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"),
        ("$A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    ],
)
def test_other_markers_than_bert_s_are_refused(tmp_path, one, two):
    pipeline = pipeline_of("a")
    pipeline.post_processor = processors.TemplateProcessing(one, two, [("[CLS]", 2), ("[SEP]", 3)])
    stored = folder_with(tmp_path, "a", {"do_lower_case": True}, pipeline)
    refused("tokenizer.json: its post_processor makes ", open_stored, stored)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model/unk_token", "[FOO]", r"its token for unknown words is '\[FOO\]', BERT's is '\[UNK\]'"),
        ("model/unk_token", "[MASK]", r"its token for unknown words is '\[MASK\]'"),
        ("model", {"type": "Unigram", "unk_id": None, "vocab": [[p, -1.0] for p in VOCAB]}, "unknown words is None"),
        ("model/vocab/b", VOCAB.index("a"), f"{len(VOCAB)} pieces have {len(VOCAB) - 1} different ids"),
        ("model/vocab/far", 1 << 31, f"different ids up to {1 << 31}; each needs its own"),
        ("post_processor/special_tokens/[CLS]/ids", [7], r"makes \[CLS\] a .* with ids \[7, .* BERT's .* ids \[2,"),
        # At which the library panics, with what is no `Exception`.
        ("post_processor/pair/0/SpecialToken/id", "[CSL]", " is no tokenizer of Hugging Face's .*; fetch"),
    ],
)
def test_what_would_show_only_at_some_texts_is_refused_when_opened(tmp_path, path, value, message):
    content = json.loads(wordpiece_pipeline(ids_by_piece(VOCAB), Casing(True, True)).to_str())
    *names, last = (int(name) if name.isdigit() else name for name in path.split("/"))
    functools.reduce(operator.getitem, names, content)[last] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    refused(f"tokenizer.json.*{message}", open_json, tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("settings", "made", "casing"),
    [
        # What is left out beside do_lower_case has the defaults of transformers, whatever tokenizer.json says.
        ({"do_lower_case": True, "strip_accents": None}, (True, False), (True, True)),
        ({"tokenizer_class": "ElectraTokenizerFast", "do_lower_case": False}, (True, True), (False, False)),
        ({"tokenizer_class": "BertTokenizer", "strip_accents": False}, (True, True), (True, False)),
        ({"strip_accents": True}, (True, False), (True, True)),
        ({"strip_accents": None}, (True, False), (True, False)),
        # Nothing is said: tokenizer.json is the tokenizer, but transformers would lower-case.
        ({"tokenizer_class": "BertTokenizer"}, (False, False), (False, False)),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, (False, False), (False, False)),
    ],
)
def test_casing_that_tokenizer_json_and_settings_tell_differently(tmp_path, settings, made, casing):
    pipeline = pipeline_of("é e É", made)
    assert open_stored(folder_with(tmp_path, "é e É", settings, pipeline))[0].casing == casing


@pytest.mark.parametrize("splits", [False, True])
def test_what_the_settings_alone_say_of_ideographs(tmp_path, splits):
    vocab = ids_by_piece([*SPECIAL_TOKENS, "猫", "犬", "猫犬"])
    pipeline = wordpiece_pipeline(vocab, Casing.from_flags(True), split_ideographs=not splits)
    tokenizer, _ = open_stored(folder_with(tmp_path, "猫 犬 猫犬", {"tokenize_chinese_chars": splits}, pipeline))
    assert tokenizer.tokenize("猫犬") == (["猫", "犬"] if splits else ["猫犬"])


SETTINGS, MAP = "tokenizer_config.json", "special_tokens_map.json"
FOREIGN = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (SETTINGS, {"tokenizer_class": "BertJapaneseTokenizer"}, "'BertJapaneseTokenizer' is code of its own"),
        (SETTINGS, {"word_tokenizer_type": "jieba"}, "word_tokenizer_type='jieba': only"),
        (SETTINGS, {"tokenizer_class": "MyTokenizer"}, "'MyTokenizer' is code of its own, or not known here"),
        (SETTINGS, {"auto_map": {"AutoTokenizer": ["x.Y", None]}}, "code of its own"),
        (SETTINGS, {"do_basic_tokenize": False}, "do_basic_tokenize=False: only true is supported"),
        (SETTINGS, {"tokenize_chinese_chars": 0}, "tokenize_chinese_chars=0: only true or false is supported"),
        (SETTINGS, {"never_split": ["a"]}, "never_split=.*a.*: only .* is supported"),
        (SETTINGS, {"do_lower_case": "no"}, "do_lower_case='no': only true or false is supported"),
        (SETTINGS, {"strip_accents": {"content": True}}, "strip_accents=.*: only true or false is supported"),
        # transformers would begin texts with <s>, although there is a [CLS], too.
        (SETTINGS, {**SPECIAL_FIELDS, "cls_token": "<s>"}, "cls_token='<s>': only .*CLS.* is supported"),
        (MAP, {"cls_token": {"content": "<s>", "lstrip": False}}, "cls_token='<s>': only"),
        ("config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "'BertJapaneseTokenizer' is code of its own"),
        ("tokenizer.json", {}, "tokenizer.json is no tokenizer"),
        ("tokenizer.json", [], "tokenizer.json is no tokenizer"),
        ("tokenizer.json", FOREIGN, "tokenizer.json .* lacks"),
    ],
)
def test_tokenizers_that_are_damaged_or_cut_text_otherwise_are_refused(tmp_path, file, content, message):
    stored = folder_with(tmp_path, SPANISH)
    (tmp_path / file).write_text(json.dumps(content))
    refused(f"{tmp_path}.*{message}", open_stored, stored)


@pytest.mark.parametrize("settings", [{"never_split": ["[link]"]}, {"do_basic_tokenize": False}], ids=str)
def test_what_only_a_tokenizer_in_python_reads_changes_nothing_beside_tokenizer_json(tmp_path, settings):
    pipeline = pipeline_of("[link] river link", (False, False))
    tokenizer, _ = open_stored(folder_with(tmp_path, "[link] river link", settings, pipeline))
    assert tokenizer.tokenize("river [link]") == ["river", "[UNK]", "link", "[UNK]"]


@pytest.mark.parametrize(
    ("pieces", "text", "spans"),
    [
        ("a b", "a \ud83d b", ["a", "b"]),  # half a character of UTF-16 is dropped
        # Vowel signs that are taken away belong to their letter, so that an answer ends with its last letter's signs.
        ("ท ##ด cafe", "ที่ดื Cafe\u0301 ที่", ["ที่", "ดื", "Cafe\u0301", "ที่"]),
    ],
)
def test_what_a_token_stands_for(tmp_path, pieces, text, spans):
    tokenizer, _ = open_stored(folder_with(tmp_path, pieces, {"do_lower_case": True}))
    ids, starts, ends = tokenizer.tokenize_with_spans(text)
    assert ids == tokenizer.tokenize_to_ids(text) == tokenizer.encode_lines([text])[0].tolist() and 1 not in ids
    assert [text[start:end] for start, end in zip(starts, ends)] == spans
