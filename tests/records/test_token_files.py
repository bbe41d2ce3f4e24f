"""Token files and their pairs: format, damage, and that they give the instances of records; single segments."""

import contextlib
import hashlib
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_tf.batches.data_sets import RecordSet, open_instances
from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.token_set import TokenSet
from bert_tf.records import pair_file
from bert_tf.records.pair_file import PairFile, decode_pairs, encode_pairs, ensure_pairs, open_pairs, pairs_path
from bert_tf.records.pairs import PairSettings, draw_segments
from bert_tf.records.token_file import Shard, TokenFile, TokenizedText, read_tokens, write_tokens
from tests import preparation
from tests.preparation import contents, flip, numbered_documents, tokenized
from tests.pretraining_data import SCHEMA, unmasked_ids, write_dataset
from tests.refusals import refused


def tokens_folder(work: Path) -> Path:
    (folder,) = work.glob("tokens/*/custom")
    return folder


def text(size: int) -> TokenizedText:
    return TokenizedText(np.arange(size) % 500, np.array([0, 3, size]), np.array([0, 1, 2]))


@pytest.mark.parametrize("vocab_size, kind", [(65_536, "<u2"), (65_537, "<i4")])
def test_tokens_come_back(tmp_path, vocab_size, kind):
    path = tmp_path / "x.tokens"
    sha256 = write_tokens(path, text(100_000), Shard(1, 7), vocab_size)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    file = TokenFile(path)
    assert (file.shard, file.vocab_size, file.id_type.str) == (Shard(1, 7), vocab_size, kind)
    for found, expected in zip(file.text(), text(100_000)):
        np.testing.assert_array_equal(found, expected)
    pieces = read_tokens([file], np.array([0, 0]), np.array([99_990, 5]), np.array([10, 3]))
    assert pieces.tolist() == [*(np.arange(99_990, 100_000) % 500), 5, 6, 7]


@pytest.mark.parametrize("place", [70, 70_000, 140_000, -2, -9])
def test_a_flipped_byte_is_found_in_its_block(tmp_path, place):
    path = tmp_path / "x.tokens"
    write_tokens(path, text(100_000), Shard(0, 0), 500)
    flip(path, place)
    block = place // 65_536 if place > 0 else "[0-9]"
    refused(f"x.tokens: block {block} .* is damaged; .*--action verify --repair", TokenFile(path).verify)


def test_pieces_that_come_in_parts_or_not_at_all(tmp_path, monkeypatch):
    write_tokens(tmp_path / "x.tokens", text(1000), Shard(0, 0), 500)
    file, pread = TokenFile(tmp_path / "x.tokens"), os.pread
    pieces = [file, file], np.array([0, 1, 0]), np.array([0, 100, 500]), np.array([50, 60, 70])
    expected = read_tokens(*pieces)
    assert expected.tolist() == [*(np.arange(50) % 500), *range(100, 160), *(np.arange(70) % 500)]
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 16), offset))
    np.testing.assert_array_equal(read_tokens(*pieces), expected)

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    refused("x.tokens, byte .*, cannot be read .Input/output error", read_tokens, *pieces)
    monkeypatch.undo()
    os.truncate(tmp_path / "x.tokens", 1000)
    refused("x.tokens ends before byte .*: it was cut short, or changed", read_tokens, *pieces)


def test_the_first_copy_holds_the_instances_of_records_in_their_order(work):
    preparation.run(work, "create_tfrecord_files", "--max_seq_length", 32, "--dupe_factor", 1)
    (records_folder,) = work.glob("tfrecord/*dupe_factor_1_*/custom")
    for split in ("training", "test"):
        records = RecordSet(str(records_folder / split), "input_files")
        tokens = TokenSet(str(tokens_folder(work) / split), "input_files", 32, MaskingRules())
        assert tokens.copies[0] == records.copies[0] and len(tokens.copies) == (2 if split == "training" else 1)
        ranges = records.ranges_in_file_order(0, records.num_instances)
        stored = {name: value.numpy() for name, value in records.features(ranges).items()}
        made = tokens.features(ranges, 1)
        np.testing.assert_array_equal(unmasked_ids(made), unmasked_ids(stored))
        for name in ("input_mask", "segment_ids", "next_sentence_labels"):
            np.testing.assert_array_equal(made[name], stored[name])
        np.testing.assert_array_equal(tokens.lengths(ranges), stored["input_mask"].sum(axis=1))
        if split == "training":
            assert tokens.copies[0] != tokens.copies[1], "every copy has pairs of its own"


def test_records_from_token_files_have_the_bytes_of_those_from_text(work):
    options = ("--max_seq_length", 32, "--dupe_factor", 3, "--whole_word_masking")
    preparation.run(work, "create_tfrecord_files", *options)
    (records_folder,) = work.glob("tfrecord/*dupe_factor_3_*/custom")
    from_text = contents(records_folder)
    shutil.rmtree(work / "tfrecord")
    shutil.rmtree(work / "sharded")
    preparation.run(work, "export_tfrecord", *options)
    assert contents(records_folder) == from_text
    vocab_file = tokens_folder(work) / "vocab.txt"
    vocab_file.write_text(vocab_file.read_text() + "more\n")
    words = "is not the vocabulary that the token files were made with.*--repair"
    refused(words, preparation.run, work, "export_tfrecord", *options)
    shutil.rmtree(work / "tokens")
    words = "holds nothing that create_token_files has finished: run "
    refused(words, preparation.run, work, "export_tfrecord", *options)


def test_token_files_are_found_by_the_part_of_their_casing_that_is_named(work):
    """The vocabulary says the other part: that of a German model in lower case keeps accents."""
    folder = tokens_folder(work).parent
    name = folder.name.replace("lower_case_1", "lower_case_1_strip_accents_0")
    shutil.move(folder, folder.with_name(name))
    preparation.run(work, "create_pairs", "--max_seq_length", 24, "--do_lower_case", 1)
    assert len([*tokens_folder(work).glob("*/*.24.pairs")]) == 6
    for other in ("--do_lower_case=0", "--strip_accents=1"):
        refused("holds nothing that create_token_files has finished", preparation.run, work, "create_pairs", other)


def test_token_files_may_be_asked_for_again_while_others_draw_pairs(work, monkeypatch):
    atomic_file = pair_file.atomic_file

    @contextlib.contextmanager
    def slowly(path):
        with atomic_file(path) as file:
            yield file
            preparation.run(work, "create_token_files")

    monkeypatch.setattr(pair_file, "atomic_file", slowly)
    preparation.run(work, "create_pairs", "--max_seq_length", 24)


def test_pairs_that_are_missing_damaged_or_of_others_are_drawn_and_with_the_settings_of_the_others(work, capsys):
    folder = tokens_folder(work) / "training"
    before = contents(folder)
    victim = folder / "custom_training_1.tokens.32.pairs"
    others = (before[f"custom_training_{name}"] for name in ("0.tokens.32.pairs", "1.tokens.32.segments"))
    for damaged in (None, before[victim.name][:-3], *others):
        victim.unlink() if damaged is None else victim.write_bytes(damaged)
        settings, counts = ensure_pairs(sorted(folder.glob("*.tokens")), PairSettings(32, 9, 8, 0.5))
        drawn = open_pairs(TokenFile(folder / "custom_training_1.tokens"), PairSettings(32))
        assert settings == PairSettings(32, 2) and counts["num_instances"] == sum(drawn.num_instances)
        assert contents(folder) == before
    preparation.run(work, "create_pairs", "--max_seq_length", 32, "--dupe_factor", 2)
    assert "nothing to do" in capsys.readouterr().out


def test_pairs_of_other_settings_are_refused(work):
    of_others = r"32.pairs has .*dupe_factor 2, .*, but this command .*dupe_factor 5.*delete"
    refused(of_others, preparation.run, work, "create_pairs", "--max_seq_length", 32)
    folder = tokens_folder(work) / "training"
    (folder / "custom_training_1.tokens.32.pairs").unlink()
    ensure_pairs([folder / "custom_training_1.tokens"], PairSettings(32, 2, 7))
    words = "random_seed 7.*random_seed 12345.*delete what is not wanted"
    refused(words, TokenSet, str(folder), "input_files", 32, MaskingRules())


@pytest.mark.parametrize(
    "length, predictions, single_segments, message",
    [
        (70_000, 20, False, "--max_seq_length=70000: must be from 5 to 65535"),
        (16, 20, False, "--max_predictions_per_seq=20 with --max_seq_length=16: at most 13"),
        (16, 15, True, "--max_predictions_per_seq=15 .*at most 14 tokens can be masked"),
    ],
)
def test_lengths_and_predictions_out_of_range_are_refused(prepared, length, predictions, single_segments, message):
    rules = MaskingRules(max_predictions_per_seq=predictions)
    folder = str(tokens_folder(prepared) / "training")
    refused(message, TokenSet, folder, "input_files", length, rules, single_segments)


def test_a_set_does_not_keep_its_shards_open(prepared):
    """The recipe has 1,472 of them, and a process mostly may have 1,024 open files."""
    num_open = len(os.listdir("/proc/self/fd"))
    data = TokenSet(str(tokens_folder(prepared) / "training"), "input_files", 32, MaskingRules())
    assert len(data.files) == 4 and len(os.listdir("/proc/self/fd")) <= num_open + 2, "a shard has two files"


@pytest.mark.parametrize("single_segments, kind", [(False, "pairs"), (True, "single segments")])
def test_pairs_that_cannot_be_written(work, single_segments, kind):
    path = tokens_folder(work) / "training/custom_training_0.tokens"
    settings = PairSettings.for_length(24, single_segments)
    pairs_path(path, settings).mkdir()  # as root may write into every folder
    options = "--max_seq_length 24" + " --no_next_sentence" * single_segments
    words = f"the {kind} of length 24 cannot be written in .*--action create_pairs --dataset custom {options} makes"
    refused(words, ensure_pairs, [path], settings)


def test_pairs_with_a_damaged_head_or_another_name(work):
    """A head that promises 32 GiB of counts is read no further, and a copy that somebody has kept is nobody's pairs."""
    path = tokens_folder(work) / "training/custom_training_0.tokens.32.pairs"
    content = path.read_bytes()
    path.with_name("custom_training_0.tokens.old.pairs").write_bytes(content)
    path.write_bytes(content[:12] + b"\xff" * 4 + content[16:])
    refused("32.pairs ends before byte", PairFile, path)
    path.write_bytes(content)
    preparation.run(work, "status")
    preparation.run(work, "inspect")


def test_what_pairs_cannot_be_drawn_from(tmp_path):
    path = tmp_path / "x.tokens"
    path.write_bytes(b"something else" * 10)
    refused("x.tokens is no token file", ensure_pairs, [path], PairSettings(32))
    write_tokens(path, tokenized([[[7, 8], [9]]]), Shard(2, 0), 10)  # a flipped bit of the split's number
    refused("x.tokens is no token file", ensure_pairs, [path], PairSettings(32))
    write_tokens(path, TokenizedText(np.array([7, 8]), np.array([0, 2]), np.array([0, 1])), Shard(0, 0), 10)
    refused("x.tokens has 1 sentence.*fewer shards", ensure_pairs, [path], PairSettings(32))
    assert not pairs_path(path, PairSettings(32)).exists()
    refused("none.tokens cannot be read .No such file", ensure_pairs, [tmp_path / "none.tokens"], PairSettings(32))


# Instances without next sentence: single segments, from drawing to the rows that a model is given.


def plainly(documents, budget, copies, seed):
    """The segments as lists of tokens, sentence by sentence, from the rule in words."""
    draw, segments = random.Random(seed).random, []
    for _ in range(copies):
        for document in documents:
            size = sum(map(len, document))
            lacking = 0 if size % budget == 0 else budget - size % budget
            room = budget - int(draw() * (lacking + 1))  # of the document's first segment
            segment = []
            for sentence in document:
                if segment and len(segment) + len(sentence) > room:
                    segments.append(segment)
                    segment, room = [], budget
                segment = segment + sentence
                while len(segment) > budget:  # a sentence that is longer than a segment
                    segments.append(segment[:budget])
                    segment, room = segment[budget:], budget
                if len(segment) > room:  # a first sentence that is longer than the drawn room, but fits
                    segments.append(segment)
                    segment, room = [], budget
            if segment:
                segments.append(segment)
    return segments


def drawn(documents, settings, seed):
    """As `plainly`, and through the form in which pairs are stored."""
    text = tokenized(documents)
    pairs = decode_pairs(encode_pairs(draw_segments(text, settings, seed)).tobytes())
    np.testing.assert_array_equal(pairs.lengths, pairs.a_end - pairs.a_start + 2)
    return [text.token_ids[start:end].tolist() for start, end in zip(pairs.a_start, pairs.a_end)]


@pytest.mark.parametrize("longest_sentence, length", [(6, 12), (6, 66), (30, 12), (30, 32), (1, 5)])
def test_segments_are_those_of_a_plain_implementation(longest_sentence, length):
    documents = numbered_documents(200, longest_sentence)
    settings = PairSettings.for_length(length, True, dupe_factor=3)
    found = drawn(documents, settings, 5)
    assert found == plainly(documents, length - 2, 3, 5)
    assert max(map(len, found)) <= length - 2
    tokens = [token for segment in found for token in segment]
    assert tokens == 3 * [token for document in documents for sentence in document for token in sentence]


def test_of_documents_that_do_not_fit_the_cuts_move():
    documents = numbered_documents(200, 6)
    passes = [drawn(documents, PairSettings.for_length(32, True, dupe_factor=1), seed) for seed in (1, 2)]
    both = {segment[0] for segment in passes[0]} & {segment[0] for segment in passes[1]}
    assert len(both) < 0.9 * len(passes[0])
    fewest = sum(-(-sum(map(len, document)) // 30) for document in documents)
    assert max(map(len, passes)) < 1.25 * fewest, "whole sentences leave some room, moving the cuts next to none"


def test_shards_that_no_pair_can_be_drawn_from(tmp_path):
    """One of a single sentence, and one that is empty."""
    settings = PairSettings.for_length(32, True)
    for number, text in enumerate([tokenized([[[7, 8]]]), TokenizedText(np.zeros(0), np.zeros(1), np.zeros(1))]):
        write_tokens(tmp_path / f"{number}.tokens", text, Shard(0, number), 10)
    ensure_pairs(sorted(tmp_path.glob("*.tokens")), settings)
    files = [open_pairs(TokenFile(tmp_path / f"{number}.tokens"), settings) for number in (0, 1)]
    assert [file.num_instances for file in files] == [[1] * 5, [0] * 5] and files[0].settings == settings
    assert settings.short_seq_prob == 0.0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("tokens"), data_format="tokens")


def opened(dataset, split="training", **rules):
    rules = MaskingRules(0.2, SCHEMA.num_predictions, **rules)
    return open_instances(str(dataset / split), "input_files", SCHEMA.sequence_length, rules, True)


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_row_is_one_segment_between_its_markers_with_masks_anywhere_in_it(dataset, whole_words):
    data = opened(dataset, whole_word_masking=whole_words)
    assert len(data.copies) == 5 and data.pair_settings == PairSettings.for_length(16, True)
    rows = data.features(data.ranges_in_file_order(0, data.num_instances), 1)
    ids, lengths = unmasked_ids(rows), rows["input_mask"].sum(axis=1)
    np.testing.assert_array_equal(rows["input_mask"], np.arange(16) < lengths[:, np.newaxis])
    assert not rows["segment_ids"].any() and not rows["next_sentence_labels"].any()
    assert (ids[:, 0] == 2).all() and (ids[np.arange(len(ids)), lengths - 1] == 3).all()
    assert (ids == 3).sum() == len(ids)
    np.testing.assert_array_equal(rows["masked_lm_weights"].sum(axis=1), np.clip(np.rint(0.2 * lengths), 1, 3))
    masked = rows["masked_lm_weights"] > 0
    positions = np.where(masked, rows["masked_lm_positions"], 1)
    assert positions.min() == 1 and (positions <= (lengths - 2)[:, np.newaxis]).all()
    is_last = (positions == (lengths - 2)[:, np.newaxis]) & masked
    assert is_last.any() and not np.take_along_axis(ids, positions, axis=1)[masked].min() < 5
    text = np.concatenate([TokenFile(path).text().token_ids for path in data.files])
    found = np.concatenate([row[1 : length - 1] for row, length in zip(ids, lengths)])
    np.testing.assert_array_equal(np.sort(found), np.sort(text), err_msg="all text, each token once")


def test_pairs_and_single_segments_lie_side_by_side(dataset):
    single, pairs = opened(dataset), open_instances(str(dataset / "training"), "x", 16, MaskingRules(0.2, 3))
    assert single.fingerprint() != pairs.fingerprint() and single.copies != pairs.copies
    assert pairs.copies == [[70, 64, 3], [69, 63, 2]] and not pairs.pair_settings.single_segments
    names = {path.suffix for path in (dataset / "training").iterdir()}
    assert names == {".tokens", ".pairs", ".segments"}


def test_preparation_makes_and_shows_them(work, capsys):
    shutil.rmtree(work / "tfrecord")
    for path in tokens_folder(work).rglob("*.segments"):
        path.unlink()
    preparation.run(work, "create_pairs", "--max_seq_length", 64, "--no_next_sentence")
    said = capsys.readouterr().out
    assert "single segments of length 64: num_instances" in said and "random_next" not in said
    preparation.run(work, "inspect")
    of_pairs, said = capsys.readouterr().out.split("  Single segments of length 64")
    assert "Pairs of length 32, masked as" in of_pairs and "what follows A (label 0)" in of_pairs
    assert ", masked as" in said and "tokens; a single segment" in said
    assert "random next" not in said and "nothing looks wrong" in said
    preparation.run(work, "status")
    assert "single segments of length 64\n" in capsys.readouterr().out
