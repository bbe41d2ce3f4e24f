"""NVLAMB, BERT's Adam and LARS, their learning rates, the loss scale of float16.

NVLAMB is LAMB (arXiv 1904.00962) as NVIDIA's recipe for BERT runs it: the global gradient is
clipped to norm 1 once, moments are bias-corrected by the number of updates applied, epsilon stands
outside the root, decay is added before the trust ratio, the ratio is not clamped, and biases and
LayerNorm parameters, which do not decay, have a trust ratio too (`adapt_excluded=False` takes it
from them, as apex and MLPerf do). AdamW is Google's BERT Adam: no bias correction, decoupled
decay; `bias_correction=True` gives Keras' and NVIDIA TF2's, which add epsilon to the root of the
second moment before its correction. LARS (arXiv 1708.03888), LAMB's ancestor, is there for
comparison.

An update of one variable is three steps: the direction (compiled by XLA, which makes one pass of it),
two norms (TensorFlow's own reduction, three times as fast as XLA's on a CPU) and the step. The compiled
functions are one for each *shape* of variable, with the variables as arguments: BERT has hundreds of
variables and about ten shapes, so it compiles in seconds. Keras, for anyone's `model.fit`, and
`apply_update`, for our training step, use the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from bert_tf.config import joins_continuously
from bert_tf.optimizer.schedule import WarmupPolynomialDecay
from bert_tf.optimizer.update_rules import (
    AdamRule,
    LarsRule,
    adam_direction,
    excluded_from_weight_decay,
    lars_update,
    norm,
    nvlamb_trust_ratio,
)


def _check_range(low: float, high: float, open_below: bool, **values: float) -> None:
    for name, value in values.items():
        if not (low < value if open_below else low <= value) or not value < high:
            raise ValueError(f"{name}={value}: must lie in {'(' if open_below else '['}{low:g}, {high:g})")


class _BertOptimizer(tf.keras.optimizers.Optimizer):
    """What the optimizers share: slots, Keras' side and `apply_update`.

    Raises:
      ValueError: weight_decay is negative.
    """

    # What is kept for each variable, by the ends of their names in checkpoints.
    slot_names: tuple[str, ...] = ()

    def __init__(self, learning_rate: Any, weight_decay: float, compiled: bool, **keras_arguments: Any):
        # Keras' own weight_decay would decay outside the trust ratio, so Keras must not know of ours.
        super().__init__(**keras_arguments)
        _check_range(0, math.inf, False, weight_decay=weight_decay)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.weight_decay_rate, self.compiled = weight_decay, compiled
        self._slots: list[tuple[tf.Variable, ...]] = []  # of each variable
        self._kernels: dict[Any, Callable] = {}

    def _make_kernel(self, excluded: bool) -> Callable[..., tf.Tensor]:
        """(w, slots, gradient, multiplier, rate, step, is_finite) -> float32 [3], see `apply_update`.

        `excluded` variables do not decay.
        """
        raise NotImplementedError

    def _compiled(self, function: Callable) -> Callable:
        return tf.function(function, jit_compile=True, autograph=False) if self.compiled else function

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Makes the slots of `var_list`, named as in Google's training checkpoints."""
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        for variable in var_list:
            self._slots.append(tuple(self._add_slot(variable, name) for name in self.slot_names))
        self._built = True

    def _add_slot(self, variable: tf.Variable, slot: str) -> tf.Variable:
        name = f"{variable.name.split(':')[0]}/{slot}"
        # The empty scope: `fit` would put the optimizer's name in front.
        with tf.distribute.get_strategy().extended.colocate_vars_with(variable), tf.name_scope(""):
            return self.add_variable(variable.shape, variable.dtype, name=name)

    @property
    def slot_variables(self) -> list[tf.Variable]:
        """All slots of each variable in turn."""
        return [slot for slots in self._slots for slot in slots]

    def current_learning_rate(self) -> tf.Tensor:
        """The rate of the update that comes next."""
        if isinstance(self._learning_rate, tf.keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return tf.convert_to_tensor(self._learning_rate)

    def _excluded(self, variable: tf.Variable) -> bool:
        return excluded_from_weight_decay(variable.name) or not self._use_weight_decay(variable)

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        """Updates one variable; Keras calls it with gradients that it has clipped."""
        self._update(
            variable, tf.convert_to_tensor(gradient), 1.0, self.learning_rate, self.iterations + 1, tf.constant(True)
        )

    def apply_update(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable],
        multiplier: tf.Tensor,
        is_finite: tf.Tensor,
    ) -> tf.Tensor:
        """Updates `variables`, or leaves everything as it is, to the bit, where `is_finite` is False.

        Neither outcome waits for the device. Meant to be called inside a tf.function; `build` must
        have been called before.

        Args:
          gradients: float32, in the order of the V `variables`, neither unscaled nor clipped.
          variables: those the optimizer was built for.
          multiplier: scalar by which gradients are multiplied: clip factor, 1/loss scale, 1/count.
          is_finite: bool scalar, whether the global norm of the gradients is.

        Returns:
          float32 [V, 3]: norm of each variable before, norm of what was subtracted from it, and the
          trust ratio in that. They mean nothing where `is_finite` is False.
        """
        rate = self.current_learning_rate()
        rows = [
            self._update(variable, gradient, multiplier, rate, self.iterations + 1, is_finite)
            for gradient, variable in zip(gradients, variables)
        ]
        self.iterations.assign_add(tf.cast(is_finite, tf.int64))
        return tf.stack(rows)

    def _update(
        self, variable: tf.Variable, gradient: tf.Tensor, multiplier: Any, rate: Any, step: Any, is_finite: tf.Tensor
    ) -> tf.Tensor:
        slots = (*self._slots[self._index_dict[self._var_key(variable)]],)  # Keras has wrapped the tuple
        excluded = self._excluded(variable)
        key = (tuple(variable.shape), variable.dtype, excluded)
        if key not in self._kernels:
            self._kernels[key] = self._make_kernel(excluded)
        scalars = (tf.cast(scalar, variable.dtype) for scalar in (multiplier, rate, step))
        return self._kernels[key](variable, slots, gradient, *scalars, is_finite)

    def get_config(self) -> dict[str, Any]:
        """Keras' configuration, from which `from_config` makes the same optimizer."""
        return {
            **super().get_config(),
            "learning_rate": self._serialize_hyperparameter(self._learning_rate),
            "weight_decay": self.weight_decay_rate,
            "compiled": self.compiled,
        }


def _sound(g: tf.Tensor, multiplier: tf.Tensor, is_finite: tf.Tensor) -> tf.Tensor:
    """g * multiplier, or -0 where not `is_finite`: adding that changes no bit of anything, not even of -0."""
    return tf.where(is_finite, g * multiplier, tf.constant(-0.0, g.dtype))


class _MomentsOptimizer(_BertOptimizer):
    """Those that keep running means of the gradient and of its square.

    Raises:
      ValueError: a beta is not within (0, 1), or epsilon or weight_decay is negative.
    """

    slot_names = ("adam_m", "adam_v")

    def __init__(
        self,
        learning_rate: Any,
        beta_1: float,
        beta_2: float,
        epsilon: float,
        weight_decay: float,
        compiled: bool,
        **keras_arguments: Any,
    ):
        super().__init__(learning_rate, weight_decay, compiled, **keras_arguments)
        _check_range(0, 1, True, beta_1=beta_1, beta_2=beta_2)
        _check_range(0, math.inf, False, epsilon=epsilon)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    @property
    def _bias_correction(self) -> str:
        """Of `AdamRule`."""
        raise NotImplementedError

    def _adapts(self, excluded: bool) -> bool:
        """Whether the variable has a trust ratio."""
        raise NotImplementedError

    def _make_kernel(self, excluded: bool) -> Callable[..., tf.Tensor]:
        weight_decay = 0.0 if excluded else self.weight_decay_rate
        rule = AdamRule(self.beta_1, self.beta_2, self.epsilon, weight_decay, self._bias_correction)
        adapts = self._adapts(excluded)

        def prepare(w, m, v, g, multiplier, step, is_finite):
            u, new_m, new_v = adam_direction(rule, w, (m, v), _sound(g, multiplier, is_finite), step, is_finite)
            m.assign(new_m)
            v.assign(new_v)
            return u

        def finish(w, u, rate, is_finite):
            w.assign(tf.where(is_finite, w - rate * u, w))

        prepare, finish = self._compiled(prepare), self._compiled(finish)

        def update(w, slots, g, multiplier, rate, step, is_finite):
            u = prepare(w, *slots, g, multiplier, step, is_finite)
            w_norm, u_norm = norm(w), norm(u)
            ratio = nvlamb_trust_ratio(w_norm, u_norm) if adapts else tf.ones_like(w_norm)
            rate = rate * ratio
            # The norm of w is of what it was: the function that `update` is traced in keeps the order.
            finish(w, u, rate, is_finite)
            return tf.cast(tf.stack([w_norm, rate * u_norm, ratio]), tf.float32)

        return update

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}


class NVLAMB(_MomentsOptimizer):
    """The optimizer of the large-batch recipe; the module says which LAMB that is.

    Args:
      learning_rate: number or schedule.
      beta_1, beta_2, epsilon: as in Adam.
      weight_decay: of all variables but biases and LayerNorm parameters.
      adapt_excluded: whether these have a trust ratio too.
      global_clipnorm: norm to which the gradient of an update is clipped. Keras does it in `fit`;
        callers of `apply_update` put it into the multiplier.
      compiled: whether `apply_update` compiles.
      keras_arguments: of `tf.keras.optimizers.Optimizer`.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        adapt_excluded: bool = True,
        global_clipnorm: float | None = 1.0,
        compiled: bool = True,
        name: str = "NVLAMB",
        **keras_arguments: Any,
    ):
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            weight_decay,
            compiled,
            global_clipnorm=global_clipnorm,
            name=name,
            **keras_arguments,
        )
        self.adapt_excluded = adapt_excluded

    @property
    def _bias_correction(self) -> str:
        return "moments"

    def _adapts(self, excluded: bool) -> bool:
        return self.adapt_excluded or not excluded

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "adapt_excluded": self.adapt_excluded}


class AdamW(_MomentsOptimizer):
    """BERT's Adam with decoupled decay. Arguments as `NVLAMB`'s, and `bias_correction`."""

    def __init__(
        self,
        learning_rate: Any = 1e-4,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = False,
        global_clipnorm: float | None = 1.0,
        compiled: bool = True,
        name: str = "AdamW",
        **keras_arguments: Any,
    ):
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            weight_decay,
            compiled,
            global_clipnorm=global_clipnorm,
            name=name,
            **keras_arguments,
        )
        self.bias_correction = bias_correction

    @property
    def _bias_correction(self) -> str:
        return "rate" if self.bias_correction else "none"

    def _adapts(self, excluded: bool) -> bool:
        return False

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bias_correction": self.bias_correction}


class LARS(_BertOptimizer):
    """Momentum with a layer-wise rate. Arguments as `NVLAMB`'s, and those of `lars_update`.

    Biases and LayerNorm parameters have no layer-wise rate, as in the paper's code.
    """

    slot_names = ("momentum",)

    def __init__(
        self,
        learning_rate: Any = 1.0,
        momentum: float = 0.9,
        trust_coefficient: float = 0.001,
        weight_decay: float = 0.01,
        global_clipnorm: float | None = 1.0,
        compiled: bool = True,
        name: str = "LARS",
        **keras_arguments: Any,
    ):
        super().__init__(
            learning_rate, weight_decay, compiled, global_clipnorm=global_clipnorm, name=name, **keras_arguments
        )
        _check_range(0, 1, False, momentum=momentum)
        _check_range(0, math.inf, True, trust_coefficient=trust_coefficient)
        self.momentum, self.trust_coefficient = momentum, trust_coefficient

    def _make_kernel(self, excluded: bool) -> Callable[..., tf.Tensor]:
        weight_decay = 0.0 if excluded else self.weight_decay_rate
        rule = LarsRule(self.momentum, self.trust_coefficient, weight_decay, adapt=not excluded)

        def update(w, slots, g, multiplier, rate, step, is_finite):
            del step  # nothing here is bias-corrected
            (a,) = slots
            w_norm = norm(w)
            new_w, new_a, ratio = lars_update(rule, w, a, _sound(g, multiplier, is_finite), rate)
            w.assign(tf.where(is_finite, new_w, w))
            a.assign(tf.where(is_finite, new_a, a))
            return tf.cast(tf.stack([w_norm, norm(new_a), ratio]), tf.float32)

        return self._compiled(update)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum, "trust_coefficient": self.trust_coefficient}


def make_optimizer(
    optimizer_type: str,
    peak_learning_rate: float,
    warmup_steps: int,
    total_steps: int,
    continuous_join: bool | None = None,
    **options: Any,
) -> _BertOptimizer:
    """ "lamb", "adamw" or "lars" with its schedule (power 0.5, 1, 0.5); `options` go to the optimizer.

    `continuous_join` None is what is usual for the optimizer.
    """
    classes = {"lamb": (NVLAMB, 0.5), "adamw": (AdamW, 1.0), "lars": (LARS, 0.5)}
    if optimizer_type not in classes:
        raise ValueError(f"optimizer_type={optimizer_type!r}: must be one of {', '.join(classes)}")
    optimizer_class, power = classes[optimizer_type]
    if continuous_join is None:
        continuous_join = joins_continuously(optimizer_type)
    schedule = WarmupPolynomialDecay(peak_learning_rate, warmup_steps, total_steps, power, continuous_join)
    return optimizer_class(schedule, **options)
