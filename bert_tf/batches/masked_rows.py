"""Instances as masked rows, ready for the model: in one pass by compiled code, `masked_rows.cpp`, or by NumPy.

Both give the same results. NumPy, in `records.assembly` and `batches.masking`, does what is not compiled: whole words
as units, and everything if there is no compiled code (`base.compiled`).

Shape letters: N instances, S sequence, P masked positions, T tokens.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from bert_tf.base.compiled import compiled_file, load_library
from bert_tf.batches.masking import KEEP_BELOW, MASK_BELOW, Masker
from bert_tf.records.assembly import assemble
from bert_tf.records.pairs import Pairs
from bert_tf.records.schema import RecordSchema

SOURCE = Path(__file__).with_suffix(".cpp")
_PAIRS = ("a_start", "a_end", "b_start", "b_end")
_FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
_SIZES = ("num_rows", "length", "num_predictions", "bits_stride", "num_replacements", "is_wide")


class _Rows(ctypes.Structure):
    """The struct `Rows` in masked_rows.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tokens", *_PAIRS, "num_masked", "bits", "replacements", *_FEATURES)),
        *((name, ctypes.c_int64) for name in (*_SIZES, "pad", "cls", "sep", "mask")),
        *((name, ctypes.c_uint64) for name in ("mask_below", "keep_below")),
    ]


class RowFiller:
    """Fills rows of `schema` from pairs of token ranges, masked by `masker`."""

    def __init__(self, masker: Masker, schema: RecordSchema):
        self._masker, self._schema = masker, schema
        self._code = None if masker.rules.whole_word_masking else load_library(compiled_file(SOURCE))

    def fill(
        self, tokens: np.ndarray, pairs: Pairs, seed: int, ranges: np.ndarray, features: dict[str, np.ndarray]
    ) -> None:
        """Writes N instances into `features`.

        Args:
          tokens: uint16 or int32 [T].
          pairs: ranges of `tokens`; at most S tokens including [CLS] and [SEP].
          seed, ranges: see `Masker.mask`.
          features: int32 and float32 [N, ...] by name, contiguous.
        """
        assert pairs.lengths.max() <= self._schema.max_seq_length
        assert max(pairs.a_end.max(), pairs.b_end.max()) <= len(tokens)
        features["next_sentence_labels"][:, 0] = pairs.is_random_next
        if self._code:
            self._fill_compiled(tokens, pairs, seed, ranges, features)
            return
        ids = self._masker.ids
        rows = assemble(tokens, pairs, self._schema.max_seq_length, pad=ids.pad, cls=ids.cls, sep=ids.sep)
        masked = self._masker.mask(rows["input_ids"], rows["input_mask"], seed, ranges)
        for name, values in {**rows, **masked._asdict()}.items():
            features[name][:] = values

    def _fill_compiled(
        self, tokens: np.ndarray, pairs: Pairs, seed: int, ranges: np.ndarray, features: dict[str, np.ndarray]
    ) -> None:
        assert self._code
        ids, length = self._masker.ids, self._schema.max_seq_length
        num_masked = self._masker.num_masked(pairs.lengths)
        bits = self._masker.random_bits(length, seed, ranges)
        made = [features[name] for name in _FEATURES]
        arrays = [tokens, *(getattr(pairs, name) for name in _PAIRS), num_masked, bits, ids.replacements, *made]
        # The compiled code assumes this; only the rows of `bits` may be apart, by the stride that it is given.
        assert all(array.flags.c_contiguous for array in arrays if array is not bits)
        assert all(getattr(pairs, name).dtype == np.int64 for name in _PAIRS)
        self._code.fill_rows(
            ctypes.byref(
                _Rows(
                    *(array.ctypes.data for array in arrays),
                    *(len(num_masked), length, self._schema.max_predictions_per_seq, bits.strides[0] // bits.itemsize),
                    *(len(ids.replacements), tokens.itemsize == 4),
                    *(ids.pad, ids.cls, ids.sep, ids.mask, MASK_BELOW, KEEP_BELOW),
                )
            )
        )
