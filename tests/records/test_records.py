"""Records: TensorFlow's own bytes, the index, and files that are foreign, cut off or damaged."""

import gzip
import hashlib
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.records.schema import Features, RecordSchema
from bert_tf.records.shard import RecordFile, describe, encode_records, load_index, open_index, write_index
from bert_tf.records.shard import write_records as write_blocks
from tests.pretraining_data import write_records
from tests.refusals import refused

FIELDS = RecordSchema(0, 0).fields


def instances(count: int, length: int = 128, predictions: int = 20, vocab_size: int = 30522, seed: int = 0):
    """Random instances, no two alike, with ids over the whole vocabulary."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, length + 1, [count, 1])
    mask = np.arange(length) < lengths
    return {
        "input_ids": (rng.integers(0, vocab_size, [count, length]) * mask).astype(np.int32),
        "input_mask": mask.astype(np.uint8),
        "segment_ids": ((np.arange(length) > lengths // 2) & mask).astype(np.uint8),
        "masked_lm_positions": np.sort(rng.integers(1, length, [count, predictions]), axis=1),
        "masked_lm_ids": rng.integers(0, vocab_size, [count, predictions]),
        "masked_lm_weights": (rng.random([count, predictions]) < 0.9).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, [count, 1]),
    }


def as_example(rows: Features, number: int) -> tf.train.Example:
    """TensorFlow's own message of one instance."""
    example = tf.train.Example()
    for name, kind, _ in FIELDS:
        values = rows[name][number].tolist()
        feature = example.features.feature[name]
        (feature.int64_list if kind == "int64" else feature.float_list).value.extend(values)
    return example


def write_with_tensorflow(path, messages) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for message in messages:
            writer.write(message)


@pytest.fixture
def shard(tmp_path):
    rows = instances(50)
    write_records(tmp_path / "x.tfrecord", rows)
    return tmp_path / "x.tfrecord"


@pytest.mark.parametrize("length, predictions, vocab_size", [(16, 3, 128), (16, 3, 129), (7, 1, 1 << 20), (300, 1, 5)])
def test_messages_are_byte_for_byte_those_of_protobuf(length, predictions, vocab_size):
    rows = instances(40, length, predictions, vocab_size)
    rows["input_ids"][0, 0] = vocab_size - 1
    records, sizes = encode_records(rows)
    assert len(records) == sizes.sum()
    for number, end in enumerate(np.cumsum(sizes)):
        expected = as_example(rows, number).SerializeToString(deterministic=True)
        assert records[end - sizes[number] + 12 : end - 4] == expected


def test_files_are_byte_for_byte_those_of_tensorflow_however_they_are_cut_into_blocks(tmp_path, shard):
    rows = instances(50)
    messages = (as_example(rows, number).SerializeToString(deterministic=True) for number in range(50))
    write_with_tensorflow(tmp_path / "y", messages)
    assert shard.read_bytes() == (tmp_path / "y").read_bytes()
    index = shard.with_name("x.tfrecord.index").read_bytes()
    blocks = ({name: values[first : first + 17] for name, values in rows.items()} for first in range(0, 50, 17))
    assert write_blocks(shard, blocks) == hashlib.sha256((tmp_path / "y").read_bytes()).hexdigest()
    assert shard.read_bytes() == (tmp_path / "y").read_bytes()
    assert shard.with_name("x.tfrecord.index").read_bytes() == index and len(list(tmp_path.iterdir())) == 3


def test_random_access_gives_the_messages_by_an_index_of_places_and_lengths(shard):
    rows = instances(50)
    messages = [as_example(rows, number).SerializeToString(deterministic=True) for number in range(50)]
    file = RecordFile(shard)
    assert file.num_records == 50
    for first, count in ((49, 1), (0, 1), (3, 4), (0, 50), (7, 0)):
        assert file.read(first, count) == messages[first : first + count]
    index, (_, sizes) = file.index, encode_records(rows)
    np.testing.assert_array_equal(index.lengths(), rows["input_mask"].sum(axis=1))
    np.testing.assert_array_equal(index.offsets(), np.cumsum([0, *sizes]))
    assert (index.offsets().dtype, index.lengths().dtype) == (np.uint64, np.uint16)
    np.testing.assert_array_equal(index.offsets(17, 3), index.offsets()[17:21])
    np.testing.assert_array_equal(index.lengths(17, 3), index.lengths()[17:20])


def test_a_truncated_shard_is_refused_with_its_place(tmp_path, shard):
    data, offsets = shard.read_bytes(), load_index(shard).offsets().tolist()
    for size in (offsets[30] + 5, offsets[30] + 12, offsets[31] - 1):
        path = tmp_path / f"{size}.tfrecord"
        path.write_bytes(data[:size])
        words = f"{path}: record 30 at byte {offsets[30]} .* byte {size}.*create_tfrecord_files"
        refused(words, load_index, path)
        assert not (tmp_path / f"{size}.tfrecord.index").exists()


def test_damage_is_noticed_wherever_it_is(shard):
    index = load_index(shard)
    good = shard.read_bytes()
    first, end = index.offsets(7, 1).tolist()
    for place in [*range(first, first + 14), (first + end) // 2, *range(end - 6, end)]:
        damaged = bytearray(good)
        damaged[place] ^= 4
        shard.write_bytes(damaged)
        file = RecordFile(shard, index)
        file.read(6)
        file.read(8)
        refused(f"{shard}: record 7 at byte {first} ", file.read, 5, 4)


def test_a_gzip_shard_is_unpacked_beside_itself_once(tmp_path, shard):
    packed = tmp_path / "y.tfrecord.gz"
    packed.write_bytes(gzip.compress(shard.read_bytes()))
    assert describe(packed) == RecordSchema(128, 20)
    assert RecordFile(packed).read(3, 40) == RecordFile(shard).read(3, 40)
    unpacked = tmp_path / "y.tfrecord.gz.unpacked"
    assert unpacked.read_bytes() == shard.read_bytes()
    written = unpacked.stat().st_mtime_ns
    load_index(packed)
    assert unpacked.stat().st_mtime_ns == written, "not unpacked again"
    packed.write_bytes(gzip.compress(b""))
    os.utime(packed, ns=(written - 1, written - 1))  # as cp -a and rsync -a keep it
    assert load_index(packed).num_records == 0, "another shard is unpacked again"
    cut = packed.with_name("z.tfrecord.gz")
    cut.write_bytes(gzip.compress(shard.read_bytes())[:-9])
    refused("z.tfrecord.gz .*cannot be unpacked .*gunzip into", load_index, cut)


def test_integers_that_the_tables_do_not_hold_are_refused():
    rows = instances(3, 16, 3)
    for moved in (-5, 1 << 20):
        with pytest.raises(ValueError, match="integers from 0 to"):
            encode_records({**rows, "input_ids": rows["input_ids"] + moved})


def test_an_index_that_is_missing_stale_or_damaged_is_made_again(tmp_path, shard):
    index_file = tmp_path / "x.tfrecord.index"
    good = index_file.read_bytes()
    for bad in (None, b"", b"BERTidx1", good[:-1], b"bertIDX2" + good[8:]):
        index_file.unlink(missing_ok=True)
        if bad is not None:
            index_file.write_bytes(bad)
        assert load_index(shard).num_records == 50
        assert index_file.read_bytes() == good
    write_records(tmp_path / "y.tfrecord", instances(8, seed=1))
    os.replace(tmp_path / "y.tfrecord", shard)
    assert load_index(shard).num_records == 8


def test_an_index_that_does_not_fit_is_an_error_and_no_crash(shard):
    index = load_index(shard)
    for place, offset in ((8, 1 << 63), (7, 1 << 62), (8, 3), (8, int(index.offsets()[9]))):
        offsets = index.offsets().copy()
        offsets[place] = offset
        write_index(shard, offsets, index.lengths())
        file = RecordFile(shard)
        refused("record [67] .*delete its .index", file.read, 6, 4)
    shard.write_bytes(shard.read_bytes()[:-1])
    file = RecordFile(shard, index)
    refused("record 49 at byte .* is cut off", file.read, 49)


def test_what_is_no_shard_for_pre_training_is_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"This is a text, not a TFRecord file.")
    (tmp_path / "empty").write_bytes(b"")
    write_with_tensorflow(tmp_path / "junk", [b"no example"])
    other = tf.train.Example()
    other.features.feature["label"].int64_list.value.append(1)
    write_with_tensorflow(tmp_path / "other", [other.SerializeToString()])
    uneven = as_example(instances(1), 0)
    uneven.features.feature["segment_ids"].int64_list.value.append(1)
    write_with_tensorflow(tmp_path / "uneven", [uneven.SerializeToString()])
    for name, message in {
        "text": "no TFRecord",
        "empty": "holds no record",
        "junk": "no tf.train.Example",
        "other": "has 0 values of input_ids, .*; the file was made for something else",
        "uneven": "has 129 values of segment_ids",
        "none": "cannot be read",
    }.items():
        refused(f"{tmp_path / name}.*{message}", describe, tmp_path / name)


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("input_ids", -1, (1 << 20) - 1),
        ("masked_lm_ids", 1 << 40, (1 << 20) - 1),
        ("masked_lm_positions", 128, 127),
        ("next_sentence_labels", 2, 1),
        ("masked_lm_weights", float("nan"), "3.4"),
    ],
)
def test_numbers_that_no_instance_has_are_refused_by_record(tmp_path, name, value, limit):
    rows, path = instances(3), tmp_path / "x.tfrecord"
    examples = [as_example(rows, number) for number in range(3)]
    feature = examples[1].features.feature[name]
    (feature.float_list if isinstance(value, float) else feature.int64_list).value[0] = value
    write_with_tensorflow(path, [example.SerializeToString() for example in examples])
    refused(rf"x.tfrecord: record 1 at byte \d+ has {value} in {name}, .* from 0 to {limit}", load_index, path)
    assert open_index(path) is None
