"""What the operations in `fused_attention` and `fused_blocks` have in common."""

from __future__ import annotations

import abc
import functools
from typing import ClassVar

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels.compilation import Kernel, Unavailable
from bert_tf.model.kernels.launching import find_kernels


class FusedOperation(abc.ABC):
    """Some operations of a model in kernels, for inputs of one shape. Subclasses are frozen dataclasses.

    Raises: Unavailable, when it is made: there are no kernels for the shape, or they cannot be used here.
    """

    title: ClassVar[str]  # for the user
    num_rows: int
    dtype: tf.DType

    def __post_init__(self) -> None:
        if self.num_rows % self.smallest_num_rows:
            raise Unavailable(f"{self.num_rows} rows are no multiple of {self.smallest_num_rows}")
        self.require_fit()
        _ = self.numbers

    @property
    @abc.abstractmethod
    def smallest_num_rows(self) -> int:
        """The number of rows must be a multiple of this."""

    @abc.abstractmethod
    def require_fit(self) -> None:
        """Raises: Unavailable, if there are no kernels for the shape."""

    @abc.abstractmethod
    def kernels(self) -> tuple[Kernel, ...]:
        """The forward kernel, and those of the gradients."""

    @functools.cached_property
    def numbers(self) -> list[int]:
        """What `launching.call` names the kernels by."""
        return find_kernels(self.kernels(), self.dtype)
