"""What lies between the matmuls of a layer, and the loss, as calls of `between_matmuls` and `word_loss`.

Shape letters: B batch, S sequence, H hidden, I intermediate, R rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels.compilation import Kernel, Unavailable
from bert_tf.model.kernels.drawing import BITS_PER_WORD, KeepBits, Site
from bert_tf.model.kernels.fused_operation import FusedOperation
from bert_tf.model.kernels.launching import DATA, FLOATS, INTEGERS, call
from bert_tf.model.randomness import keep_scale

# Rows that a kernel's programs take at once, and how often: the fastest on an H200.
_NORM_ROWS, _NORM_STEPS, _NORM_WARPS = 4, 16, 4
_GELU_ROWS, _GELU_STEPS, _GELU_WARPS = 8, 16, 4
_LOSS_ROWS, _LOSS_STEPS, _LOSS_COLUMNS = 8, 8, 512
_LARGEST_NORM = 4096
_ELEMENTS_LIMIT = 1 << 31


@dataclasses.dataclass(frozen=True)
class AddNorm(FusedOperation):
    """LayerNorm(residual + dropout(x + bias))."""

    title: ClassVar[str] = "LayerNorm"
    num_rows: int  # R
    sequence_length: int  # rows of the dropout's first dimension
    hidden_size: int
    dropout_rate: float
    epsilon: float
    dtype: tf.DType

    @property
    def smallest_num_rows(self) -> int:
        return _NORM_ROWS * _NORM_STEPS

    def require_fit(self) -> None:
        if self.hidden_size % BITS_PER_WORD or self.hidden_size > _LARGEST_NORM:
            raise Unavailable(f"a hidden size of {self.hidden_size} is no multiple of 32, or over {_LARGEST_NORM}")
        _ = self._keep_bits

    @functools.cached_property
    def _keep_bits(self) -> KeepBits:
        return KeepBits(self.sequence_length * self.hidden_size, self.dropout_rate)

    def kernels(self) -> tuple[Kernel, Kernel]:
        constants = {
            "H": self.hidden_size,
            "COLUMNS": 1 << (self.hidden_size - 1).bit_length(),
            "ROWS": _NORM_ROWS,
            "KEEP_SCALE": keep_scale(self.dropout_rate),
        }
        forward = [DATA, FLOATS, DATA, FLOATS, FLOATS, INTEGERS, DATA, DATA, FLOATS, FLOATS]
        gradients = [DATA, DATA, *[FLOATS] * 3, INTEGERS, DATA, DATA, FLOATS]
        module, epsilon, steps = "between_matmuls", {"EPSILON": self.epsilon}, {"STEPS": _NORM_STEPS}
        return (
            Kernel.of(module, "add_norm_forward", forward, {**constants, **epsilon}, _NORM_WARPS, 1),
            Kernel.of(module, "add_norm_gradients", gradients, {**constants, **steps}, _NORM_WARPS, 1),
        )

    def __call__(self, x_RxH, bias_H, residual_RxH, gamma_H, beta_H, site: Site | None) -> tf.Tensor:
        forward, gradients = self.numbers
        words = self._keep_bits.draw(site, self.num_rows // self.sequence_length)
        flat = ([self.num_rows, self.hidden_size], self.dtype)
        by_row = ([self.num_rows], tf.float32)

        @tf.custom_gradient
        def run(x_RxH, bias_H, residual_RxH, gamma_H, beta_H):
            result, argument, means, inverses = call(
                forward,
                (self.num_rows // _NORM_ROWS, 1, 1),
                [x_RxH, bias_H, residual_RxH, gamma_H, beta_H, words],
                [flat, flat, by_row, by_row],
            )

            def gradient(d_result_RxH: tf.Tensor) -> list[tf.Tensor]:
                num_programs = self.num_rows // self.smallest_num_rows
                d_x, d_residual, sums = call(
                    gradients,
                    (num_programs, 1, 1),
                    [d_result_RxH, argument, means, inverses, gamma_H, words],
                    [flat, flat, ([num_programs, 3, self.hidden_size], tf.float32)],
                )
                d_gamma, d_beta, d_bias = tf.unstack(tf.reduce_sum(sums, axis=0))
                return [d_x, d_bias, d_residual, d_gamma, d_beta]

            return result, gradient

        return run(*map(tf.convert_to_tensor, (x_RxH, bias_H, residual_RxH, gamma_H, beta_H)))


@dataclasses.dataclass(frozen=True)
class BiasGelu(FusedOperation):
    """GELU(x + bias)."""

    title: ClassVar[str] = "GELU"
    num_rows: int
    intermediate_size: int
    exact: bool
    dtype: tf.DType

    @property
    def smallest_num_rows(self) -> int:
        return _GELU_ROWS * _GELU_STEPS

    def require_fit(self) -> None:
        if self.num_rows * self.intermediate_size >= _ELEMENTS_LIMIT:
            raise Unavailable(f"{self.num_rows} rows of {self.intermediate_size} are too many for offsets of 32 bits")
        if self.intermediate_size % 128:
            raise Unavailable(f"an intermediate size of {self.intermediate_size} is no multiple of 128")

    @property
    def _num_columns(self) -> int:
        return next(size for size in (256, 128) if self.intermediate_size % size == 0)

    def kernels(self) -> tuple[Kernel, Kernel]:
        constants = {
            "WIDTH": self.intermediate_size,
            "COLUMNS": self._num_columns,
            "ROWS": _GELU_ROWS,
            "EXACT": self.exact,
        }
        module, gradients = "between_matmuls", [DATA, DATA, FLOATS, DATA, FLOATS]
        return (
            Kernel.of(module, "bias_gelu_forward", [DATA, FLOATS, DATA], constants, _GELU_WARPS, 1),
            Kernel.of(module, "bias_gelu_gradients", gradients, {**constants, "STEPS": _GELU_STEPS}, _GELU_WARPS, 1),
        )

    def __call__(self, x_RxI, bias_I) -> tf.Tensor:
        forward, gradients = self.numbers
        num_blocks = self.intermediate_size // self._num_columns
        flat = ([self.num_rows, self.intermediate_size], self.dtype)

        @tf.custom_gradient
        def run(x_RxI, bias_I):
            (result,) = call(forward, (num_blocks, self.num_rows // _GELU_ROWS, 1), [x_RxI, bias_I], [flat])

            def gradient(d_result_RxI: tf.Tensor) -> list[tf.Tensor]:
                num_programs = self.num_rows // self.smallest_num_rows
                d_x, sums = call(
                    gradients,
                    (num_blocks, num_programs, 1),
                    [d_result_RxI, x_RxI, bias_I],
                    [flat, ([num_programs, self.intermediate_size], tf.float32)],
                )
                return [d_x, tf.reduce_sum(sums, axis=0)]

            return result, gradient

        return run(x_RxI, tf.convert_to_tensor(bias_I))


@dataclasses.dataclass(frozen=True)
class WordLoss(FusedOperation):
    """Cross-entropy over the vocabulary."""

    title: ClassVar[str] = "the masked words' loss"
    num_rows: int
    vocab_size: int
    padded_size: int
    dtype: tf.DType

    @property
    def smallest_num_rows(self) -> int:
        return _LOSS_ROWS * _LOSS_STEPS

    def require_fit(self) -> None:
        """Any vocabulary fits."""

    def kernels(self) -> tuple[Kernel, Kernel]:
        sizes = {"V": self.vocab_size, "W": self.padded_size}
        inputs, blocks = [DATA, FLOATS, INTEGERS], {"ROWS": _LOSS_ROWS, "STEPS": _LOSS_STEPS}
        forward, gradient = {**sizes, "COLUMNS": 2048}, {**sizes, "COLUMNS": _LOSS_COLUMNS, **blocks}
        return (
            Kernel.of("word_loss", "word_loss", [*inputs, *[FLOATS] * 3], forward, 8, 1),
            Kernel.of("word_loss", "word_loss_gradient", [*inputs, FLOATS, FLOATS, DATA, FLOATS], gradient, 4, 1),
        )

    def __call__(self, logits_RxW, bias_W, labels_R, weights_R) -> tuple[tf.Tensor, tf.Tensor]:
        """Sums over the rows of weight * cross-entropy, and of weight * (the label has the largest logit)."""
        forward, gradient_kernel = self.numbers
        by_row = ([self.num_rows], tf.float32)
        labels_R = tf.cast(labels_R, tf.int32)

        @tf.custom_gradient
        def run(logits_RxW, bias_W):
            inputs = [logits_RxW, bias_W, labels_R]
            losses, are_correct, log_sums = call(forward, (self.num_rows, 1, 1), inputs, [by_row] * 3)

            def gradient(d_loss: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
                num_programs = self.num_rows // self.smallest_num_rows
                d_logits, sums = call(
                    gradient_kernel,
                    (-(-self.padded_size // _LOSS_COLUMNS), num_programs, 1),
                    [*inputs, log_sums, weights_R * d_loss],
                    [(logits_RxW.shape, self.dtype), ([num_programs, self.padded_size], tf.float32)],
                )
                return [d_logits, tf.reduce_sum(sums, axis=0)]

            return (tf.reduce_sum(losses * weights_R), tf.reduce_sum(are_correct * weights_R)), gradient

        return run(logits_RxW, tf.convert_to_tensor(bias_W))
