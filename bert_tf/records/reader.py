"""Random access to the records of a shard, and the schema of a shard, no matter who wrote it."""

from __future__ import annotations

from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.records.index import RecordIndex, load_index, read_example
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

    Raises: UserError if the shard cannot be read, is empty, or does not hold instances for pre-training.
    """
    with TFRecordFile(Path(path)) as file:
        if not file.size:
            raise UserError(f"record file {path} holds no record; {HOW_TO_MEND}")
        record = file.read_at(0, 0)
        example = read_example(file, record)
    names = RecordSchema(0, 0, has_v2_names=b"input_word_ids" in record.message)
    sizes = {name: len(example[names.stored_name(name)]) for name, _, _ in names.fields}
    schema = RecordSchema(sizes["input_ids"], sizes["masked_lm_positions"], names.has_v2_names)
    for name, _, needed in schema.fields:
        if not sizes[name] or sizes[name] != needed:
            raise UserError(
                f"record file {path}: its first record has {sizes[name]} values of {names.stored_name(name)}, which "
                f"does not fit {schema}; the file was made for something else than pre-training"
            )
    return schema
