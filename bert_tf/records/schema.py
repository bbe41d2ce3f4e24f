"""The features of a pre-training record: names, lengths and types, on disk and as arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LONGEST_SEQUENCE = np.iinfo(np.uint16).max
NUM_MARKERS = 3  # [CLS] A [SEP] B [SEP]; of a single segment, [CLS] A [SEP], one fewer
V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}


class RecordSchema(NamedTuple):
    """The two sizes that determine every feature's shape, and which feature names the file uses."""

    sequence_length: int
    num_predictions: int
    has_v2_names: bool = False  # those of the TF2 model garden and NVIDIA's TF2 recipe; read, never written

    @property
    def fields(self) -> tuple[tuple[str, str, int], ...]:
        """(name, "int64" or "float32", size) of every feature, sorted by name."""
        sequence, predictions, _ = self
        return (
            ("input_ids", "int64", sequence),
            ("input_mask", "int64", sequence),
            ("masked_lm_ids", "int64", predictions),
            ("masked_lm_positions", "int64", predictions),
            ("masked_lm_weights", "float32", predictions),
            ("next_sentence_labels", "int64", 1),
            ("segment_ids", "int64", sequence),
        )

    def __str__(self) -> str:
        names = f", {', '.join(V2_NAMES.values())}" if self.has_v2_names else ""
        return f"max_seq_length={self.sequence_length}, max_predictions_per_seq={self.num_predictions}{names}"

    def stored_name(self, name: str) -> str:
        """The feature's name in the file."""
        return V2_NAMES.get(name, name) if self.has_v2_names else name


class InstanceArrays(NamedTuple):
    """Instances as one array per feature: non-negative integers, float32 weights."""

    input_ids: np.ndarray  # [N, S]
    input_mask: np.ndarray  # [N, S] 1 for real tokens, then 0
    segment_ids: np.ndarray  # [N, S]
    masked_lm_positions: np.ndarray  # [N, P]
    masked_lm_ids: np.ndarray  # [N, P]
    masked_lm_weights: np.ndarray  # [N, P] 1 for a prediction, 0 for padding
    next_sentence_labels: np.ndarray  # [N] 1 = random, 0 = next

    @property
    def schema(self) -> RecordSchema:
        return RecordSchema(self.input_ids.shape[1], self.masked_lm_ids.shape[1])

    @property
    def num_instances(self) -> int:
        return len(self.input_ids)

    def rows(self, selection: slice | np.ndarray) -> InstanceArrays:
        return InstanceArrays(*(array[selection] for array in self))
