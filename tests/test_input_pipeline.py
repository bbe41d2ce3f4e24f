import errno
import gzip
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from pretraining_data import ROOMY, SCHEMA, VOCAB_SIZE, instances, make_instance_arrays, write_dataset, write_records
from test_packing import Instance

from bert_tf.base.errors import UserError
from bert_tf.batches.batches import evaluation_batches, training_batches
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.batches.record_set import RecordSet, find_shards
from bert_tf.config import BatchSplit
from bert_tf.records import index
from bert_tf.records.index import load_index, write_index
from bert_tf.records.schema import RecordSchema
from bert_tf.text.vocabulary import load_vocab

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def unmasked_dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("unmasked"), masking="dynamic")


def batches(dataset, count, first_batch=0, accumulation=2, micro_batch=4, rank=0, ranks=1):
    records = RecordSet(str(dataset / "training"), "input_files")
    order = GlobalOrder(records.records_per_file, seed=1)
    iterator = training_batches(
        records,
        order,
        BatchSplit(micro_batch, accumulation, ranks, rank),
        first_batch=first_batch,
        vocab_size=VOCAB_SIZE,
    )
    return [next(iterator).features for _ in range(count)]


def ids(batch):
    return batch["input_ids"].numpy().reshape(-1, SCHEMA.max_seq_length)


def test_shapes_types_and_equality_with_a_plain_reader(dataset):
    (batch,) = batches(dataset, 1)
    assert batch["input_ids"].shape == [2, 4, 16] and batch["masked_lm_weights"].shape == [2, 4, 3]
    assert {name: value.dtype for name, value in batch.items() if value.dtype != tf.int32} == {
        "masked_lm_weights": tf.float32,
        "example_weights": tf.float32,
    }
    files = [str(path) for path in find_shards(str(dataset / "training"), "x")]
    everything = {}
    for raw in tf.data.TFRecordDataset(files):
        example = tf.train.Example.FromString(raw.numpy()).features.feature
        key = tuple(example["input_ids"].int64_list.value)
        everything[key] = tuple(example["masked_lm_ids"].int64_list.value)
    for row, labels in zip(ids(batch), batch["masked_lm_ids"].numpy().reshape(-1, 3)):
        assert everything[tuple(row)] == tuple(labels)


@pytest.mark.parametrize("accumulation, micro_batch, ranks", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4)])
@pytest.mark.parametrize("name", ["dataset", "unmasked_dataset"])
def test_an_update_has_the_same_rows_and_masks_however_it_is_split(request, name, accumulation, micro_batch, ranks):
    data = request.getfixturevalue(name)
    expected = map(masks, batches(data, 20))  # more than one epoch of 137
    parts = [
        batches(data, 20, accumulation=accumulation, micro_batch=micro_batch, rank=rank, ranks=ranks)
        for rank in range(ranks)
    ]
    for number, rows in enumerate(expected):
        np.testing.assert_array_equal(rows, np.concatenate([masks(part[number]) for part in parts]))


@pytest.mark.parametrize("name", ["dataset", "unmasked_dataset"])
def test_going_on_gives_what_would_have_come(request, name):
    whole = batches(request.getfixturevalue(name), 30)
    for number, batch in enumerate(batches(request.getfixturevalue(name), 5, first_batch=25)):
        np.testing.assert_array_equal(masks(whole[25 + number]), masks(batch))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluation_sees_every_instance_once(dataset, ranks):
    records = RecordSet(str(dataset / "test"), "eval_files")
    seen, lengths = [], set()
    for rank in range(ranks):
        own = list(
            evaluation_batches(records, batch_size=4, max_batches=0, rank=rank, num_ranks=ranks, vocab_size=VOCAB_SIZE)
        )
        lengths.add(len(own))
        for batch in own:
            real = batch["example_weights"].numpy() == 1
            seen += [tuple(row) for row in batch["input_ids"].numpy()[real]]
            assert not batch["masked_lm_weights"].numpy()[~real].any()
    assert len(lengths) == 1, "all ranks must take part in as many reductions"
    assert len(seen) == records.num_instances == 13


def test_natural_order_of_shards(tmp_path):
    for number in (10, 9, 1):
        (tmp_path / f"a_{number}.tfrecord").write_text("")
        (tmp_path / f"a_{number}.tfrecord.index").write_text("")
    assert [path.name for path in find_shards(str(tmp_path), "x")] == ["a_1.tfrecord", "a_9.tfrecord", "a_10.tfrecord"]


@pytest.mark.parametrize(
    "pattern, words", [("nowhere/*.tfrecord", "names no record file"), ("", "is empty"), ("{0},{0}", "twice")]
)
def test_bad_patterns(dataset, pattern, words):
    with pytest.raises(UserError, match=words):
        find_shards(pattern.format(dataset / "training"), "input_files")


def test_records_that_do_not_fit_are_refused(dataset):
    records = RecordSet(str(dataset / "training"), "input_files")
    records.check(SCHEMA, VOCAB_SIZE, "input_files")
    with pytest.raises(UserError, match="--max_seq_length=128.*have 16"):
        records.check(RecordSchema(128, 3), VOCAB_SIZE, "input_files")
    with pytest.raises(UserError, match="--max_predictions_per_seq=20.*have 3"):
        records.check(RecordSchema(16, 20), VOCAB_SIZE, "input_files")
    with pytest.raises(UserError, match="has 41 pieces.*one of 40"):
        records.check(SCHEMA, 41, "input_files")


def test_piece_outside_the_vocabulary_is_refused_without_a_manifest(dataset):
    records = RecordSet(str(dataset / "training"), "input_files")
    iterator = evaluation_batches(records, batch_size=64, max_batches=0, rank=0, num_ranks=1, vocab_size=20)
    with pytest.raises(UserError, match="only 20 pieces"):
        next(iterator)


def test_damaged_record_is_named_with_its_file(tmp_path):
    folder = write_dataset(tmp_path / "data")
    victim = folder / "training" / "x_training_1.tfrecord"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(UserError, match="x_training_1.tfrecord"):
        batches(folder, 18)


# Records whose masks are drawn while they are read.

MASKS = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def masks(batch):
    """Of each row, in order, everything that masking touches."""
    return np.concatenate([batch[name].numpy().reshape(-1, batch[name].shape[-1]) for name in MASKS], axis=1)


def originals(batch):
    """The rows without their masks."""
    rows = ids(batch).copy()
    positions, labels, weights = (batch[name].numpy().reshape(len(rows), -1) for name in MASKS[1:])
    for row, *masked in zip(rows, positions, labels, weights):
        for position, label, weight in zip(*masked):
            if weight:
                row[position] = label
    return [tuple(row) for row in rows]


def test_unmasked_records_are_masked_anew_in_each_epoch(unmasked_dataset):
    (batch,) = batches(unmasked_dataset, 1, accumulation=1, micro_batch=137)
    (again,) = batches(unmasked_dataset, 1, first_batch=1, accumulation=1, micro_batch=137)
    assert batch["masked_lm_ids"].shape == [1, 137, 3] and batch["input_ids"].shape == [1, 137, 16]
    assert {name: value.dtype for name, value in batch.items() if value.dtype != tf.int32} == {
        "masked_lm_weights": tf.float32,
        "example_weights": tf.float32,
    }
    assert Counter(originals(batch)) == Counter(originals(again)), "the same instances"
    first, second = (Counter(map(tuple, masks(rows))) for rows in (batch, again))
    assert sum((first & second).values()) < 15
    lengths = batch["input_mask"].numpy()[0].sum(axis=1)
    np.testing.assert_array_equal(
        batch["masked_lm_weights"].numpy()[0].sum(axis=1), np.minimum(3, np.round(0.2 * lengths))
    )


def test_masks_come_from_the_run_s_seed_the_epoch_and_the_record_s_place_among_all(unmasked_dataset):
    records = RecordSet(str(unmasked_dataset / "training"), "input_files")
    ids_of = VocabularyIds.of(load_vocab(unmasked_dataset / "vocab.txt"))
    masker = Masker(MaskingRules(0.2, SCHEMA.max_predictions_per_seq), ids_of)
    first_of = [0, 70, 134]  # shards of 70, 64 and 3
    numbered = [
        (run.epoch, first_of[run.file] + run.first, run.num_records)
        for run in GlobalOrder(records.records_per_file, seed=1).ranges(0, 160)
    ]
    assert {epoch for epoch, _, _ in numbered} == {0, 1}
    rows = [row for batch in batches(unmasked_dataset, 20) for row in originals(batch)]
    found = np.concatenate([ids(batch) for batch in batches(unmasked_dataset, 20)])
    expected = masker.mask(np.array(rows), np.array(rows) != 0, 1, np.array(numbered))
    np.testing.assert_array_equal(found, expected.input_ids)


def test_evaluation_always_has_the_same_masks(unmasked_dataset):
    records = RecordSet(str(unmasked_dataset / "test"), "eval_files")
    seen = []
    for batch_size, ranks in ((4, 1), (4, 1), (3, 2)):
        rows = []
        for rank in range(ranks):
            for batch in evaluation_batches(
                records, batch_size=batch_size, max_batches=0, rank=rank, num_ranks=ranks, vocab_size=VOCAB_SIZE
            ):
                real = batch["example_weights"].numpy() == 1
                assert not batch["masked_lm_weights"].numpy()[~real].any()
                rows += map(tuple, masks(batch)[real])
        seen.append(sorted(rows))
    assert len(seen[0]) == 13 and seen[0] == seen[1] == seen[2]


def test_masking_is_part_of_what_a_run_depends_on(unmasked_dataset, dataset, tmp_path):
    records = RecordSet(str(unmasked_dataset / "training"), "input_files")
    assert records.schema == SCHEMA and records.facts()["masking"] == "dynamic"
    assert RecordSet(str(dataset / "training"), "input_files").facts()["masking"] == "static"
    folder = write_dataset(tmp_path / "other", masking="dynamic")
    text = (folder / "manifest.json").read_text().replace('"masked_lm_prob": 0.2', '"masked_lm_prob": 0.3')
    (folder / "manifest.json").write_text(text)
    other = RecordSet(str(folder / "training"), "input_files")
    assert other.fingerprint() != records.fingerprint()


def test_unmasked_records_without_their_manifest_are_refused(tmp_path):
    folder = write_dataset(tmp_path / "data", masking="dynamic")
    (folder / "vocab.txt").rename(folder / "v.txt")
    with pytest.raises(UserError, match="vocab.txt cannot be read"):
        RecordSet(str(folder / "training"), "input_files")
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="--input_files .*are unmasked, but no manifest.json.*keep records"):
        RecordSet(str(folder / "training"), "input_files")


# Rows of several instances.


@pytest.fixture(scope="module", params=["static", "dynamic"])
def roomy_dataset(request, tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("roomy"), masking=request.param, schema=ROOMY)


def updates(dataset, count, packing, first_batch=0, accumulation=8, micro_batch=2, rank=0, ranks=1):
    records = RecordSet(str(dataset / "training"), "input_files")
    iterator = training_batches(
        records,
        GlobalOrder(records.records_per_file, seed=1),
        BatchSplit(micro_batch, accumulation, ranks, rank),
        first_batch=first_batch,
        vocab_size=VOCAB_SIZE,
        packing=packing,
    )
    return [next(iterator) for _ in range(count)]


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
        expected = sorted(Instance.unpacked(rows, number) for number in range(16))
        assert Instance.all_packed(rows_in_use([other])) == expected == Instance.all_packed(flat(other))
        assert other.features["input_ids"].shape == one.features["input_ids"].shape
        assert other.num_tokens == one.num_tokens == rows["input_mask"].sum()
        assert (one.num_micro_batches, one.num_rows) == (None, 16) and other.num_rows == 2 * other.num_micro_batches
    assert len({batch.num_micro_batches for batch in packed}) > 1
    assert sum(batch.num_micro_batches for batch in packed) < 0.9 * sum(8 for _ in plain)


@pytest.mark.parametrize("accumulation, micro_batch, ranks", [(16, 1, 1), (1, 16, 1), (4, 2, 2), (1, 1, 16)])
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


def test_packed_updates_are_the_same_after_a_restart(roomy_dataset):
    whole = updates(roomy_dataset, 12, True)
    for before, after in zip(whole[9:], updates(roomy_dataset, 3, True, first_batch=9)):
        assert before.num_micro_batches == after.num_micro_batches
        for name, value in before.features.items():
            np.testing.assert_array_equal(value, after.features[name])


def test_packing_goes_by_the_lengths_in_the_indexes(tmp_path):
    folder = write_dataset(tmp_path / "data", shards=(40,), schema=ROOMY)
    records = RecordSet(str(folder / "training"), "input_files")
    assert records.fingerprint() != records.fingerprint(packing=True)
    right = load_index(folder / "training" / "x_training_0.tfrecord")
    lengths = right.lengths().copy()
    lengths[7] -= 1
    write_index(folder / "training" / "x_training_0.tfrecord", right.offsets(), lengths)
    records = RecordSet(str(folder / "training"), "input_files")
    iterator = training_batches(
        records, GlobalOrder([40], seed=1), BatchSplit(10, 4), first_batch=0, vocab_size=VOCAB_SIZE, packing=True
    )
    with pytest.raises(UserError, match="record 7 does not hold.*delete x_training_0.tfrecord.index"):
        next(iterator)


def test_records_of_unknown_rules_get_room_for_all_their_masks(tmp_path):
    folder = write_dataset(tmp_path / "data", schema=ROOMY)
    assert RecordSet(str(folder / "training"), "x").predictions_per_packed_row == 9
    (folder / "manifest.json").write_text('{"arguments": {"masked_lm_prob": 0.05}}')
    assert RecordSet(str(folder / "training"), "x").predictions_per_packed_row == 4
    with pytest.raises(UserError, match="masked tokens in a row with room for 4.*manifest.json"):
        updates(folder, 1, True)
    (folder / "manifest.json").unlink()
    assert RecordSet(str(folder / "training"), "x").predictions_per_packed_row == 9
    updates(folder, 1, True)


@pytest.mark.parametrize("length", [12, 40])
def test_a_shard_of_shorter_or_longer_records_is_named_at_the_start(tmp_path, length):
    folder = write_dataset(tmp_path / "data")
    other = instances(9, schema=RecordSchema(length, 3))
    write_records(folder / "training" / "x_training_9.tfrecord", make_instance_arrays(other))
    with pytest.raises(UserError, match=f"x_training_9.tfrecord holds .*={length}, .*_0.tfrecord holds .*=16"):
        RecordSet(str(folder / "training"), "input_files")


def test_a_record_unlike_the_first_of_its_shard_is_named_when_it_is_read(tmp_path):
    folder = write_dataset(tmp_path / "data", shards=(40,))
    path = folder / "training" / "x_training_0.tfrecord"
    write_records(tmp_path / "short", make_instance_arrays(instances(9, schema=RecordSchema(12, 3))))
    path.write_bytes(path.read_bytes() + (tmp_path / "short").read_bytes())
    with pytest.raises(UserError, match="x_training_0.tfrecord .*records that were made with the same settings"):
        batches(folder, 7)


def test_a_shard_without_records_is_no_fault_unless_all_are(tmp_path):
    folder = write_dataset(tmp_path / "data", shards=(1, 40, 1, 24))
    nothing = make_instance_arrays(instances(1)).rows(slice(0, 0))
    for number in (0, 2):
        write_records(folder / "training" / f"x_training_{number}.tfrecord", nothing)
    records = RecordSet(str(folder / "training"), "input_files")
    assert records.stored_schema == SCHEMA and records.records_per_file == [0, 40, 0, 24]
    assert len(batches(folder, 9)) == 9
    for number in (1, 3):
        write_records(folder / "training" / f"x_training_{number}.tfrecord", nothing)
    with pytest.raises(UserError, match=r"4 shard\(s\) of --input_files hold no record"):
        RecordSet(str(folder / "training"), "input_files")


def test_gzip_shards_are_read(tmp_path, dataset):
    folder = tmp_path / "packed"
    folder.mkdir()
    for path in find_shards(str(dataset / "training"), "x"):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    records = RecordSet(str(folder), "input_files")
    assert [path.suffix for path in records.files] == [".gz"] * 3, "neither indexes nor unpacked copies are shards"
    ranges = GlobalOrder(records.records_per_file, seed=1).ranges(0, 137)
    assert records.read(ranges) == RecordSet(str(dataset / "training"), "input_files").read(ranges)


def test_missing_indexes_are_made_once(tmp_path, monkeypatch):
    folder = write_dataset(tmp_path / "data")
    for path in (folder / "training").glob("*.index"):
        path.unlink()
    RecordSet(str(folder / "training"), "input_files")
    monkeypatch.setattr(index.ExampleFrames, "scan", None)
    assert RecordSet(str(folder / "training"), "input_files").num_instances == 137


def test_indexes_that_cannot_be_stored_serve_all_the_same(tmp_path, monkeypatch):
    folder = write_dataset(tmp_path / "data", schema=ROOMY)
    expected = RecordSet(str(folder / "training"), "input_files").fingerprint(packing=True)
    for path in (folder / "training").glob("*.index"):
        path.unlink()

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(index, "write_index", refuse)
    assert RecordSet(str(folder / "training"), "input_files").fingerprint(packing=True) == expected
    assert len(updates(folder, 3, True)) == 3 and not list((folder / "training").glob("*.index"))


def test_lengths_are_read_only_where_rows_are_packed(tmp_path, monkeypatch):
    folder = write_dataset(tmp_path / "data", schema=ROOMY)

    def refuse(*_):
        raise AssertionError("lengths are read")

    monkeypatch.setattr(index.RecordIndex, "lengths", refuse)
    updates(folder, 3, False)
    with pytest.raises(AssertionError, match="lengths are read"):
        updates(folder, 1, True)


@pytest.mark.slow
def test_batches_that_nobody_takes_do_not_keep_a_program_from_ending(unmasked_dataset):
    program = f"""
import sys
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.batches import training_batches
from bert_tf.batches.record_set import RecordSet
from bert_tf.config import BatchSplit
records = RecordSet({str(unmasked_dataset / "training")!r}, "input_files")
order = GlobalOrder(records.records_per_file, seed=1)
batches = training_batches(records, order, BatchSplit(8), first_batch=0, vocab_size={VOCAB_SIZE})
next(batches)
sys.exit(3)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr.count("Error")) == (3, 0), ended.stderr
