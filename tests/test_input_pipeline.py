import numpy as np
import pytest
import tensorflow as tf
from pretraining_data import SCHEMA, VOCAB_SIZE, write_dataset

from bert_tf.data_order import GlobalOrder
from bert_tf.errors import UserError
from bert_tf.input_pipeline import RecordSet, evaluation_batches, find_shards, training_batches
from bert_tf.records import RecordSchema


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("records"))


def batches(dataset, count, first_batch=0, accumulation=2, micro_batch=4, rank=0, ranks=1):
    records = RecordSet(str(dataset / "training"), "input_files")
    order = GlobalOrder(records.records_per_file, seed=1)
    iterator = training_batches(records, order, first_batch=first_batch, num_accumulation_steps=accumulation,
                                micro_batch_size=micro_batch, rank=rank, num_ranks=ranks, vocab_size=VOCAB_SIZE)
    return [next(iterator) for _ in range(count)]


def ids(batch):
    return batch["input_ids"].numpy().reshape(-1, SCHEMA.max_seq_length)


def test_shapes_types_and_equality_with_a_plain_reader(dataset):
    (batch,) = batches(dataset, 1)
    assert batch["input_ids"].shape == [2, 4, 16] and batch["masked_lm_weights"].shape == [2, 4, 3]
    assert {name: value.dtype for name, value in batch.items() if value.dtype != tf.int32} == {
        "masked_lm_weights": tf.float32, "example_weights": tf.float32}
    files = [str(path) for path in find_shards(str(dataset / "training"), "x")]
    everything = {}
    for raw in tf.data.TFRecordDataset(files):
        example = tf.train.Example.FromString(raw.numpy()).features.feature
        key = tuple(example["input_ids"].int64_list.value)
        everything[key] = tuple(example["masked_lm_ids"].int64_list.value)
    for row, labels in zip(ids(batch), batch["masked_lm_ids"].numpy().reshape(-1, 3)):
        assert everything[tuple(row)] == tuple(labels)


@pytest.mark.parametrize("accumulation, micro_batch, ranks", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4)])
def test_an_update_has_the_same_rows_however_it_is_split(dataset, accumulation, micro_batch, ranks):
    expected = [ids(batch) for batch in batches(dataset, 20)]  # more than one epoch of 137
    parts = [batches(dataset, 20, accumulation=accumulation, micro_batch=micro_batch, rank=rank, ranks=ranks)
             for rank in range(ranks)]
    for number, rows in enumerate(expected):
        np.testing.assert_array_equal(rows, np.concatenate([ids(part[number]) for part in parts]))


def test_going_on_gives_what_would_have_come(dataset):
    whole = batches(dataset, 30)
    for number, batch in enumerate(batches(dataset, 5, first_batch=25)):
        np.testing.assert_array_equal(ids(whole[25 + number]), ids(batch))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluation_sees_every_instance_once(dataset, ranks):
    records = RecordSet(str(dataset / "test"), "eval_files")
    seen, lengths = [], set()
    for rank in range(ranks):
        own = list(evaluation_batches(records, batch_size=4, max_batches=0, rank=rank, num_ranks=ranks,
                                      vocab_size=VOCAB_SIZE))
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


@pytest.mark.parametrize("pattern, words", [("nowhere/*.tfrecord", "names no record file"), ("", "is empty"),
                                            ("{0},{0}", "twice")])
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
