"""NVLAMB, BERT's Adam and LARS as Keras optimizers.

NVLAMB is LAMB (arXiv 1904.00962) as in NVIDIA's BERT recipe: the global gradient norm is clipped to 1
once, moments are bias-corrected by the number of updates applied, epsilon is added outside the root,
decay is added before the trust ratio is computed, the ratio is not clamped, and biases and LayerNorm parameters,
which do not decay, also have a trust ratio (but not with `adapt_excluded=False`, as in apex and MLPerf).
AdamW is Google's BERT Adam: no bias correction, decoupled decay; `bias_correction=True` gives the Adam
of Keras and of NVIDIA's TF2 recipe, which add epsilon to the root of the uncorrected second moment. LARS
(arXiv 1708.03888), LAMB's ancestor, is for comparison.

On a CPU a variable is updated in three steps: the direction (compiled by XLA, which fuses it), two norms
(TensorFlow's own reduction, three times as fast as XLA's on a CPU) and the weights. On a GPU, where a call
of a compiled function takes longer than the update of most variables, one call updates several
variables of a shape, norms included (`groups`). One function is compiled per *shape* of variable, with the
variables as arguments: BERT has hundreds of variables but about ten shapes, so compilation takes seconds.
Keras (`model.fit`) and our training step (`apply_update`) use the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from bert_tf.base.tensorflow import keras, tf
from bert_tf.optimizer.groups import call_in_groups, compile_for_groups
from bert_tf.optimizer.schedule import WarmupPolynomialDecay, check_range
from bert_tf.optimizer.update_rules import (
    adam_direction,
    excluded_from_weight_decay,
    lars_update,
    norm,
    nvlamb_trust_ratio,
)
from bert_tf.optimizer_registry import ADAM_SLOTS, OPTIMIZERS


class _BertOptimizer(keras.optimizers.Optimizer):
    """Base class: slot variables, Keras' interface and `apply_update`.

    Args:
      learning_rate: number, tensor or schedule; numbers are checked.
      weight_decay: for all variables except biases and LayerNorm parameters.
      global_clipnorm: global norm to which an update's gradients are clipped. Keras does so in `fit`;
        callers of `apply_update` include the clip factor in its multiplier.
      compiled: whether XLA compiles the update.
      keras_arguments: arguments of `keras.optimizers.Optimizer`.

    Raises:
      ValueError: learning_rate or weight_decay is negative or not finite, or global_clipnorm is not positive.
    """

    # The slot variables of each variable, by the last part of their names in checkpoints.
    slot_names: tuple[str, ...] = ()
    # The subclass's arguments, stored in attributes of the same names, for Keras' configuration.
    config_names: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float = 0.01,
        global_clipnorm: float | None = 1.0,
        compiled: bool = True,
        **keras_arguments: Any,
    ):
        keras_arguments.setdefault("name", type(self).__name__)
        # Keras' own weight_decay would be applied outside the trust ratio, so it is not passed on to Keras.
        super().__init__(global_clipnorm=global_clipnorm, **keras_arguments)
        check_range(weight_decay=weight_decay)
        if global_clipnorm not in (None, math.inf):
            check_range(is_open=True, global_clipnorm=global_clipnorm)
        if isinstance(learning_rate, (int, float, np.number)):
            check_range(learning_rate=float(learning_rate))
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.weight_decay_rate, self.compiled = weight_decay, compiled
        self._slots: list[tuple[tf.Variable, ...]] = []  # of each variable
        self._kernels: dict[Any, Callable] = {}

    def _make_kernel(self, excluded: bool) -> Callable[..., tf.Tensor]:
        """A function (w, slots, gradient, multiplier, rate, step, is_finite) -> float32 [3], see `apply_update`.

        `excluded` variables do not decay.
        """
        raise NotImplementedError

    def _compiled(self, function: Callable) -> Callable:
        """The function as a tf.function, even without XLA, so that all variables of a shape share one trace."""
        return tf.function(function, jit_compile=self.compiled or None, autograph=False)

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Makes the slots of `var_list`, named as in Google's training checkpoints."""
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        for variable in var_list:
            names = (f"{variable.name.split(':')[0]}/{slot}" for slot in self.slot_names)
            # An empty name scope, because `fit` would prefix the optimizer's name.
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable), tf.name_scope(""):
                self._slots.append(
                    tuple(self.add_variable(variable.shape, variable.dtype, name=name) for name in names)
                )
        self._built = True

    @property
    def slot_variables(self) -> list[tf.Variable]:
        """The slots of all variables, variable by variable."""
        return [slot for slots in self._slots for slot in slots]

    def current_learning_rate(self) -> tf.Tensor:
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return tf.convert_to_tensor(self._learning_rate)

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        """Updates one variable; Keras calls this with clipped gradients."""
        scalars = (1.0, self.learning_rate, self.iterations + 1, tf.constant(True))
        self._update([variable], [tf.convert_to_tensor(gradient)], *scalars)

    def apply_update(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable],
        multiplier: tf.Tensor,
        is_finite: tf.Tensor,
    ) -> tf.Tensor:
        """Updates `variables`; if `is_finite` is False, every bit stays as it is.

        The host never waits for the device. Must be called inside a tf.function, after `build`.

        Args:
          gradients: float32, in the order of the V `variables`, still scaled and not clipped.
          variables: those that the optimizer was built for.
          multiplier: scalar factor for all gradients: clip factor, 1/loss scale, 1/count.
          is_finite: bool scalar, whether the gradients' global norm is finite.

        Returns:
          float32 [V, 3]: each variable's norm before the update, the norm of the change, and the trust
          ratio. Meaningless if `is_finite` is False.
        """
        scalars = (multiplier, self.current_learning_rate(), self.iterations + 1, is_finite)
        rows = call_in_groups(
            [self._kernel_key(variable) for variable in variables],
            lambda numbers: self._update([variables[n] for n in numbers], [gradients[n] for n in numbers], *scalars),
        )
        self.iterations.assign_add(tf.cast(is_finite, tf.int64))
        return rows

    def _kernel_key(self, variable: tf.Variable) -> tuple[Any, ...]:
        excluded = excluded_from_weight_decay(variable.name) or not self._use_weight_decay(variable)
        return tuple(variable.shape), variable.dtype, excluded

    def _update(
        self,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor],
        multiplier: Any,
        rate: Any,
        step: Any,
        is_finite: tf.Tensor,
    ) -> tf.Tensor:
        """Updates variables that share a kernel -> float32 [number of variables, 3], see `apply_update`."""
        # As plain tuples: Keras wraps those that are stored in attributes.
        slots = [
            tuple(_copy_beside(variable, slot) for slot in self._slots[self._index_dict[self._var_key(variable)]])
            for variable in variables
        ]
        key = self._kernel_key(variables[0])
        if key not in self._kernels:
            self._kernels[key] = self._make_group_kernel(excluded=key[-1])
        multiplier, rate = (tf.cast(scalar, variables[0].dtype) for scalar in (multiplier, rate))
        return self._kernels[key](variables, slots, gradients, multiplier, rate, step, is_finite)

    def _make_group_kernel(self, excluded: bool) -> Callable[..., tf.Tensor]:
        update = self._make_kernel(excluded)

        def update_group(variables, slots, gradients, *scalars):
            return tf.stack([update(*arguments, *scalars) for arguments in zip(variables, slots, gradients)])

        return compile_for_groups(update_group, self.compiled)

    def get_config(self) -> dict[str, Any]:
        """Keras' configuration, from which `from_config` makes the same optimizer."""
        return {
            **super().get_config(),
            "learning_rate": self._serialize_hyperparameter(self._learning_rate),
            "weight_decay": self.weight_decay_rate,
            "compiled": self.compiled,
            **{name: getattr(self, name) for name in self.config_names},
        }


def _copy_beside(variable: tf.Variable, slot: tf.Variable) -> tf.Variable:
    """The slot's copy on the variable's device, of which a strategy such as `MirroredStrategy` has one for each device.

    A compiled function takes a mirrored variable for a constant, so the kernel of a shape would keep the first one.
    """
    copies = tf.distribute.get_strategy().experimental_local_results(slot)
    return next((copy for copy in copies if copy.device == variable.device), slot)


def _scaled_gradient(g: tf.Tensor, multiplier: tf.Tensor, is_finite: tf.Tensor) -> tf.Tensor:
    """g * multiplier, or -0 if not `is_finite`, because adding -0 changes no bit of any number, not even of -0."""
    return tf.where(is_finite, g * multiplier, tf.constant(-0.0, g.dtype))


class _MomentsOptimizer(_BertOptimizer):
    """Base class of optimizers that keep running means of the gradient and of its square. Arguments as in Adam.

    Raises:
      ValueError: a beta is not within (0, 1), or epsilon is not above 0: a weight without a gradient would become NaN.
    """

    slot_names = ADAM_SLOTS
    config_names: tuple[str, ...] = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self, learning_rate: Any, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-6, **arguments: Any
    ):
        super().__init__(learning_rate, **arguments)
        check_range(high=1, is_open=True, beta_1=beta_1, beta_2=beta_2)
        check_range(is_open=True, epsilon=epsilon)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def _variant(self, excluded: bool) -> tuple[str, bool]:
        """The `bias_correction` of `adam_direction`, and whether the variable has a trust ratio."""
        raise NotImplementedError

    def _make_kernel(self, excluded: bool) -> Callable[..., tf.Tensor]:
        bias_correction, adapts = self._variant(excluded)

        def prepare(w, m, v, g, multiplier, step, is_finite):
            g, step = _scaled_gradient(g, multiplier, is_finite), tf.cast(step, w.dtype)
            u, new_m, new_v = adam_direction(
                w,
                (m, v),
                g,
                step,
                is_finite,
                beta_1=self.beta_1,
                beta_2=self.beta_2,
                epsilon=self.epsilon,
                weight_decay=0.0 if excluded else self.weight_decay_rate,
                bias_correction=bias_correction,
            )
            m.assign(new_m)
            v.assign(new_v)
            return u

        # The scalars are also computed here: outside, each of them would be a kernel launch on a GPU.
        def finish(w, u, w_half_square, u_half_square, rate, is_finite):
            w_norm, u_norm = tf.sqrt(2.0 * w_half_square), tf.sqrt(2.0 * u_half_square)
            ratio = nvlamb_trust_ratio(w_norm, u_norm) if adapts else tf.ones_like(w_norm)
            rate = rate * ratio
            w.assign(tf.where(is_finite, w - rate * u, w))
            return tf.cast(tf.stack([w_norm, rate * u_norm, ratio]), tf.float32)

        prepare, finish = self._compiled(prepare), self._compiled(finish)

        def update(w, slots, g, multiplier, rate, step, is_finite):
            u = prepare(w, *slots, g, multiplier, step, is_finite)
            return finish(w, u, tf.nn.l2_loss(w), tf.nn.l2_loss(u), rate, is_finite)

        return update


@keras.utils.register_keras_serializable("bert_tf")
class NVLAMB(_MomentsOptimizer):
    """The optimizer of the large-batch recipe; the module's docstring describes this variant of LAMB.

    `adapt_excluded`: whether biases and LayerNorm parameters also have a trust ratio.
    """

    config_names = (*_MomentsOptimizer.config_names, "adapt_excluded")

    def __init__(self, learning_rate: Any = 1e-3, adapt_excluded: bool = True, **arguments: Any):
        super().__init__(learning_rate, **arguments)
        self.adapt_excluded = adapt_excluded

    def _variant(self, excluded: bool) -> tuple[str, bool]:
        return "moments", self.adapt_excluded or not excluded


@keras.utils.register_keras_serializable("bert_tf")
class AdamW(_MomentsOptimizer):
    """BERT's Adam with decoupled decay; see the module's docstring for `bias_correction`."""

    config_names = (*_MomentsOptimizer.config_names, "bias_correction")

    def __init__(self, learning_rate: Any = 1e-4, bias_correction: bool = False, **arguments: Any):
        super().__init__(learning_rate, **arguments)
        self.bias_correction = bias_correction

    def _variant(self, excluded: bool) -> tuple[str, bool]:
        return "rate" if self.bias_correction else "none", False


@keras.utils.register_keras_serializable("bert_tf")
class LARS(_BertOptimizer):
    """Momentum with a layer-wise learning rate. Arguments: those of the base class and of `lars_update`.

    Biases and LayerNorm parameters have no layer-wise rate, as in the paper's code.
    """

    slot_names = OPTIMIZERS["lars"].slots
    config_names = ("momentum", "trust_coefficient")

    def __init__(
        self, learning_rate: Any = 1.0, momentum: float = 0.9, trust_coefficient: float = 0.001, **arguments: Any
    ):
        super().__init__(learning_rate, **arguments)
        check_range(high=1, momentum=momentum)
        check_range(is_open=True, trust_coefficient=trust_coefficient)
        self.momentum, self.trust_coefficient = momentum, trust_coefficient

    def _make_kernel(self, excluded: bool) -> Callable[..., tf.Tensor]:
        def update(w, slots, g, multiplier, rate, step, is_finite):
            del step  # LARS has no bias correction
            (a,) = slots
            w_norm = norm(w)
            new_w, new_a, ratio = lars_update(
                w,
                a,
                _scaled_gradient(g, multiplier, is_finite),
                rate,
                momentum=self.momentum,
                trust_coefficient=self.trust_coefficient,
                weight_decay=0.0 if excluded else self.weight_decay_rate,
                adapt=not excluded,
            )
            w.assign(tf.where(is_finite, new_w, w))
            a.assign(tf.where(is_finite, new_a, a))
            return tf.cast(tf.stack([w_norm, norm(new_a), ratio]), tf.float32)

        return self._compiled(update)


def make_optimizer(
    optimizer_type: str,
    peak_learning_rate: float,
    warmup_steps: int,
    total_steps: int,
    decay_start: int = 0,
    **options: Any,
) -> _BertOptimizer:
    """Makes the optimizer that `OPTIMIZERS` lists under this type, with its schedule; `options` go to the optimizer.

    `decay_start`: see `WarmupPolynomialDecay`.
    """
    entry = OPTIMIZERS[optimizer_type]
    schedule = WarmupPolynomialDecay(peak_learning_rate, warmup_steps, total_steps, entry.decay_power, decay_start)
    return globals()[entry.class_name](schedule, **options)
