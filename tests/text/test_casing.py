"""Capitals and accents: recorded with vocabulary, data and weights, and taken from there by what follows."""

import json
import shutil

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.token_set import TokenSet
from bert_tf.prepare.instances import vocabulary
from bert_tf.records.token_file import TokenFile
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.hugging_face import HuggingFaceTokenizer, wordpiece_pipeline
from bert_tf.text.tokenizer import StoredTokenizer, open_stored
from bert_tf.text.vocabulary import SPECIAL_TOKENS, UnknownTokens, ids_by_piece, load_pieces
from tests import preparation
from tests.preparation import SHARDS, token_files
from tests.refusals import refused

SENTENCES = ["강은 북쪽에 있다.", "아이들은 강가에 모여 있었다.", "गाँव में बाज़ार है।", "El Niño está aquí."]


@pytest.fixture
def work(tmp_path):
    """Sharded text of three scripts and a vocabulary of it that keeps capitals and accents."""
    documents = [" ".join(SENTENCES[number:] + SENTENCES[:number]) for number in range(4)]
    preparation.shard(tmp_path, documents, *SHARDS)
    preparation.run(tmp_path, "create_vocab", "--vocab_size", 200, "--do_lower_case", 0)
    return tmp_path


def open_tokens(folder):
    return TokenSet(str(folder / "training"), "input_files", 32, MaskingRules(0.15, 5))


def test_what_was_made_with_a_vocabulary_keeps_its_casing(work):
    preparation.run(work, "create_token_files")
    folder, manifest = token_files(work)
    assert (manifest["arguments"]["do_lower_case"], manifest["arguments"]["strip_accents"]) == (False, False)
    assert folder.parent.name.startswith("lower_case_0_shard_2") and manifest["counts"]["num_unknown_tokens"] == 0
    files = open_tokens(folder).tokenizer_files()
    for name, text in files.items():
        (work / name).write_text(text, encoding="utf-8")
    tokenizer, assumed = open_stored(StoredTokenizer(work))
    assert tokenizer.casing == (False, False) and not assumed
    # What later stages read is the same: pairs and records need no flag either.
    preparation.run(work, "create_pairs", "--max_seq_length", 32)
    preparation.run(work, "export_tfrecord", "--max_seq_length", 32, "--max_predictions_per_seq", 5)
    assert [path.parent.name.split("_seq")[0] for path in work.glob("tfrecord/*/custom")] == ["lower_case_0"]


@pytest.mark.parametrize("option", ["--do_lower_case", "--strip_accents"])
def test_another_casing_than_the_vocabulary_s_is_refused(work, option, capsys):
    message = f"{option}=1: .*tokenizer_config.json says that its text has do_lower_case=0, strip_accents=0"
    refused(message, preparation.run, work, "create_token_files", option, 1)
    (work / "vocab/custom/tokenizer_config.json").unlink()
    refused("pieces such as .*; pass .* --strip_accents=0", preparation.run, work, "create_token_files", option, 1)
    preparation.run(work, "create_token_files")  # as the vocabulary suggests
    assert "do_lower_case=0, strip_accents=0 is assumed" in capsys.readouterr().out
    assert token_files(work)[1]["counts"]["num_unknown_tokens"] == 0


def test_accents_are_kept_in_lower_case_text(work):
    vocab_file = work / "own/vocab.txt"
    options = ("--do_lower_case", 1, "--strip_accents", 0)
    preparation.run(work, "create_vocab", "--vocab_size", 200, "--vocab_file", vocab_file, *options)
    assert {"niño", "강은", "बाज़ार"} <= set(load_pieces(vocab_file))
    preparation.run(work, "create_token_files", "--vocab_file", vocab_file)
    folder, manifest = token_files(work)
    assert folder.parent.name.startswith("lower_case_1_strip_accents_0_shard_2")
    assert manifest["arguments"]["strip_accents"] is False and manifest["counts"]["num_unknown_tokens"] == 0
    names, shards = load_pieces(vocab_file), (folder / "training").glob("*.tokens")
    tokens = {names[token] for path in shards for token in TokenFile(path).text().token_ids}
    assert "niño" in tokens and "El" not in tokens
    assert json.loads(open_tokens(folder).tokenizer_files()["tokenizer_config.json"])["strip_accents"] is False


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        (SENTENCES[0], True),
        (SENTENCES[2], True),
        ("Hà Nội là thủ đô của Việt Nam", True),
        ("すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である", True),
        ("সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে", True),
        ("Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv", False),
        ("E\u0301te\u0301 comme hiver, la rivière coule près du vieux château, où vivent des pêcheurs", False),
        ("Été comme hiver, la rivière coule près du vieux château, où vivent des pêcheurs", False),
        ("The river flows into the sea", False),
    ],
)
def test_marks_that_are_no_accents_are_not_lost_in_silence(tmp_path, capsys, text, is_said):
    (tmp_path / "text.txt").write_text(f"{text}\n" * 30, encoding="utf-8")
    for casing in (Casing(True, True), Casing(True, False)):
        vocabulary.train_vocabulary([tmp_path / "text.txt"], 500, casing)
        assert ("warning: strip_accents=1 changes" in capsys.readouterr().err) == (is_said and casing.strip_accents)


def test_a_tokenizer_json_cuts_the_text_as_it_says(work):
    pieces = load_pieces(work / "vocab/custom/vocab.txt")
    model = work / "model"
    model.mkdir()
    pipeline = wordpiece_pipeline(ids_by_piece([*pieces, "있다."]), Casing(False, False))
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.save(str(model / "tokenizer.json"))
    create = (work, "create_token_files", "--vocab_file")
    words = "--do_lower_case=1: .*tokenizer.json says that its text has do_lower_case=0"
    refused(words, preparation.run, *create, model / "tokenizer.json", "--do_lower_case", 1)
    preparation.run(*create, model / "tokenizer.json")
    folder, _ = token_files(work)
    assert (folder / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    data = open_tokens(folder)
    assert data.vocab_size == len(pieces) + 1
    (shard, *_) = sorted((folder / "training").glob("*.tokens"))
    assert len(pieces) in TokenFile(shard).text().token_ids, "있다. is one token"
    assert data.tokenizer_files()["tokenizer.json"] == pipeline.to_str(pretty=True) + "\n"
    # Its vocab.txt alone would cut the text by BERT's rules.
    shutil.copy(folder / "vocab.txt", model)
    words = "alone cuts text otherwise than with .*; pass --vocab_file with that tokenizer.json, or with one that says"
    refused(words, preparation.run, *create, model / "vocab.txt", "--do_lower_case", 0)


def test_settings_that_change_the_tokenizer_json_beside_them_are_refused(work):
    pipeline = wordpiece_pipeline(ids_by_piece(load_pieces(work / "vocab/custom/vocab.txt")), Casing(False, False))
    pipeline.save(str(work / "tokenizer.json"))
    vocab_file = ("--vocab_file", work / "tokenizer.json")
    settings = work / "tokenizer_config.json"
    added = {"added_tokens_decoder": {str(pipeline.get_vocab_size()): {"content": "<user>"}}}
    for said, message in (({"do_lower_case": True}, "alone cuts text otherwise"), (added, "no added token '<user>'")):
        settings.write_text(json.dumps({"tokenizer_class": "BertTokenizer", **said}))
        refused(message, preparation.run, work, "create_token_files", *vocab_file)
    settings.write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    # transformers leaves open what happens to accents where they go with the capitals.
    left_open = pipeline.to_str().replace('"strip_accents":false', '"strip_accents":null')
    (work / "tokenizer.json").write_text(left_open, encoding="utf-8")
    preparation.run(work, "create_token_files", *vocab_file)


def test_whole_words_are_masked_only_where_the_tokens_show_them(work):
    """Byte-level BPE marks words with a letter of its own; a piece such as ## of Markdown continues nothing there."""
    pipeline = Tokenizer(models.BPE(unk_token="[UNK]"))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet)
    pipeline.train_from_iterator([*SENTENCES, "## ##", "## ##"], trainer)
    pipeline.add_tokens(["<user>"])
    pipeline.save(str(work / "tokenizer.json"))
    assert pipeline.token_to_id("##") is not None
    options = ("--vocab_file", work / "tokenizer.json")
    preparation.run(work, "create_token_files", *options)
    folder, _ = token_files(work)
    ids = open_tokens(folder).masker.ids
    drawn = set(ids.replacements.tolist())
    assert pipeline.token_to_id("##") in drawn and pipeline.token_to_id("<user>") not in drawn
    words, rules = "whole_word_masking: the tokens of this tokenizer.json do not show", MaskingRules(0.15, 5, True)
    refused(words, TokenSet, str(folder / "training"), "input_files", 32, rules)
    sizes = ("--max_seq_length", 32, "--max_predictions_per_seq", 5)
    refused(words, preparation.run, work, "create_tfrecord_files", *options, *sizes, "--whole_word_masking")
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace()
    assert HuggingFaceTokenizer(pipeline, "x").continues_word()[pipeline.token_to_id("a")]
    vocab = ids_by_piece([*SPECIAL_TOKENS, "a", "@@b", "##"])
    pipeline = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix="@@"))
    assert HuggingFaceTokenizer(pipeline, "x").continues_word().tolist() == [False] * 6 + [True, False]


@pytest.mark.parametrize("kind", ["vocab.txt", "tokenizer.json"])
def test_a_vocabulary_changed_at_the_same_length_is_found_when_training_starts(work, kind):
    vocab_file = work / "vocab/custom/vocab.txt"
    if kind == "tokenizer.json":
        wordpiece_pipeline(ids_by_piece(load_pieces(vocab_file)), Casing(False, False)).save(str(work / kind))
        vocab_file = work / kind
    preparation.run(work, "create_token_files", "--vocab_file", vocab_file)
    folder, _ = token_files(work)
    for changed in {"vocab.txt", kind}:
        content = (folder / changed).read_text(encoding="utf-8")
        (folder / changed).write_text(content.replace("강은", "강를", 1), encoding="utf-8")
        words = f"{changed} is not the vocabulary that the data beside it were made with"
        refused(words, open_tokens(folder).tokenizer_files)
        (folder / changed).write_text(content, encoding="utf-8")
    assert open_tokens(folder).tokenizer_files()


def test_many_unknown_tokens_are_a_warning(work, capfd):
    vocab_file = work / "latin.txt"
    vocab_file.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "El", "."]) + "\n")
    preparation.run(work, "create_token_files", "--vocab_file", vocab_file, "--do_lower_case", 0)
    assert "warning: custom: 78.95% of 76 tokens are [UNK]" in capfd.readouterr().out
    few = UnknownTokens(1, 1000, Casing(True, True))
    assert few.describe("x.tsv") == "x.tsv: 0.10% of 1,000 tokens are [UNK]" and not few.are_many
    assert not few._replace(num_tokens=7).are_many, "a single sign in a sentence"
    assert "(do_lower_case=1, strip_accents=1)" in few._replace(num_unknown=60).describe("x.tsv")
