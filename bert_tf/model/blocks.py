"""The element-wise blocks between the matmuls, and how much of the model XLA compiles.

The XLA scope is one of:

* ``step``: the caller compiles the whole forward and backward pass, with the blocks inlined.
* ``blocks``: each block is a small compiled function; the matmuls stay outside, where oneDNN or
  cuBLAS computes them. On a CPU this is faster, bfloat16 pays off only in this scope, and compilation
  takes seconds whatever the number of layers.
* ``off``: a plain graph, or eager code.

The blocks' functions are in `elementwise`. Inside a block everything is float32; an output that feeds a matmul is cast
to the compute type.

In scope ``blocks`` a block keeps only its inputs for the backward pass, where a second compiled
function recomputes and differentiates it. Autodiff through the first function would store every
intermediate value, which takes longer than recomputing them, and several times the memory. The two
blocks that are slow to recompute, softmax and cross-entropy, have handwritten gradients.

With `recompute`, whole encoder layers are recomputed in the same way, in "blocks" and "off" (`Blocks.layer`).

Shape letters: B batch, S sequence, H hidden, N heads, D head size, I intermediate, R = B*S rows,
P masked positions, C classes, V vocabulary (padded: W).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.model.elementwise import (
    Dropout,
    apply_dropout,
    bias_gelu,
    bias_gelu_norm,
    bias_logits,
    bias_tanh,
    cross_entropy,
    cross_entropy_gradient,
    embedding_norm,
    masked_softmax,
    masked_softmax_gradient,
    merge_heads,
    residual_norm,
    split_heads,
)
from bert_tf.model.elementwise_for_gpu import (
    attend_for_gpu,
    bias_gelu_for_gpu,
    embedding_norm_for_gpu,
    fork_for_gpu,
    residual_norm_for_gpu,
    separate,
    split_heads_for_gpu,
    take_for_gpu,
)
from bert_tf.model.randomness import DropoutKey, at_positions, draw_decisions, draw_mask, keep_mask, keep_scale
from bert_tf.settings.training import XLA_SCOPES


def choose_scope(enable_xla: bool, wanted: str, recompute: bool, for_gpu: bool = False) -> str:
    """The scope for the flags: "off" without XLA; "auto" is "step" on GPUs, "blocks" on CPUs and with `recompute`.

    `for_gpu`: choose for a GPU even if this machine has none.

    Raises:
      UserError: a scope without XLA; or `recompute` with scope "step", where measurements show that it saves no memory.
    """
    if not enable_xla:
        if wanted != "auto":
            raise UserError(f"--xla_scope={wanted} has no effect without --enable_xla: give that too, or leave it out")
        return "off"
    if recompute and wanted == "step":
        raise UserError(
            "--recompute saves no memory where XLA compiles the whole step: leave out "
            "--xla_scope=step, or give --xla_scope=blocks"
        )
    if recompute:
        return "blocks"
    if wanted != "auto":
        return wanted
    return "step" if for_gpu or tf.config.list_physical_devices("GPU") else "blocks"


def _keep_arguments_only(function: Callable, gradient: Callable, arguments: Sequence[Any]) -> tf.Tensor:
    """function(*arguments), keeping only the arguments for the backward pass.

    Args:
      gradient: (gradient of the result, arguments) -> gradients of all tensors among the arguments,
        None for those that are not differentiable.
      arguments: nested tensors, variables and static values.
    """
    flat = [
        tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value for value in tf.nest.flatten(arguments)
    ]
    places = [place for place, value in enumerate(flat) if tf.is_tensor(value)]

    @tf.custom_gradient
    def run(*tensors: tf.Tensor):
        for place, tensor in zip(places, tensors):
            flat[place] = tensor
        inputs = tf.nest.pack_sequence_as(arguments, flat)
        return function(*inputs), lambda result_gradient: gradient(result_gradient, inputs)

    return run(*(flat[place] for place in places))


def _not_before(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies of the tensors, none of which is available before all the tensors are.

    This forces the recomputation: TensorFlow's graph optimiser would merge it with the forward pass
    if both had the same inputs, but it does not see that these copies equal the originals.
    """
    with tf.control_dependencies(tensors):
        return [tf.identity(tensor) for tensor in tensors]


class _Block:
    """A separately compiled function that is recomputed in the backward pass.

    Args:
      function: a differentiable function of tensors and static values.
      parameters: names, separated by spaces, of the arguments that are broadcast over the rows of the
        first argument; their shape is that of its trailing dimensions.
    """

    def __init__(self, function: Callable, parameters: str = ""):
        self._function = function
        names = list(inspect.signature(function).parameters)
        self._parameters = [names.index(name) for name in parameters.split()]
        # Autograph is off because blocks have no Python control flow over tensors.
        self._forward = tf.function(function, jit_compile=True, autograph=False)
        self._backward = tf.function(self._differentiate, jit_compile=True, autograph=False)

    def __call__(self, *arguments: Any) -> tf.Tensor:
        return _keep_arguments_only(self._forward, self._gradient, arguments)

    def _gradient(self, result_gradient: tf.Tensor, inputs: Sequence[Any]) -> list[tf.Tensor | None]:
        found = dict(zip(self._differentiable(inputs), self._backward(result_gradient, *inputs)))
        for place in self._parameters:
            found[place] = _sum_over_rows(found[place], inputs[place].shape)
        in_order: list[tf.Tensor | None] = []
        for place, value in enumerate(inputs):
            in_order += [found.get(place)] * sum(map(tf.is_tensor, tf.nest.flatten(value)))
        return in_order

    @staticmethod
    def _differentiable(inputs: Sequence[Any]) -> list[int]:
        return [place for place, value in enumerate(inputs) if tf.is_tensor(value) and value.dtype.is_floating]

    def _differentiate(self, result_gradient: tf.Tensor, *inputs: Any) -> list[tf.Tensor]:
        """Gradients of the differentiable inputs; for a parameter, those of its broadcast copies, one for each row."""
        copies = list(inputs)
        for place in self._parameters:
            copies[place] = tf.broadcast_to(inputs[place], tf.shape(inputs[0]))
        watched = [copies[place] for place in self._differentiable(inputs)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            result = self._function(*copies)
        return tape.gradient(result, watched, result_gradient)


def _sum_over_rows(copies: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Sum over the rows -> `shape`, as a matmul: XLA's sum over the first axis is 20 times slower on a CPU."""
    copies = tf.reshape(copies, [-1, shape.num_elements()])
    return tf.reshape(tf.matmul(tf.ones([1, tf.shape(copies)[0]]), copies), shape)


Copies = Mapping[Any, tf.Tensor]  # by `tf.Variable.ref()`


class Blocks:
    """The functions of `elementwise` for one XLA scope and one compute type, and what the layers build from them.

    Args:
      scope: "step", "blocks" or "off", see the module's docstring.
      compute_dtype: "float32", "bfloat16" or "float16", the type of the matmuls.
      recompute: activation checkpointing: the backward pass recomputes each layer.
      for_gpu: whether "step" computes more to move fewer bytes, which pays off only on a GPU and changes results by
        rounding. None: if TensorFlow sees a GPU.
    """

    def __init__(
        self, scope: str = "off", compute_dtype: str = "float32", recompute: bool = False, for_gpu: bool | None = None
    ):
        if scope not in XLA_SCOPES:
            raise ValueError(f"scope={scope!r}: must be one of {', '.join(XLA_SCOPES)}")
        if recompute and scope == "step":
            raise ValueError("recompute=True: saves nothing with scope='step'")
        self.scope = scope
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self._recompute = recompute
        if for_gpu is None:
            for_gpu = bool(tf.config.get_visible_devices("GPU"))
        self._for_gpu = for_gpu and scope == "step"
        self._copies: Copies = {}
        self.embedding_norm = self._block(embedding_norm, "position_SxH gamma_H beta_H")
        self.split_heads = self._block(split_heads, "bias_H")
        self.merge_heads = self._block(merge_heads)
        self.residual_norm = self._block(residual_norm, "bias_H gamma_H beta_H")
        self.bias_gelu = self._block(bias_gelu, "bias_I")
        if self._for_gpu:
            self.embedding_norm = self._block(embedding_norm_for_gpu)
            self.split_heads = self._block(split_heads_for_gpu)
            self.residual_norm = self._block(residual_norm_for_gpu)
            self.bias_gelu = self._block(bias_gelu_for_gpu)
        self.bias_gelu_norm = self._block(bias_gelu_norm, "bias_H gamma_H beta_H")
        self.bias_tanh = self._block(bias_tanh, "bias_H")
        self.apply_dropout = self._block(apply_dropout)
        self.bias_logits = _Block(bias_logits, "bias_W") if scope == "blocks" else bias_logits
        # Compiled separately, or XLA would draw the random bits eight times; on a GPU `separate` prevents that.
        self._draw_decisions = self._compiled(draw_decisions)
        self._keep_mask = self._compiled(keep_mask)
        self._masked_softmax = self._compiled(functools.partial(masked_softmax, dtype=self.compute_dtype))
        self._masked_softmax_gradient = self._compiled(
            functools.partial(masked_softmax_gradient, dtype=self.compute_dtype)
        )
        self._cross_entropy = self._compiled(cross_entropy)
        self._cross_entropy_gradient = self._compiled(cross_entropy_gradient)

    def _block(self, function: Callable, parameters: str = "") -> Callable:
        function = functools.partial(function, dtype=self.compute_dtype)
        return _Block(function, parameters) if self.scope == "blocks" else function

    def _compiled(self, function: Callable) -> Callable:
        return tf.function(function, jit_compile=True, autograph=False) if self.scope == "blocks" else function

    def convert(self, kernels: Iterable[tf.Variable], word_table: tf.Variable) -> Copies:
        """Copies of the weights in the compute type, made once per update instead of once per micro-batch.

        The kernels are not copied in float32, nor with `recompute`, which trades time for memory. The masked-LM head
        reads the copy of the word table, so its gradient stays separate from that of the embedding lookup, and no
        micro-batch has to add two whole tables.
        """
        copies = {word_table.ref(): tf.cast(tf.convert_to_tensor(word_table), self.compute_dtype)}
        if self.compute_dtype == tf.float32 or self._recompute:
            return copies
        return copies | {kernel.ref(): tf.cast(kernel, self.compute_dtype) for kernel in kernels}

    @contextlib.contextmanager
    def reading(self, copies: Copies) -> Iterator[None]:
        """Within this context, layers and heads read the copies instead of the variables."""
        self._copies = copies
        try:
            yield
        finally:
            self._copies = {}

    def current(self, weight: tf.Variable) -> tf.Variable | tf.Tensor:
        """The copy of a weight, if `reading` has set one, else the weight itself."""
        return self._copies.get(weight.ref(), weight)

    def layer(self, function: Callable, *arguments: Any) -> tf.Tensor:
        """function(*arguments), where all variables that it uses must be arguments.

        With `recompute`, only the arguments are kept for the backward pass (activation checkpointing,
        arXiv 1604.06174). The recomputation draws the same dropout masks.
        """
        if not self._recompute:
            return function(*arguments)

        def gradient(result_gradient: tf.Tensor, inputs: Sequence[Any]) -> list[tf.Tensor | None]:
            flat = tf.nest.flatten(inputs)
            places = [place for place, value in enumerate(flat) if tf.is_tensor(value)]
            *again, result_gradient = _not_before([*(flat[place] for place in places), result_gradient])
            for place, tensor in zip(places, again):
                flat[place] = tensor
            watched = {place: tensor for place, tensor in zip(places, again) if tensor.dtype.is_floating}
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(watched.values())
                result = function(*tf.nest.pack_sequence_as(inputs, flat))
            found = tape.gradient(result, watched, result_gradient)
            # All at once: the gradient of x starts the backward pass of the layer below, whose memory must not
            # come on top of this layer's.
            found = dict(zip(found, _not_before(list(found.values()))))
            return [found.get(place) for place in places]

        return _keep_arguments_only(function, gradient, arguments)

    def dropout(
        self,
        key: DropoutKey | None,
        site: int,
        rate: float,
        shape: Sequence[int],
        positions_BxP: tf.Tensor | None = None,
    ) -> Dropout | None:
        """The dropout numbered `site`, for the static `shape` [B, ...]; None where nothing is dropped.

        With positions, the part of a mask [B, ..., S, H] at these positions: [B, ..., P, H].
        """
        if key is None or rate == 0:
            return None
        if self.scope == "off":
            mask = draw_mask(rate, *key.at(site), tuple(shape))
            return Dropout(at_positions(mask, positions_BxP), keep_scale(rate))
        by_arithmetic = self.scope == "blocks" or self._for_gpu
        decisions = self._draw_decisions(rate, *key.at(site), tuple(shape), by_arithmetic)
        if self._for_gpu:
            (decisions,) = separate([decisions])
        return Dropout(self._keep_mask(decisions, tuple(shape), positions_BxP), keep_scale(rate))

    def dense(self, x_RxI: tf.Tensor, kernel_IxO: tf.Tensor) -> tf.Tensor:
        """x times kernel, in the compute type. The next block adds the bias."""
        return tf.matmul(tf.cast(x_RxI, self.compute_dtype), tf.cast(kernel_IxO, self.compute_dtype))

    def take(self, sequence_BxSxH: tf.Tensor, positions_BxP: tf.Tensor) -> tf.Tensor:
        """The states at the given positions of each row: [B, P, H]."""
        if self._for_gpu:
            return take_for_gpu(sequence_BxSxH, positions_BxP)
        return tf.gather(sequence_BxSxH, positions_BxP, batch_dims=1)

    def choose_rows(self, one_hot_BxSxT: tf.Tensor, table_TxH: tf.Variable) -> tf.Tensor:
        """Looks up rows of a small table: [B, S, H]."""
        if self._for_gpu:  # The gradient of such a narrow matmul would keep few multiprocessors busy.
            table = tf.convert_to_tensor(table_TxH)
            return sum(one_hot_BxSxT[:, :, row, tf.newaxis] * table[row] for row in range(table.shape[0]))
        return tf.einsum("bst,th->bsh", one_hot_BxSxT, table_TxH)

    def add_rows(self, total_VxH: tf.Tensor, rows: tf.IndexedSlices) -> tf.Tensor:
        """The total plus the gradient of an embedding lookup."""
        if self._for_gpu:  # or XLA would fuse the total into this addition and not update it in place
            (total_VxH,) = separate([total_VxH])
        return tf.tensor_scatter_nd_add(total_VxH, rows.indices[:, tf.newaxis], rows.values)

    def fork(self, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """x for the query, the key, the value and the residual."""
        return fork_for_gpu(x) if self._for_gpu else (x,) * 4

    def attend(self, query_BxNxSxD, key_BxNxSxD, value_BxNxSxD, mask, dropout: Dropout | None) -> tf.Tensor:
        """Attention of each head to the keys whose mask [B, S] or [B, S, S] is 1 -> compute type [R, H].

        The dropout [B, N, S, S] is applied to the softmax's results. There may be fewer queries than keys.
        """
        if self._for_gpu:
            return attend_for_gpu(query_BxNxSxD, key_BxNxSxD, value_BxNxSxD, mask, dropout, dtype=self.compute_dtype)
        scores_BxNxSxS = tf.matmul(query_BxNxSxD, key_BxNxSxD, transpose_b=True)
        return self.merge_heads(tf.matmul(self._softmax(scores_BxNxSxS, mask, dropout), value_BxNxSxD))

    def _softmax(self, scores_BxNxSxS, mask, dropout: Dropout | None) -> tf.Tensor:
        """dropout(softmax over the keys whose mask [B, S] or [B, S, S] is 1) -> compute type [B, N, S, S]."""

        @tf.custom_gradient
        def run(scores: tf.Tensor):
            dropped, probabilities = self._masked_softmax(scores, mask, dropout)
            return dropped, lambda gradient: self._masked_softmax_gradient(gradient, probabilities, dropout)

        return run(scores_BxNxSxS)

    def cross_entropy(self, logits_RxC, labels_R, weights_R) -> tuple[tf.Tensor, tf.Tensor]:
        """Sums over the rows of weight * cross-entropy, and of weight * (argmax is the label).

        float32 logits [R, C], integer labels [R], float32 weights [R] -> two float32 scalars.
        """

        @tf.custom_gradient
        def run(logits: tf.Tensor):
            loss, correct, log_sum_R = self._cross_entropy(logits, labels_R, weights_R)
            return (loss, correct), lambda gradient, _: self._cross_entropy_gradient(
                gradient, logits, labels_R, weights_R, log_sum_R
            )

        return run(logits_RxC)
