"""NVIDIA's own TF2 code, from a checkout of DeepLearningExamples: its loop, model, optimizers and record maker.

The checkout is imported unchanged. Modules that cannot be installed, or that TensorFlow 2.15 has moved, get a stand-in
here (`STAND_INS`). A difference from this project is removed by replacing a function by name (`SWITCHES`), never by
changing the checkout. TensorFlow is imported inside functions, so that the names here can be read without it.
"""

from __future__ import annotations

import argparse
import functools
import json
import queue
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import numpy as np

from benchmarks.variants.shared import LEARNING_RATE, google_instances, random_batch
from bert_tf.interchange.keras_names import to_our_name

Settings = dict[str, Any]
BERT = "TensorFlow2/LanguageModeling/BERT"
STAND_INS = {
    "horovod": "imported by the loop, not used by one process",
    "dllogger": "writes no log",
    "pynvml": "there is no GPU to ask for",
    "tf.keras.optimizers.Adam": "the class that had this name then, now tf.keras.optimizers.legacy.Adam",
    "absl.flags.DEFINE_enum": "takes several values in one string, as it did",
}
IMPORTED = ("run_pretraining.py", "optimization.py", "create_pretraining_data.py", "official/nlp/bert_models.py")
NEXT_SENTENCE = "cls/seq_relationship/output_weights"


def checkout_folder(text: str) -> Path:
    """--checkout; the folder must hold what is imported from it."""
    missing = [name for name in IMPORTED if not (Path(text) / BERT / name).is_file()]
    if missing:
        raise argparse.ArgumentTypeError(
            f"{text} has no {BERT}/{missing[0]}; give a clone of https://github.com/NVIDIA/DeepLearningExamples"
        )
    return Path(text).resolve()


def describe(checkout: Path) -> str:
    """The checkout's commit, and what is not NVIDIA's."""
    done = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True)
    commit = f"commit {done.stdout.strip()[:12]}" if not done.returncode else "not a git repository"
    stand_ins = "; ".join(f"`{name}` ({why})" for name, why in STAND_INS.items())
    return f"NVIDIA's checkout: {commit}. Not NVIDIA's, but of the benchmark: {stand_ins}."


def prepare_imports(checkout: str) -> None:
    """Makes the checkout's modules importable."""
    for name in ("horovod", "horovod.tensorflow", "horovod.tensorflow.compression", "dllogger", "pynvml"):
        sys.modules[name] = mock.MagicMock()  # accepts any call
    warnings.simplefilter("ignore")

    import tensorflow as tf
    import tensorflow_addons  # noqa: F401 - before the next line, which importing it would undo
    import tensorflow_hub  # noqa: F401 - likewise
    from absl import flags, logging

    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")
    tf.keras.optimizers.Adam = tf.keras.optimizers.legacy.Adam
    define_enum = flags.DEFINE_enum
    flags.DEFINE_enum = lambda name, default, enum_values, *rest, **more: define_enum(
        name, default, enum_values.split("', '") if isinstance(enum_values, str) else enum_values, *rest, **more
    )
    sys.path.insert(0, str(Path(checkout) / BERT))


# Each switch removes one difference from this project; what it replaces is found by name in the checkout's modules.


def activate_masked_words(_: Settings) -> None:
    """The masked-word head gets the encoder's activation, as in Google's code."""
    from official.modeling import activations
    from official.nlp.modeling import networks

    make_head = networks.MaskedLM
    networks.MaskedLM = lambda **keywords: make_head(**{**keywords, "activation": activations.gelu})


def update_once_a_batch(settings: Settings) -> None:
    """An update before the last micro-batch of a global batch changes nothing, and accumulation continues."""
    import optimization
    import tensorflow as tf
    from official.modeling import model_training_utils

    steps = settings["num_accumulation_steps"]
    if steps == 1:  # that path of the loop has no such update
        return
    accumulators: list[Any] = []

    def when_complete(action: Callable[[], Any]) -> None:
        def run() -> tf.Tensor:
            action()
            return tf.constant(True)

        tf.cond(tf.equal(accumulators[-1].step, steps), run, lambda: tf.constant(False))

    class Accumulator(optimization.GradientAccumulator):
        def __init__(self) -> None:
            super().__init__()
            accumulators.append(self)

        def reset(self) -> None:
            when_complete(super().reset)

    create_optimizer = optimization.create_optimizer

    def create(*arguments: Any) -> Any:
        optimizer = create_optimizer(*arguments)
        apply_gradients = optimizer.apply_gradients

        def apply_complete(pairs: Any) -> None:
            pairs = list(pairs)
            when_complete(lambda: apply_gradients(pairs))

        optimizer.apply_gradients = apply_complete
        return optimizer

    model_training_utils.GradientAccumulator = Accumulator
    optimization.create_optimizer = create


def average_over_all_tokens(settings: Settings) -> None:
    """Divides the masked words' loss by the mean number of words in the batch's micro-batches, not by this one's."""
    import tensorflow as tf
    from official.nlp.modeling import losses

    original_mean = losses.weighted_sparse_categorical_crossentropy_loss
    weights = np.load(settings["batches"])["masked_lm_weights"]
    shares = weights.reshape(settings["num_updates"], -1).sum(axis=1) / settings["num_accumulation_steps"]

    def mean(labels: Any, predictions: Any, weights: Any = None) -> tf.Tensor:
        loss = original_mean(labels=labels, predictions=predictions, weights=weights)
        if weights is None:  # next sentences: as many in each micro-batch
            return loss
        update = micro_batch_counter().value() // settings["num_accumulation_steps"]
        return loss * (tf.reduce_sum(weights) + 1e-5) / tf.gather(tf.constant(shares, tf.float32), update)

    losses.weighted_sparse_categorical_crossentropy_loss = mean


SWITCHES: dict[str, Callable[[Settings], None]] = {
    "no update after the first micro-batch": update_once_a_batch,
    "an activation in the masked-word head": activate_masked_words,
    "mean over all masked tokens of an update": average_over_all_tokens,
}


@functools.cache
def micro_batch_counter() -> Any:
    """A variable that counts the micro-batches whose loss is computed; must first be requested outside of graphs."""
    import tensorflow as tf

    return tf.Variable(0, trainable=False, dtype=tf.int64)


class Loop:
    """NVIDIA's `run_pretraining.py`, with given weights and batches in a given order."""

    def __init__(self, settings: Settings):
        prepare_imports(settings["checkout"])
        from absl import flags
        from official.modeling import model_training_utils
        from official.nlp import bert_models

        import run_pretraining

        self.settings = settings
        self.model: Any = None
        self.losses: list[float] = []  # of every micro-batch
        micro_batch_counter()
        for name in settings["switches"]:
            SWITCHES[name](settings)
        self._program = run_pretraining
        self._make_model = bert_models.pretrain_model
        bert_models.pretrain_model = self._pretrain_model
        run_pretraining.get_pretrain_dataset_fn = lambda *_: self._batches
        run_pretraining.get_loss_fn = lambda **_: self._loss
        self.callbacks: list[Any] = []
        model_training_utils.run_customized_training_loop = functools.partial(
            model_training_utils.run_customized_training_loop, custom_callbacks=self.callbacks
        )
        self._flags = flags.FLAGS

    def run(self) -> None:
        """Makes all updates, with the flags that NVIDIA's scripts give."""
        settings = self.settings
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "bert_config.json"
            config.write_text(json.dumps(settings["bert_config"]))
            flags = {
                "bert_config_file": config,
                "model_dir": folder,
                "train_batch_size": settings["micro_batch_size"],
                "max_seq_length": settings["seq_length"],
                "max_predictions_per_seq": settings["predictions"],
                "num_accumulation_steps": settings["num_accumulation_steps"],
                "num_steps_per_epoch": settings["num_updates"],
                "steps_per_loop": settings["steps_per_loop"],
                "num_train_epochs": 1,
                "save_checkpoint_steps": 10**9,
                "warmup_steps": settings["warmup_steps"],
                "learning_rate": settings["learning_rate"],
                "optimizer_type": settings["optimizer_type"],
                "input_files": "",
                "enable_xla": True,
            }
            self._flags(["run_pretraining.py", *(f"--{name}={value}" for name, value in flags.items())])
            self._program.main([])

    def _pretrain_model(self, *arguments: Any, **keywords: Any) -> Any:
        model, encoder = self._make_model(*arguments, **keywords)
        self.model = model
        if "weights" in self.settings:
            weights = np.load(self.settings["weights"])
            for variable in model.trainable_variables:
                array = weights[our_name(variable)]
                variable.assign(array.T if our_name(variable) == NEXT_SENTENCE else array.reshape(variable.shape))
        return model, encoder

    def _batches(self) -> Any:
        """The dataset that their loop iterates over: micro-batches in the order of the file, again and again."""
        import tensorflow as tf

        arrays = np.load(self.settings["batches"]) if "batches" in self.settings else random_batch(self.settings)
        renamed = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
        features = {
            renamed.get(name, name): arrays[name].reshape(-1, arrays[name].shape[-1])
            for name in arrays
            if name != "example_weights"
        }
        rows = tf.data.Dataset.from_tensor_slices((features, features["masked_lm_weights"]))
        return rows.batch(self.settings["micro_batch_size"], drop_remainder=True).repeat().prefetch(2)

    def _loss(self, _: Any, losses: Any, **__: Any) -> Any:
        """Takes the place of their loss function; also records each loss."""
        import tensorflow as tf

        loss = tf.keras.backend.mean(losses)
        micro_batch_counter().assign_add(1)
        tf.numpy_function(lambda value: self.losses.append(float(value)), [loss], [])
        return loss


def our_name(variable: Any) -> str:
    """This project's name of one of their model's variables."""
    name = to_our_name(variable.name.split(":")[0])
    if name.endswith("predictions/transform/logits/kernel"):
        return NEXT_SENTENCE
    return "cls/seq_relationship/output_bias" if name.endswith("predictions/transform/logits/bias") else name


def updates(settings: Settings) -> Callable[[], dict[str, float]]:
    """All `num_updates` of a run; writes losses [updates, micro-batches] and weights to the .npz file `output`."""
    loop = Loop(settings)

    def make() -> dict[str, float]:
        loop.run()
        our_weights, arrays = np.load(settings["weights"]), {}
        for variable in loop.model.trainable_variables:
            name, array = our_name(variable), variable.numpy()
            arrays[name] = array.T if name == NEXT_SENTENCE else array.reshape(our_weights[name].shape)
        losses = np.reshape(loop.losses, [settings["num_updates"], settings["num_accumulation_steps"]])
        np.savez(settings["output"], losses=losses, **arrays)
        return {"updates": float(loop.model.optimizer.iterations.numpy())}

    return make


def update(settings: Settings) -> Callable[[], float]:
    """One update of their loop, which runs in a thread and waits for each call. Trains on a random batch."""
    run_of_any_length = {"num_updates": 10**6, "steps_per_loop": 1, "warmup_steps": 0, "learning_rate": LEARNING_RATE}
    loop = Loop({**settings, **run_of_any_length, "optimizer_type": "LAMB", "switches": list(SWITCHES)[:2]})
    orders: queue.Queue[None] = queue.Queue()
    answers: queue.Queue[BaseException | None] = queue.Queue()
    loop.callbacks.append(
        types.SimpleNamespace(on_batch_begin=lambda _: orders.get(), on_batch_end=lambda _: answers.put(None))
    )

    def run() -> None:
        try:
            loop.run()
        except BaseException as error:  # passed on to the waiting thread
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()

    def make() -> float:
        orders.put(None)
        error = answers.get()
        if error is not None:
            raise error
        return loop.losses[-1]

    return make


def instances(settings: Settings) -> Callable[[], dict[str, float]]:
    """Masked records of a file of sentences by create_pretraining_data.py; `settings` as of `this_project`."""
    prepare_imports(settings["checkout"])
    import create_pretraining_data as program
    import tokenization

    return google_instances(program, tokenization, settings)
