"""Random access to the records of a shard, and the schema of a shard, no matter who wrote it."""

from __future__ import annotations

from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.records.index import RecordIndex, load_index, read_features
from bert_tf.records.schema import RecordSchema
from bert_tf.records.tfrecord import HOW_TO_MEND, TFRecordFile


class RecordFile(TFRecordFile):
    """Random access to a shard's messages, every checksum verified.

    Raises: UserError as `load_index` does, or if the file's size has changed since it was indexed.
    """

    def __init__(self, path: str | Path, index: RecordIndex | None = None):
        """`index`: this file's index, from `load_index`; None loads it here."""
        self.index = index or load_index(path)
        super().__init__(Path(path))
        if self.size != self.index.data_bytes:
            raise UserError(
                f"{path} has {self.size} bytes, but had {self.index.data_bytes} when it was indexed; "
                "do not change record files while they are read: start again"
            )

    @property
    def num_records(self) -> int:
        return self.index.num_records

    def read(self, first: int, count: int = 1) -> list[bytes]:
        """The serialised tf.train.Examples [first, first + count), counted from 0.

        Raises: UserError, which names file, record and byte, if one is damaged.
        """
        return self.messages(first, self.index.offsets(first, count))


def describe(path: str | Path) -> RecordSchema:
    """The schema of a shard, from its first record.

    Raises: UserError if the shard cannot be read, is empty, or lacks a feature.
    """
    with TFRecordFile(Path(path)) as file:
        if not file.size:
            raise UserError(f"record file {path} holds no record; {HOW_TO_MEND}")
        record = file.read_at(0, 0)
        schema = RecordSchema(0, 0, has_v2_names=b"input_word_ids" in record.message)
        features = read_features(file, record, (schema.stored_name(name) for name, _, _ in schema.fields))
    sizes = {name: len(values) for (name, _, _), values in zip(schema.fields, features)}
    schema = schema._replace(max_seq_length=sizes["input_ids"], max_predictions_per_seq=sizes["masked_lm_positions"])
    for name, _, needed in schema.fields:
        if sizes[name] != needed:
            raise UserError(
                f"record file {path}: {name} has {sizes[name]} values where {schema} needs {needed}; "
                "the file was made for something else than pre-training"
            )
    return schema
