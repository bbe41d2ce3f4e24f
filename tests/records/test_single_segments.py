"""Instances without next sentence: single segments of token files, from drawing to the rows that a model is given."""

import random
import shutil

import numpy as np
import pytest

from bert_tf.batches.data_sets import open_instances
from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.token_set import TokenSet
from bert_tf.records import pair_file
from bert_tf.records.pair_file import decode_pairs, encode_pairs, ensure_pairs, open_pairs
from bert_tf.records.pairs import PairSettings, draw_segments
from bert_tf.records.token_file import Shard, TokenFile, TokenizedText, write_tokens
from tests import preparation
from tests.pretraining_data import SCHEMA, unmasked_ids, write_dataset
from tests.refusals import refused
from tests.tokenized import numbered_documents, tokenized


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
    settings = PairSettings.of(length, True, dupe_factor=3)
    found = drawn(documents, settings, 5)
    assert found == plainly(documents, length - 2, 3, 5)
    assert max(map(len, found)) <= length - 2
    tokens = [token for segment in found for token in segment]
    assert tokens == 3 * [token for document in documents for sentence in document for token in sentence]


def test_a_document_that_fits_is_one_instance_and_of_others_the_cuts_move():
    documents = numbered_documents(200, 6)
    passes = [drawn(documents, PairSettings.of(32, True, dupe_factor=1), seed) for seed in (1, 2)]
    short = [sum(document, []) for document in documents if sum(map(len, document)) <= 30]
    assert short and all(document in each for each in passes for document in short)
    both = {segment[0] for segment in passes[0]} & {segment[0] for segment in passes[1]}
    assert len(both) < 0.9 * len(passes[0])
    fewest = sum(-(-sum(map(len, document)) // 30) for document in documents)
    assert max(map(len, passes)) < 1.25 * fewest, "whole sentences leave some room, moving the cuts next to none"


def test_shards_that_no_pair_can_be_drawn_from(tmp_path):
    """One of a single sentence, and one that is empty."""
    settings = PairSettings.of(32, True)
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
    assert len(data.copies) == 5 and data.pair_settings == PairSettings.of(16, True)
    rows = data.features(data.ranges_in_file_order(0, data.num_instances), 1)
    ids, lengths = unmasked_ids(rows), rows["input_mask"].sum(axis=1)
    np.testing.assert_array_equal(rows["input_mask"], np.arange(16) < lengths[:, np.newaxis])
    assert not rows["segment_ids"].any() and not rows["next_sentence_labels"].any()
    assert (
        (ids[:, 0] == 2).all() and (ids[np.arange(len(ids)), lengths - 1] == 3).all() and ((ids == 3).sum() == len(ids))
    )
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


def test_a_file_of_the_other_kind_is_drawn_again(tmp_path):
    folder = write_dataset(tmp_path / "data", data_format="tokens")
    for path in (folder / "training").glob("*.16.pairs"):
        shutil.copyfile(path, path.with_suffix(".segments"))
    assert opened(folder).pair_settings.single_segments and len(opened(folder).copies) == 5


def test_records_and_too_many_predictions_are_refused(tmp_path, dataset):
    folder = write_dataset(tmp_path / "data", shards=(3,))
    single = (str(folder / "training"), "input_files", 16, MaskingRules(0.15, SCHEMA.num_predictions), True)
    refused("--no_next_sentence=True: the records of --input_files=.* token files", open_instances, *single)
    words = "--max_predictions_per_seq=15 .*at most 14 tokens can be masked"
    refused(words, TokenSet, str(dataset / "training"), "input_files", 16, MaskingRules(0.2, 15), True)


def test_preparation_makes_and_shows_them(tmp_path, capsys, monkeypatch):
    preparation.shard(tmp_path, preparation.documents(60), "--n_training_shards", 2, "--n_test_shards", 1)
    preparation.run(tmp_path, "create_vocab", "--vocab_size", 400)
    preparation.run(tmp_path, "create_token_files")
    capsys.readouterr()
    preparation.run(tmp_path, "create_pairs", "--max_seq_length", 64, "--no_next_sentence")
    said = capsys.readouterr().out
    assert "single segments of length 64: num_instances" in said and "random_next" not in said
    preparation.run(tmp_path, "create_pairs", "--max_seq_length", 32)
    preparation.run(tmp_path, "inspect")
    of_pairs, said = capsys.readouterr().out.split("  Single segments of length 64")
    assert "Pairs of length 32, masked as" in of_pairs and "what follows A (label 0)" in of_pairs
    assert ", masked as" in said and "tokens; a single segment" in said
    assert "random next" not in said and "nothing looks wrong" in said
    preparation.run(tmp_path, "status")
    assert "single segments of length 64\n" in capsys.readouterr().out
    (folder,) = tmp_path.glob("tokens/*/custom/training")

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(pair_file, "atomic_file", refuse)
    words = "the single segments of length 32 cannot be .*--max_seq_length 32 --no_next_sentence"
    refused(words, TokenSet, str(folder), "input_files", 32, MaskingRules(), True)
