"""NVLAMB, BERT's Adam and LARS, their learning rates, the loss scale of float16.

NVLAMB is LAMB (arXiv 1904.00962) as NVIDIA's recipe for BERT runs it: the global gradient is
clipped to norm 1 once, moments are bias-corrected by the number of updates applied, epsilon stands
outside the root, decay is added before the trust ratio, the ratio is not clamped, and biases and
LayerNorm parameters, which do not decay, have a trust ratio too (`adapt_excluded=False` takes it
from them, as apex and MLPerf do). AdamW is Google's BERT Adam: no bias correction, decoupled
decay; `bias_correction=True` gives Keras' and NVIDIA TF2's. LARS (arXiv 1708.03888), LAMB's
ancestor, is there for comparison.

An update of one variable is three steps: the direction (compiled by XLA, which makes one pass of it),
two norms (TensorFlow's own reduction, three times as fast as XLA's on a CPU) and the step. The compiled
functions are one for each *shape* of variable, with the variables as arguments: BERT has hundreds of
variables and about ten shapes, so it compiles in seconds. Keras, for anyone's `model.fit`, and
`apply_update`, for our training step, use the same ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import tensorflow as tf

# Parts of the names of variables that do not decay, as in Google's code.
_NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")


def excluded_from_weight_decay(name: str) -> bool:
    """Whether the variable of this name is a bias or a LayerNorm parameter, which do not decay."""
    return any(part in name for part in _NOT_DECAYED)


def gradient_norms(gradients: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Euclidean norms of all V `gradients` together and of each -> scalar, [V]. Squares are summed in float32."""
    halves = [tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients]
    return tf.sqrt(2.0 * tf.add_n(halves)), tf.sqrt(2.0 * tf.stack(halves))


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Euclidean norm of all `gradients` together -> scalar."""
    return gradient_norms(gradients)[0]


def _norm(x: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(2.0 * tf.nn.l2_loss(x))


def _running_mean(mean: tf.Tensor, new: tf.Tensor, beta: float, is_finite: tf.Tensor) -> tf.Tensor:
    """beta * mean + (1 - beta) * new; `mean` itself where not `is_finite`, if `new` is 0 then.

    By the factors and not by a choice between two results, which keeps XLA from reusing the one that
    was written: twice the time.
    """
    keep = tf.where(is_finite, tf.constant(beta, mean.dtype), tf.constant(1.0, mean.dtype))
    take = tf.where(is_finite, tf.constant(1.0 - beta, mean.dtype), tf.constant(0.0, mean.dtype))
    return keep * mean + take * new


def _corrected(moment: tf.Tensor, beta: float, step: tf.Tensor) -> tf.Tensor:
    """moment / (1 - beta^step). Written so that float32 does not cancel: 1 - 0.999 has five digits."""
    return moment / -tf.math.expm1(step * math.log(beta))


def adam_direction(
    w: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    g: tf.Tensor,
    *,
    step: tf.Tensor,
    is_finite: tf.Tensor,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
    bias_correction: bool,
) -> tuple[tf.Tensor, ...]:
    """What is subtracted from w, but for rate and trust ratio, and the new (m, v).

    Without `bias_correction` the first updates of BERT's Adam are up to (1-b1)/sqrt(1-b2) = 3.2 times
    as large, which the warm-up has to take; that is what Google trained and fine-tuned with.

    Args:
      w, m, v, g: weights, first and second moment, clipped gradient, all of one shape.
      step: number of updates applied, this one included, scalar of w's type.
      is_finite: bool scalar; where it is False, g is -0 and the moments stay as they are, to the bit.
      beta_1, beta_2, epsilon: as in Adam; epsilon is added to the root.
      weight_decay: 0 for variables that do not decay.
    """
    m = _running_mean(m, g, beta_1, is_finite)
    v = _running_mean(v, tf.square(g), beta_2, is_finite)
    first, second = (_corrected(m, beta_1, step), _corrected(v, beta_2, step)) if bias_correction else (m, v)
    return first / (tf.sqrt(second) + epsilon) + weight_decay * w, m, v


def nvlamb_trust_ratio(w_norm: tf.Tensor, u_norm: tf.Tensor) -> tf.Tensor:
    """||w|| / ||u||, and 1 where one of them is 0: variables that start at zero must be able to move."""
    return tf.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, tf.ones_like(w_norm))


def lars_update(
    w: tf.Tensor,
    a: tf.Tensor,
    g: tf.Tensor,
    *,
    rate: tf.Tensor,
    momentum: float,
    trust_coefficient: float,
    weight_decay: float,
    adapt: bool,
) -> tuple[tf.Tensor, ...]:
    """One LARS update of one variable -> new (w, a), and the trust ratio (arXiv 1708.03888, algorithm 1).

    Args:
      w, g: weights and clipped gradient, of one shape.
      a: the momentum, which holds the learning rates it was summed up with.
      rate: learning rate, scalar.
      momentum: the share of `a` that stays.
      trust_coefficient: of ||w|| / (||g|| + decay * ||w||), by which the rate is multiplied where `adapt`.
      weight_decay: 0 for variables that do not decay.
    """
    ratio = tf.ones([], w.dtype)
    if adapt:
        w_norm, g_norm = _norm(w), _norm(g)
        ratio = tf.where(
            (w_norm > 0) & (g_norm > 0), trust_coefficient * w_norm / (g_norm + weight_decay * w_norm), ratio
        )
    a = momentum * a + rate * ratio * (g + weight_decay * w)
    return w - a, a, ratio


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

    def _direction(self, excluded: bool) -> Callable[..., tuple[tf.Tensor, ...]]:
        """`adam_direction` with everything but tensors bound."""
        raise NotImplementedError

    def _adapts(self, excluded: bool) -> bool:
        """Whether the variable has a trust ratio."""
        raise NotImplementedError

    def _make_kernel(self, excluded: bool) -> Callable[..., tf.Tensor]:
        direction, adapts = self._direction(excluded), self._adapts(excluded)

        def prepare(w, m, v, g, multiplier, step, is_finite):
            u, new_m, new_v = direction(w, m, v, _sound(g, multiplier, is_finite), step=step, is_finite=is_finite)
            m.assign(new_m)
            v.assign(new_v)
            return u

        def finish(w, u, rate, is_finite):
            w.assign(tf.where(is_finite, w - rate * u, w))

        prepare, finish = self._compiled(prepare), self._compiled(finish)

        def update(w, slots, g, multiplier, rate, step, is_finite):
            u = prepare(w, *slots, g, multiplier, step, is_finite)
            w_norm, u_norm = _norm(w), _norm(u)
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

    def _direction(self, excluded: bool) -> Callable[..., tuple[tf.Tensor, ...]]:
        return functools.partial(
            adam_direction,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            weight_decay=0.0 if excluded else self.weight_decay_rate,
            bias_correction=True,
        )

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

    def _direction(self, excluded: bool) -> Callable[..., tuple[tf.Tensor, ...]]:
        return functools.partial(
            adam_direction,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            weight_decay=0.0 if excluded else self.weight_decay_rate,
            bias_correction=self.bias_correction,
        )

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
        update_of = functools.partial(
            lars_update,
            momentum=self.momentum,
            trust_coefficient=self.trust_coefficient,
            weight_decay=0.0 if excluded else self.weight_decay_rate,
            adapt=not excluded,
        )

        def update(w, slots, g, multiplier, rate, step, is_finite):
            del step  # nothing here is bias-corrected
            (a,) = slots
            w_norm = _norm(w)
            new_w, new_a, ratio = update_of(w, a, _sound(g, multiplier, is_finite), rate=rate)
            w.assign(tf.where(is_finite, new_w, w))
            a.assign(tf.where(is_finite, new_a, a))
            return tf.cast(tf.stack([w_norm, _norm(new_a), ratio]), tf.float32)

        return self._compiled(update)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum, "trust_coefficient": self.trust_coefficient}


class WarmupPolynomialDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then peak * (1 - t/total)^power, where t is the number of updates applied.

    The decay is counted from update 0, so the rate drops where the warm-up ends, by
    (1 - warmup/total)^power; that is the published recipe. `continuous_join` counts it from the
    end of the warm-up instead. From `total_steps` on the rate is 0.

    Args:
      peak_learning_rate: what the warm-up leads to.
      warmup_steps: updates of warm-up; 0 for none.
      total_steps: updates after which the rate is 0.
      power: 0.5 in the LAMB recipe, 1 with Adam.

    Raises:
      ValueError: not 0 <= warmup_steps <= total_steps, or total_steps is 0.
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: int,
        total_steps: int,
        power: float = 1.0,
        continuous_join: bool = False,
        name: str = "WarmupPolynomialDecay",
    ):
        if not 0 <= warmup_steps <= total_steps or total_steps < 1:
            raise ValueError(
                f"warmup_steps={warmup_steps}, total_steps={total_steps}: "
                "the warm-up must not be longer than the whole, and that must be positive"
            )
        self.peak_learning_rate, self.warmup_steps, self.total_steps = peak_learning_rate, warmup_steps, total_steps
        self.power, self.continuous_join, self.name = power, continuous_join, name

    def __call__(self, step: Any) -> tf.Tensor:
        """The rate of the update that follows `step` applied ones: float32 scalar."""
        with tf.name_scope(self.name):
            step = tf.cast(step, tf.float32)
            warming = step / max(self.warmup_steps, 1)
            start = self.warmup_steps if self.continuous_join else 0
            left = tf.maximum(self.total_steps - step, 0.0) / max(self.total_steps - start, 1)
            return self.peak_learning_rate * tf.where(step < self.warmup_steps, warming, left**self.power)

    def get_config(self) -> dict[str, Any]:
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "power": self.power,
            "continuous_join": self.continuous_join,
            "name": self.name,
        }


def make_optimizer(
    optimizer_type: str,
    peak_learning_rate: float,
    warmup_steps: int,
    total_steps: int,
    *,
    compiled: bool = True,
    continuous_join: bool = False,
    **options: Any,
) -> _BertOptimizer:
    """ "lamb", "adamw" or "lars" with its schedule (power 0.5, 1, 0.5); `options` go to the optimizer."""
    classes = {"lamb": (NVLAMB, 0.5), "adamw": (AdamW, 1.0), "lars": (LARS, 0.5)}
    if optimizer_type not in classes:
        raise ValueError(f"optimizer_type={optimizer_type!r}: must be one of {', '.join(classes)}")
    optimizer_class, power = classes[optimizer_type]
    schedule = WarmupPolynomialDecay(peak_learning_rate, warmup_steps, total_steps, power, continuous_join)
    return optimizer_class(schedule, compiled=compiled, **options)


class LossScale:
    """The factor by which float16's loss is multiplied, so that small gradients do not vanish.

    It is halved by an update with a non-finite gradient and doubled after `growth_interval` sound
    ones in a row, within [1, 2^24] (dynamic loss scaling, arXiv 1710.03740). Where not `enabled` it
    stays 1; skipped updates are counted all the same.
    """

    MAXIMUM = 2.0**24

    def __init__(self, enabled: bool = True, initial: float = 2.0**15, growth_interval: int = 2000):
        self.enabled, self._growth_interval = enabled, growth_interval
        self.scale = tf.Variable(initial if enabled else 1.0, trainable=False, dtype=tf.float32, name="loss_scale")
        # Of 64 bits: TensorFlow computes with int32 on the host, which would have to wait for the outcome.
        self.good_updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_updates")
        self.consecutive_skips = tf.Variable(0, trainable=False, dtype=tf.int64, name="consecutive_skips")

    @property
    def variables(self) -> list[tf.Variable]:
        return [self.scale, self.good_updates, self.consecutive_skips]

    def update(self, is_finite: tf.Tensor) -> None:
        """Notes an update's outcome, a bool scalar, without waiting for it."""
        sound = tf.cast(is_finite, tf.int64)
        self.consecutive_skips.assign((self.consecutive_skips + 1) * (1 - sound))
        if not self.enabled:
            return
        good_updates = (self.good_updates + 1) * sound
        grow = good_updates >= self._growth_interval
        wanted = tf.where(is_finite, tf.where(grow, self.scale * 2.0, self.scale), self.scale / 2.0)
        self.scale.assign(tf.clip_by_value(wanted, 1.0, self.MAXIMUM))
        self.good_updates.assign(tf.where(grow, tf.zeros_like(good_updates), good_updates))

    def num_consecutive_skips(self) -> int:
        """Updates skipped since the last applied one. Waits for the device."""
        return int(self.consecutive_skips.numpy())

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps. Waits for the device."""
        return {
            "scale": float(self.scale.numpy()),
            "good_updates": int(self.good_updates.numpy()),
            "consecutive_skips": self.num_consecutive_skips(),
        }

    def restore(self, state: Mapping[str, float]) -> None:
        """Takes over what `state` returned."""
        self.scale.assign(state["scale"])
        self.good_updates.assign(int(state["good_updates"]))
        self.consecutive_skips.assign(int(state["consecutive_skips"]))
