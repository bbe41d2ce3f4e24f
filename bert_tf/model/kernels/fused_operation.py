"""What the operations in `fused_attention` and `fused_blocks` have in common."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels.compilation import Kernel, KernelsUnavailable
from bert_tf.model.kernels.launching import TYPES, Buffer, call, find_kernels
from bert_tf.model.randomness import ELEMENTS_PER_COUNT, threshold

Site = tuple[tf.Tensor, tf.Tensor]  # a dropout's key and first row, from `DropoutKey.at`
BITS_PER_WORD = 32
_WORDS_PER_PROGRAM = 128  # of each of a count's eight elements
_LARGEST_GRID = 65_535  # in the second and third dimension
_ELEMENTS_LIMIT = 1 << 31  # of an array with 32-bit offsets


class Launch(NamedTuple):
    """A kernel, and how an operation uses it."""

    module: str
    function: str
    input_types: Sequence[tf.DType]  # the types of its first parameters
    results: Sequence[Buffer]  # what it writes, its next parameters
    constants: Mapping[str, float]
    grid: tuple[int, int, int]  # of programs
    num_warps: int = 4
    num_stages: int = 1

    @property
    def kernel(self) -> Kernel:
        types = tuple(TYPES[dtype] for dtype in (*self.input_types, *(dtype for _, dtype in self.results)))
        constants = tuple(self.constants.items())
        return Kernel(self.module, self.function, types, constants, self.num_warps, self.num_stages)


class FusedOperation:
    """Base class of operations that run in kernels, for inputs of one shape. Subclasses are frozen dataclasses.

    Attributes:
      smallest_num_rows: the number of rows must be a multiple of this.

    Raises: KernelsUnavailable, on creation, if there are none for the shape or they cannot be used on this machine.
    """

    title: ClassVar[str]  # for the user
    smallest_num_rows: ClassVar[int] = 1
    has_wide_offsets: ClassVar[bool] = False  # whether all its kernels have 64-bit offsets
    num_rows: int
    dtype: tf.DType

    def __post_init__(self) -> None:
        if self.dtype not in (tf.bfloat16, tf.float16):
            raise KernelsUnavailable(f"they compute in bfloat16 and float16, not in {self.dtype.name}")
        if self.num_rows % self.smallest_num_rows:
            raise KernelsUnavailable(f"{self.num_rows} rows are no multiple of {self.smallest_num_rows}")
        if any(max(launch.grid[1:]) > _LARGEST_GRID for launch in self.launches):
            raise KernelsUnavailable(f"{self.num_rows} rows are too many for a launch")
        num_elements = max(math.prod(shape) for launch in self.launches for shape, _ in launch.results)
        if num_elements >= _ELEMENTS_LIMIT and not self.has_wide_offsets:
            raise KernelsUnavailable(
                f"{self.num_rows} rows have {num_elements} elements, too many for offsets of 32 bits"
            )
        find_kernels(self.kernels)

    @functools.cached_property
    def launches(self) -> list[Launch]:
        """The launches of the forward kernel, then of the gradients' kernels, then of the one that draws the dropout.

        Raises: KernelsUnavailable, if there are no kernels for the shape.
        """
        raise NotImplementedError

    @functools.cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(launch.kernel for launch in self.launches)

    def launch(self, number: int, *operands: tf.Tensor) -> list[tf.Tensor]:
        """The results of one of the `launches`."""
        launch = self.launches[number]
        return call(find_kernels(self.kernels)[number], launch.grid, operands, launch.results)

    def draw(self, site: Site | None) -> tf.Tensor:
        """The dropout's words, by the last of the `launches`: int32 [rows of the dropout, elements of a row / 32].

        Bits are set for the elements that are kept. Without a site nothing is dropped, and kernels read no words: [1].
        """
        return tf.zeros([1], tf.int32) if site is None else self.launch(-1, *site)[0]


def draw_keep_bits(rate: float, num_rows: int, num_elements: int) -> list[Launch]:
    """The launch for `FusedOperation.draw`, none if the rate is 0.

    `num_rows` and `num_elements` are the dropout's rows and the elements of each.

    Raises: KernelsUnavailable, if a row's elements do not fill words.
    """
    if rate == 0:
        return []
    num_counts = num_elements // ELEMENTS_PER_COUNT
    num_words = num_counts // BITS_PER_WORD
    if num_elements % (ELEMENTS_PER_COUNT * BITS_PER_WORD):
        raise KernelsUnavailable(f"a row's {num_elements} dropouts do not fill words of bits")
    lowest = threshold(rate) << 16  # for 16 bits in the upper half of a word
    constants = {"COUNTS": num_counts, "THRESHOLD": lowest, "BLOCK": _WORDS_PER_PROGRAM}
    words = ([num_rows, ELEMENTS_PER_COUNT * num_words], tf.int32)
    grid = (-(-num_words // _WORDS_PER_PROGRAM), num_rows, 1)
    return [Launch("dropout_bits", "draw_keep_bits", [tf.uint64, tf.int64], [words], constants, grid)]
