import errno
import hashlib
import itertools
import os
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.batches import data_sets
from bert_tf.batches.batches import evaluation_batches, training_batches
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.data_sets import RecordSet, open_instances
from bert_tf.batches.instance_set import find_shards
from bert_tf.batches.masking import MaskingRules
from bert_tf.records import shard as shards
from bert_tf.records.schema import RecordSchema
from bert_tf.records.shard import load_index, write_index
from bert_tf.settings.programs import PretrainingOptions
from bert_tf.settings.training import BatchSplit, PretrainingConfig
from bert_tf.tasks.pretraining.task import PretrainingTask
from tests.preparation import flip
from tests.pretraining_data import (
    ROOMY,
    SCHEMA,
    VOCAB_SIZE,
    instances,
    open_dataset,
    unmasked_ids,
    write_dataset,
    write_manifest,
    write_records,
)
from tests.refusals import refused


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def token_dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("tokens"), data_format="tokens")


def updates(dataset, count, packing=False, first_batch=0, accumulation=8, micro_batch=2, rank=0, ranks=1, schema=ROOMY):
    data = open_dataset(dataset, schema=schema)
    order, split = GlobalOrder(data.copies, seed=1), BatchSplit(micro_batch, accumulation, ranks, rank)
    how = dict(first_batch=first_batch, vocab_size=VOCAB_SIZE, packing=packing)
    iterator = training_batches(data, order, split, **how)
    return [next(iterator) for _ in range(count)]


def batches(dataset, count, accumulation=2, micro_batch=4, **split):
    given = updates(dataset, count, accumulation=accumulation, micro_batch=micro_batch, schema=SCHEMA, **split)
    return [batch.features for batch in given]


def ids(batch):
    return batch["input_ids"].numpy().reshape(-1, SCHEMA.sequence_length)


def test_shapes_types_and_equality_with_a_plain_reader(dataset):
    (batch,) = batches(dataset, 1)
    assert batch["input_ids"].shape == [2, 4, 16] and batch["masked_lm_weights"].shape == [2, 4, 3]
    weights = {name: value.dtype for name, value in batch.items() if value.dtype != tf.int32}
    assert weights == dict.fromkeys(("masked_lm_weights", "example_weights"), tf.float32)
    files = [str(path) for path in find_shards(str(dataset / "training"), "x")]
    everything = {}
    for raw in tf.data.TFRecordDataset(files):
        example = tf.train.Example.FromString(raw.numpy()).features.feature
        key = tuple(example["input_ids"].int64_list.value)
        everything[key] = tuple(example["masked_lm_ids"].int64_list.value)
    for row, labels in zip(ids(batch), batch["masked_lm_ids"].numpy().reshape(-1, 3)):
        assert everything[tuple(row)] == tuple(labels)


@pytest.mark.parametrize("accumulation, micro_batch, ranks", [(8, 1, 1), (2, 2, 2), (1, 2, 4)])
@pytest.mark.parametrize("name", ["dataset", "token_dataset"])
def test_an_update_has_the_same_rows_and_masks_however_it_is_split(request, name, accumulation, micro_batch, ranks):
    data = request.getfixturevalue(name)
    split = dict(accumulation=accumulation, micro_batch=micro_batch, ranks=ranks)
    parts = [batches(data, 20, rank=rank, **split) for rank in range(ranks)]
    for number, batch in enumerate(batches(data, 20)):  # more than one epoch of 137
        np.testing.assert_array_equal(masks(batch), np.concatenate([masks(part[number]) for part in parts]))


@pytest.mark.parametrize("name", ["dataset", "token_dataset"])
def test_evaluation_sees_every_instance_once_with_the_same_masks_for_any_split(request, name):
    records = open_dataset(request.getfixturevalue(name), "test")
    seen = []
    for batch_size, ranks in ((4, 1), (4, 2), (3, 2), (4, 3)):
        splits = [BatchSplit(batch_size, 1, ranks, rank) for rank in range(ranks)]
        num_batches = -(-13 // (batch_size * ranks))
        parts = [list(evaluation_batches(records, split, num_batches, vocab_size=VOCAB_SIZE)) for split in splits]
        assert {*map(len, parts)} == {num_batches}, "all ranks must take part in as many reductions"
        rows = []
        for batch in itertools.chain.from_iterable(parts):
            is_real = batch["example_weights"].numpy() == 1
            rows += map(tuple, masks(batch)[is_real])
            assert not batch["masked_lm_weights"].numpy()[~is_real].any()
        seen.append(sorted(rows))
    assert len(seen[0]) == len(set(seen[0])) == 13 and all(rows == seen[0] for rows in seen)


def test_natural_order_of_shards(tmp_path):
    names = ["a_1.tfrecord", "a_1²2.tfrecord", "a_9.tfrecord", "a_10.tfrecord"]  # ² is a digit, and no number
    for name in [*names, "a_9.tfrecord.index", "a_9.tfrecord.unpacked", "a_9.tfrecord.tmp"]:
        (tmp_path / name).write_text("")
    assert [path.name for path in find_shards(str(tmp_path), "x")] == names


@pytest.mark.parametrize(
    "patterns, words",
    [
        ("nowhere/*.tfrecord", "names no record or token file"),
        (",", "',' names no file; give paths"),
        ("{0}/training,{0}/training", "twice"),
        ("{0}/training,{0}/test/../training", "twice"),
        ("{0}", "names no record or token file; .* the folder 'training' in it"),
        ("{0}/training,{1}/training", r"--input_files names records \(.*tfrecord\) and token files \(.*tokens\)"),
        ("{1}/training,{1}/test", "are of two splits"),
    ],
)
def test_what_is_no_set_of_shards_is_refused(dataset, token_dataset, patterns, words):
    refused(words, open_instances, patterns.format(dataset, token_dataset), "input_files", 16, MaskingRules(0.2, 3))


@pytest.mark.parametrize("data_format", ["records", "tokens"])
def test_a_folder_that_lacks_files_of_its_manifest_is_refused(tmp_path, data_format):
    """As one that is copied, or has links to a disk that is not there: a run on the rest would not show it."""
    write_dataset(tmp_path, data_format=data_format)
    lost = min((tmp_path / "training").glob(f"*_1.{'tfrecord' if data_format == 'records' else 'tokens'}"))
    lost.unlink()
    lost.symlink_to("nowhere")
    refused(f"=.*training lacks 1 of the files that .*{lost.name}: copy .* name the others", open_dataset, tmp_path)
    assert len(open_dataset(tmp_path, "test").files) == 2
    rules = MaskingRules(0.15 if data_format == "records" else 0.2, 3)
    assert len(open_instances(f"{lost.parent}/*{lost.suffix}", "input_files", 16, rules).files) == 2


def test_records_that_do_not_fit_are_refused(dataset):
    refused("--max_seq_length=128.*--max_seq_length=16 fits", open_dataset, dataset, schema=RecordSchema(128, 3))
    refused("--max_predictions_per_seq=20.*=3 fits", open_dataset, dataset, schema=RecordSchema(16, 20))
    arguments = str(dataset / "training"), "input_files", 16
    words = "=True: the records of --input_files=.* masked when .* token files"
    refused(f"--whole_word_masking{words}", open_instances, *arguments, MaskingRules(0.15, 3, True))
    refused(f"--no_next_sentence{words}", open_instances, *arguments, MaskingRules(0.15, 3), True)
    records = open_dataset(dataset)
    for num_rows, has_reserved_rows in ((VOCAB_SIZE, False), (VOCAB_SIZE + 8, False), (VOCAB_SIZE + 128, True)):
        warning = records.check_vocabulary(num_rows, has_reserved_rows=has_reserved_rows)
        assert ("40 pieces, the model's word table 168 rows" in warning) == (num_rows == VOCAB_SIZE + 128)
    for num_rows in (VOCAB_SIZE - 1, VOCAB_SIZE + 128):
        words = f"data of --input_files were made, has 40 pieces, but .*={num_rows}"
        refused(words, records.check_vocabulary, num_rows, has_reserved_rows=False)
    # As of records without a manifest, whose vocabulary is not known.
    refused("only 20 pieces", next, evaluation_batches(records, BatchSplit(64), 1, vocab_size=20))


@pytest.mark.parametrize("data_format", ["records", "tokens"])
@pytest.mark.parametrize(("sha256", "arguments"), [("ab" * 32, {}), ("", {"do_lower_case": False})])
def test_data_made_with_several_vocabularies_are_refused(tmp_path, data_format, sha256, arguments):
    one, other = (write_dataset(tmp_path / name, data_format=data_format) for name in "ab")
    patterns, rules = f"{one}/training,{other}/training", MaskingRules(0.15, 3)
    assert len(open_instances(patterns, "input_files", 16, rules).files) == 6
    write_manifest(other, data_format, arguments, sha256)
    words = f"--input_files: the data of {other} were made with another vocabulary, .* than those of {one}; use"
    refused(words, open_instances, patterns, "input_files", 16, rules)


@pytest.mark.parametrize("name", ["dataset", "token_dataset"])
def test_a_plan_takes_the_vocabulary_of_any_prepared_data(request, name):
    folder = request.getfixturevalue(name)
    options = PretrainingOptions(model_dir="unused", bert_model="tiny", input_files=str(folder / "training"))
    assert PretrainingTask.plan_config(options).vocab_size == VOCAB_SIZE


@pytest.mark.parametrize(
    "name, offset, words",
    [
        ("tfrecord", 3000, "tfrecord: record .* is damaged"),
        ("tokens", -200, "damaged.*--action verify --repair"),
        ("tokens", -40, "damaged.*--action verify --repair"),
        ("tokens.16.pairs", 60, "pairs is damaged; delete it"),
    ],
)
def test_a_flipped_byte_is_named_when_the_shard_is_first_read(tmp_path, name, offset, words):
    folder = write_dataset(tmp_path / "data", data_format="records" if name == "tfrecord" else "tokens")
    victim = folder / "training" / f"x_training_1.{name}"
    flip(victim, offset)
    refused(f"x_training_1.*{words}", batches, folder, 18)
    if name == "tokens":
        victim.write_bytes(victim.read_bytes()[:-7])
        refused("x_training_1.tokens is no token file .* cut short", open_dataset, folder)


# Token files, whose instances are assembled and masked while they are read.

MASKS = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def masks(batch):
    """Of each row, in order, everything that masking touches."""
    return np.concatenate([batch[name].numpy().reshape(-1, batch[name].shape[-1]) for name in MASKS], axis=1)


def test_each_epoch_has_its_own_pairs_until_the_copies_begin_again_with_other_masks(token_dataset):
    data = open_dataset(token_dataset)
    assert data.copies == [[70, 64, 3], [69, 63, 2]]
    order = GlobalOrder(data.copies, seed=1)
    starts = (0, 137, 137 + 134)
    passes = [data.features(order.ranges(start, size), 1) for start, size in zip(starts, (137, 134, 137))]
    assert [{part.epoch for part in order.ranges(start, 134)} for start in starts] == [{0}, {1}, {2}]
    assert passes[0]["masked_lm_ids"].shape == (137, 3) and passes[0]["input_ids"].shape == (137, 16)
    assert {name for name, value in passes[0].items() if value.dtype != np.int32} == {"masked_lm_weights"}
    lengths = passes[0]["input_mask"].sum(axis=1)
    np.testing.assert_array_equal(passes[0]["masked_lm_weights"].sum(axis=1), np.minimum(3, np.round(0.2 * lengths)))
    plain = [Counter(map(tuple, unmasked_ids(rows).tolist())) for rows in passes]
    assert plain[0] == plain[2] and not plain[1] - plain[0] and sum((plain[0] - plain[1]).values()) == 3
    masked = [Counter(map(tuple, rows["input_ids"].tolist())) for rows in passes]
    assert sum((masked[0] & masked[2]).values()) < 15


def test_masking_and_pairs_are_part_of_what_a_run_depends_on(token_dataset, tmp_path):
    data = open_dataset(token_dataset)
    assert data.schema == SCHEMA and data.facts()["masking_rules"]["masked_lm_prob"] == 0.2
    assert open_dataset(token_dataset, prob=0.3).fingerprint() != data.fingerprint()
    assert open_dataset(write_dataset(tmp_path / "same", data_format="tokens")).fingerprint() == data.fingerprint()
    other = write_dataset(tmp_path / "other", data_format="tokens", seed=1)
    assert open_dataset(other).fingerprint() != data.fingerprint()


def test_records_of_the_same_sizes_with_other_contents_are_other_data(tmp_path):
    """As those that were masked otherwise are."""
    paths = [write_dataset(tmp_path / name, seed=seed) / "training" for name, seed in (("a", 0), ("same", 0), ("b", 1))]
    assert len({file.stat().st_size for path in paths for file in path.glob("*_0.tfrecord")}) == 1
    data, same, other = (RecordSet(str(path), "input_files").fingerprint() for path in paths)
    assert data == same != other


def test_scores_of_another_number_of_instances_are_of_other_data(token_dataset):
    task = SimpleNamespace(held_out_instances=open_dataset(token_dataset))  # 137 of them

    def held_out(**settings):
        return PretrainingTask.held_out(task, PretrainingConfig(num_train_steps=1, eval_batch_size=8, **settings))

    assert held_out(max_eval_steps=2) == held_out(max_eval_steps=1, num_ranks=2) != held_out(max_eval_steps=3)
    assert held_out(max_eval_steps=20) == held_out(max_eval_steps=50) == held_out(max_eval_steps=0)


def test_token_files_without_what_lies_beside_them_are_refused(tmp_path):
    folder = write_dataset(tmp_path / "data", data_format="tokens")
    pieces = (folder / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(pieces + "another\n")
    refused("with a vocabulary of 40 pieces, but that of .*data has 41; keep", open_dataset, folder)
    (folder / "vocab.txt").rename(folder / "v.txt")
    refused("vocab.txt does not exist", open_dataset, folder)
    (folder / "manifest.json").unlink()
    refused("--input_files: there is no manifest.json beside the token files", open_dataset, folder)


# Rows of several instances.


MASKED = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def seen_by_a_model(given, row, is_token, first, label):
    """Of an instance, wherever it lies: its tokens and segments, its masks (position, label, weight), and its label."""
    masks = zip(*(given[name][row] for name in MASKED))
    masked = [(at - first, label, weight) for at, label, weight in masks if weight and is_token[at]]
    return *(given[name][row, is_token].tolist() for name in ("input_ids", "segment_ids")), masked, int(label)


def unpacked_instance(given, row):
    return seen_by_a_model(given, row, given["input_mask"][row] == 1, 0, given["next_sentence_labels"][row, 0])


def packed_instance(given, row, slot):
    is_token, first = given["instance_numbers"][row] == slot + 1, given["cls_positions"][row, slot]
    np.testing.assert_array_equal(given["position_ids"][row, is_token], np.arange(is_token.sum()))
    np.testing.assert_array_equal(np.flatnonzero(is_token), first + np.arange(is_token.sum()))
    return seen_by_a_model(given, row, is_token, first, given["next_sentence_labels"][row, slot])


def packed_instances(given):
    return sorted(packed_instance(given, *place) for place in np.argwhere(given["example_weights"] == 1))


@pytest.fixture(scope="module", params=["records", "tokens"])
def roomy_dataset(request, tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("roomy"), data_format=request.param, schema=ROOMY)


def flat(batch):
    return {name: value.numpy().reshape(-1, *value.shape[2:]) for name, value in batch.features.items()}


def rows_in_use(parts):
    """Of the ranks' parts of an update: all rows up to its number of micro-batches, in order."""
    used = [{name: value[: part.num_micro_batches] for name, value in part.features.items()} for part in parts]
    rows = [flat(part._replace(features=features)) for part, features in zip(parts, used)]
    return {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}


def test_packed_updates_hold_the_same_instances_in_fewer_micro_batches(roomy_dataset):
    plain, packed = updates(roomy_dataset, 20, False), updates(roomy_dataset, 20, True)  # over an epoch
    for one, other in zip(plain, packed):
        rows = flat(one)
        expected = sorted(unpacked_instance(rows, number) for number in range(16))
        assert packed_instances(rows_in_use([other])) == expected == packed_instances(flat(other))
        assert other.features["input_ids"].shape == one.features["input_ids"].shape
        assert other.num_tokens == one.num_tokens == rows["input_mask"].sum()
        assert (one.num_micro_batches, one.num_rows) == (None, 16) and other.num_rows == 2 * other.num_micro_batches
    assert len({batch.num_micro_batches for batch in packed}) > 1
    assert sum(batch.num_micro_batches for batch in packed) < 0.9 * sum(8 for _ in plain)


@pytest.mark.parametrize("accumulation, micro_batch, ranks", [(16, 1, 1), (4, 2, 2), (1, 1, 16)])
def test_packed_rows_and_their_order_do_not_know_the_split(roomy_dataset, accumulation, micro_batch, ranks):
    split = dict(accumulation=accumulation, micro_batch=micro_batch, ranks=ranks)
    parts = [updates(roomy_dataset, 5, True, rank=rank, **split) for rank in range(ranks)]
    for number, batch in enumerate(updates(roomy_dataset, 5, True)):
        share = [part[number] for part in parts]
        assert len({(part.num_micro_batches, part.num_rows, part.num_tokens) for part in share}) == 1
        expected, found = rows_in_use([batch]), rows_in_use(share)
        real = int(np.count_nonzero(expected["example_weights"][:, 0]))
        assert real == np.count_nonzero(found["example_weights"][:, 0])
        for name, values in expected.items():
            np.testing.assert_array_equal(values[:real], found[name][:real], err_msg=name)
            assert not found[name][real:].any(), "what is left over only fills"


@pytest.mark.parametrize(
    "data_format, packing, digest",
    [
        ("records", False, "bfcb845bf6fea319"),
        ("records", True, "aecf1a83a7e98a10"),
        ("tokens", False, "f4ec5201862a7d16"),
        ("tokens", True, "6b29e7172631a428"),
    ],
)
def test_batches_are_these_for_good(tmp_path, data_format, packing, digest):
    """A run that goes on under newer code must get the batches that it began with: never change these."""
    folder = write_dataset(tmp_path / "data", data_format=data_format, schema=ROOMY)
    sha256 = hashlib.sha256()
    for batch in updates(folder, 25, packing, first_batch=3, accumulation=4, rank=1, ranks=2):
        for name, values in sorted(batch.features.items()):
            sha256.update(name.encode() + values.numpy().tobytes())
        sha256.update(str(batch[1:]).encode())
    assert sha256.hexdigest()[:16] == digest


def test_packing_goes_by_the_lengths_in_the_indexes(tmp_path):
    folder = write_dataset(tmp_path / "data", shards=(40,), schema=ROOMY)
    records = RecordSet(str(folder / "training"), "input_files")
    assert records.fingerprint() != records.fingerprint(with_lengths=True)
    right = load_index(folder / "training" / "x_training_0.tfrecord")
    write_index(folder / "training" / "x_training_0.tfrecord", right.offsets(), right.lengths() // 2)
    refused("of a row's 40 positions for tokens, .*index beside them says", updates, folder, 1, True)


def test_records_of_unknown_rules_get_room_for_all_their_masks(tmp_path):
    folder = write_dataset(tmp_path / "data", schema=ROOMY)
    assert open_dataset(folder, schema=ROOMY).predictions_per_packed_row == 9
    write_manifest(folder, "records", {"masked_lm_prob": 0.05})
    assert open_dataset(folder, schema=ROOMY).predictions_per_packed_row == 4
    refused("of a row's 4 positions .*than masked_lm_prob in manifest.json", updates, folder, 1, True)
    (folder / "manifest.json").unlink()
    assert open_dataset(folder, schema=ROOMY).predictions_per_packed_row == 9
    updates(folder, 1, True)


def test_a_record_unlike_the_first_of_its_shard_is_named_when_it_is_read(tmp_path):
    folder = write_dataset(tmp_path / "data", shards=(40,))
    path = folder / "training" / "x_training_0.tfrecord"
    write_records(tmp_path / "short", instances(9, schema=RecordSchema(12, 3)))
    path.write_bytes(path.read_bytes() + (tmp_path / "short").read_bytes())
    refused("x_training_0.tfrecord .*records that were made with the same settings", batches, folder, 7)
    (tmp_path / "short").rename(folder / "training" / "x_training_9.tfrecord")
    refused("x_training_9.tfrecord holds .*=12, .*_0.tfrecord holds .*=16", open_dataset, folder)


def test_a_shard_without_records_is_no_fault_unless_all_are(tmp_path):
    folder = write_dataset(tmp_path / "data", shards=(1, 40, 1, 24))
    nothing = {name: values[:0] for name, values in instances(1).items()}
    for number in (0, 2):
        write_records(folder / "training" / f"x_training_{number}.tfrecord", nothing)
    records = RecordSet(str(folder / "training"), "input_files")
    assert records.schema == SCHEMA and records.copies == [[0, 40, 0, 24]]
    assert len(batches(folder, 9)) == 9
    for number in (1, 3):
        write_records(folder / "training" / f"x_training_{number}.tfrecord", nothing)
    refused(r"4 shard\(s\) of --input_files hold no record", RecordSet, str(folder / "training"), "input_files")


def test_indexes_that_cannot_be_stored_serve_all_the_same(tmp_path, monkeypatch):
    folder = write_dataset(tmp_path / "data", schema=ROOMY)
    expected = RecordSet(str(folder / "training"), "input_files").fingerprint(with_lengths=True)
    for path in (folder / "training").glob("*.index"):
        path.unlink()

    monkeypatch.setattr(shards, "write_index", mock.Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    assert RecordSet(str(folder / "training"), "input_files").fingerprint(with_lengths=True) == expected
    assert len(updates(folder, 3, True)) == 3 and not list((folder / "training").glob("*.index"))


def test_indexes_are_not_open_all_at_once(tmp_path, monkeypatch):
    """With over a thousand shards these would be more than the usual limit of open files."""
    folder, num_open = write_dataset(tmp_path / "data", shards=(3,) * 20), []

    def load(path):
        num_open.append(len(os.listdir("/dev/fd")))
        return load_index(path)

    monkeypatch.setattr(data_sets, "load_index", load)
    assert RecordSet(str(folder / "training"), "input_files").copies == [[3] * 20]
    assert max(num_open) - num_open[0] < 5
