"""Random access to the records of a shard, and the schema of a shard, no matter who wrote it."""

from __future__ import annotations

from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.records.index import RecordIndex, index_path, load_index, read_features
from bert_tf.records.schema import RecordSchema
from bert_tf.records.tfrecord import HOW_TO_MEND, DamagedRecord, TFRecordFile


class RecordFile(TFRecordFile):
    """Random access to a shard's messages, every checksum verified.

    Raises: UserError as `load_index` does, or if the file's size has changed since it was indexed.
    """

    def __init__(self, path: str | Path, index: RecordIndex | None = None):
        """`index`: this file's index, from `load_index`; None loads it here."""
        self.index = load_index(path) if index is None else index
        super().__init__(Path(path))
        if self.size != self.index.data_bytes:
            self.close()
            raise UserError(
                f"{path} has {self.size} bytes, but had {self.index.data_bytes} when it was indexed; "
                "do not change record files while they are read: start again"
            )

    @property
    def num_records(self) -> int:
        return self.index.num_records

    def read(self, number: int) -> bytes:
        """The serialised tf.train.Example of record `number`, counted from 0.

        Raises: UserError, which names file, record and byte, if it is damaged; IndexError.
        """
        if not 0 <= number < self.num_records:
            raise IndexError(f"record {number} of {self.num_records}")
        offset, end = self.index.offsets(number, 1).tolist()
        index_file = index_path(self.path)
        try:
            record = self.read_at(offset, number)
            if record.end != end:
                fault = f"does not end where {index_file.name} says; if the file is sound, delete that"
                raise self.fault(number, offset, fault)
        except DamagedRecord:
            if self.index.is_stored and not self.index.has_right_checksum():
                raise UserError(f"{index_file} is damaged; delete it, and it is made again") from None
            raise
        return record.message

    def read_block(self, first: int, count: int) -> list[bytes]:
        """The records [first, first + count). Raises as `read` does."""
        messages = None
        if count and 0 <= first <= self.num_records - count:
            messages = self.block(self.index.offsets(first, count))
        # Reading one by one raises an error that names the damaged record.
        return [self.read(number) for number in range(first, first + count)] if messages is None else messages


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
    schema = schema._replace(sequence_length=sizes["input_ids"], num_predictions=sizes["masked_lm_positions"])
    for name, _, needed in schema.fields:
        if sizes[name] != needed:
            raise UserError(
                f"record file {path}: {name} has {sizes[name]} values where {schema} needs {needed}; "
                "the file was made for something else than pre-training"
            )
    return schema
