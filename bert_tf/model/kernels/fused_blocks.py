"""What lies between the matmuls of a layer, and the loss, as calls of `between_matmuls` and `word_loss`.

Shape letters: B batch, S sequence, H hidden, I intermediate, R rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

from bert_tf.base.tensorflow import tf
from bert_tf.model.elementwise import with_gradient
from bert_tf.model.kernels.compilation import KernelsUnavailable
from bert_tf.model.kernels.fused_operation import BITS_PER_WORD, FusedOperation, Launch, Site, draw_keep_bits
from bert_tf.model.kernels.requirements import LOSS_UNIT
from bert_tf.model.randomness import keep_scale

# How many rows a kernel's programs take at once, and how often: the fastest on an H200.
_NORM_ROWS, _NORM_STEPS = 4, 16
_GELU_ROWS, _GELU_STEPS = 8, 16
_LOSS_ROWS, _LOSS_STEPS, _LOSS_COLUMNS = 8, LOSS_UNIT // 8, 512
_LARGEST_NORM = 4096


@dataclasses.dataclass(frozen=True)
class AddNorm(FusedOperation):
    """LayerNorm(residual + dropout(x + bias))."""

    title: ClassVar[str] = "LayerNorm"
    smallest_num_rows: ClassVar[int] = _NORM_ROWS * _NORM_STEPS
    num_rows: int  # R
    sequence_length: int  # a row of the dropout covers this many rows
    hidden_size: int
    dropout_rate: float
    epsilon: float
    dtype: tf.DType

    @functools.cached_property
    def launches(self) -> list[Launch]:
        rows, width, data, floats = self.num_rows, self.hidden_size, self.dtype, tf.float32
        if width % BITS_PER_WORD or width > _LARGEST_NORM:
            raise KernelsUnavailable(f"a hidden size of {width} is no multiple of 32, or over {_LARGEST_NORM}")
        num_programs, columns = rows // self.smallest_num_rows, 1 << (width - 1).bit_length()
        rows_at_once = min(_NORM_ROWS, _LARGEST_NORM // columns)  # registers hold no more
        module, flat, by_row = "between_matmuls", ([rows, width], data), ([rows], floats)
        constants = {"H": width, "COLUMNS": columns, "ROWS": rows_at_once, "KEEP_SCALE": keep_scale(self.dropout_rate)}
        return [
            Launch(
                module,
                "add_norm_forward",
                [data, floats, data, floats, floats, tf.int32],
                [flat, flat, by_row, by_row],
                {**constants, "EPSILON": self.epsilon},
                (rows // rows_at_once, 1, 1),
            ),
            Launch(
                module,
                "add_norm_gradients",
                [data, data, floats, floats, floats, tf.int32],
                [flat, flat, ([num_programs, 3, width], floats)],
                {**constants, "STEPS": self.smallest_num_rows // rows_at_once},
                (num_programs, 1, 1),
            ),
            *draw_keep_bits(self.dropout_rate, rows // self.sequence_length, self.sequence_length * width),
        ]

    def __call__(self, x_RxH, bias_H, residual_RxH, gamma_H, beta_H, site: Site | None) -> tf.Tensor:
        words = self.draw(site)

        def run(x_RxH, bias_H, residual_RxH, gamma_H, beta_H):
            result, *saved = self.launch(0, x_RxH, bias_H, residual_RxH, gamma_H, beta_H, words)

            def gradient(d_result_RxH: tf.Tensor) -> list[tf.Tensor]:
                d_x, d_residual, sums = self.launch(1, d_result_RxH, *saved, gamma_H, words)
                d_gamma, d_beta, d_bias = tf.unstack(tf.reduce_sum(sums, axis=0))
                return [d_x, d_bias, d_residual, d_gamma, d_beta]

            return result, gradient

        return with_gradient(run, x_RxH, bias_H, residual_RxH, gamma_H, beta_H)


@dataclasses.dataclass(frozen=True)
class BiasGelu(FusedOperation):
    """GELU(x + bias)."""

    title: ClassVar[str] = "GELU"
    smallest_num_rows: ClassVar[int] = _GELU_ROWS * _GELU_STEPS
    num_rows: int
    intermediate_size: int
    is_exact: bool
    dtype: tf.DType

    @functools.cached_property
    def launches(self) -> list[Launch]:
        rows, width, data, floats = self.num_rows, self.intermediate_size, self.dtype, tf.float32
        if width % 128:
            raise KernelsUnavailable(f"an intermediate size of {width} is no multiple of 128")
        columns, num_programs = 128 if width % 256 else 256, rows // self.smallest_num_rows
        module, flat, num_blocks = "between_matmuls", ([rows, width], data), width // columns
        constants = {"WIDTH": width, "COLUMNS": columns, "ROWS": _GELU_ROWS, "EXACT": self.is_exact}
        return [
            Launch(
                module, "bias_gelu_forward", [data, floats], [flat], constants, (num_blocks * rows // _GELU_ROWS, 1, 1)
            ),
            Launch(
                module,
                "bias_gelu_gradients",
                [data, data, floats],
                [flat, ([num_programs, width], floats)],
                {**constants, "STEPS": _GELU_STEPS},
                (num_blocks, num_programs, 1),
            ),
        ]

    def __call__(self, x_RxI, bias_I) -> tf.Tensor:
        def run(x_RxI, bias_I):
            def gradient(d_result_RxI: tf.Tensor) -> list[tf.Tensor]:
                d_x, sums = self.launch(1, d_result_RxI, x_RxI, bias_I)
                return [d_x, tf.reduce_sum(sums, axis=0)]

            return self.launch(0, x_RxI, bias_I)[0], gradient

        return with_gradient(run, x_RxI, bias_I)


@dataclasses.dataclass(frozen=True)
class WordLoss(FusedOperation):
    """Cross-entropy over the vocabulary."""

    title: ClassVar[str] = "the masked words' loss"
    smallest_num_rows: ClassVar[int] = LOSS_UNIT
    has_wide_offsets: ClassVar[bool] = True
    num_rows: int
    vocab_size: int
    padded_size: int
    dtype: tf.DType

    @functools.cached_property
    def launches(self) -> list[Launch]:
        rows, width, floats = self.num_rows, self.padded_size, tf.float32
        num_programs, sizes = rows // self.smallest_num_rows, {"V": self.vocab_size, "W": width}
        inputs, blocks = [self.dtype, floats, tf.int32], {"COLUMNS": _LOSS_COLUMNS, "ROWS": _LOSS_ROWS}
        return [
            Launch(
                "word_loss", "word_loss", inputs, [([rows], floats)] * 3, {**sizes, "COLUMNS": 2048}, (rows, 1, 1), 8
            ),
            Launch(
                "word_loss",
                "word_loss_gradient",
                [*inputs, floats, floats],
                [([rows, width], self.dtype), ([num_programs, width], floats)],
                {**sizes, **blocks, "STEPS": _LOSS_STEPS},
                (-(-width // _LOSS_COLUMNS), num_programs, 1),
            ),
        ]

    def __call__(self, logits_RxW, bias_W, labels_R, weights_R) -> tuple[tf.Tensor, tf.Tensor]:
        """Sums over the rows of weight * cross-entropy, and of weight * (the label has the largest logit)."""
        labels_R = tf.cast(labels_R, tf.int32)

        def run(logits_RxW, bias_W):
            inputs = logits_RxW, bias_W, labels_R
            losses, are_correct, log_sums = self.launch(0, *inputs)

            def gradient(d_loss: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
                d_logits, sums = self.launch(1, *inputs, log_sums, weights_R * d_loss)
                return [d_logits, tf.reduce_sum(sums, axis=0)]

            return (tf.reduce_sum(losses * weights_R), tf.reduce_sum(are_correct * weights_R)), gradient

        return with_gradient(run, logits_RxW, bias_W)
