"""Dropout masks in bits, drawn by the kernel in `dropout_bits`."""

from __future__ import annotations

import dataclasses

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels.compilation import Kernel, Unavailable
from bert_tf.model.kernels.launching import INTEGERS, call, find_kernels
from bert_tf.model.randomness import ELEMENTS_PER_COUNT, threshold

Site = tuple[tf.Tensor, tf.Tensor]  # key and first row, from `DropoutKey.at`
BITS_PER_WORD = 32
_WORDS_OF_PROGRAM = 128  # for each of a count's eight elements


@dataclasses.dataclass(frozen=True)
class KeepBits:
    """The masks of a dropout. Raises: Unavailable, when it is made."""

    num_elements: int  # of a row
    rate: float

    def __post_init__(self) -> None:
        if self.rate == 0:
            return
        if self.num_elements % (ELEMENTS_PER_COUNT * BITS_PER_WORD):
            raise Unavailable(f"a row's {self.num_elements} dropouts do not fill words of bits")
        find_kernels(self._kernels())

    @property
    def _num_counts(self) -> int:
        return self.num_elements // ELEMENTS_PER_COUNT

    def _kernels(self) -> tuple[Kernel, ...]:
        lowest = threshold(self.rate) << 16  # of a word's upper half
        constants = {"COUNTS": self._num_counts, "THRESHOLD": lowest, "BLOCK": _WORDS_OF_PROGRAM}
        return (Kernel.of("dropout_bits", "draw_keep_bits", ["*u64", "*i64", INTEGERS], constants, 4, 1),)

    def draw(self, site: Site | None, num_rows: int) -> tf.Tensor:
        """Words int32 [num_rows, num_elements / 32], whose bits are set for the elements that are kept.

        Where nothing is dropped, without a site, the kernels read no words: [1].
        """
        if site is None:
            return tf.zeros([1], tf.int32)
        num_words = self._num_counts // BITS_PER_WORD
        (kernel,) = find_kernels(self._kernels())
        grid = (-(-num_words // _WORDS_OF_PROGRAM), num_rows, 1)
        return call(kernel, grid, site, [([num_rows, ELEMENTS_PER_COUNT * num_words], tf.int32)])[0]
