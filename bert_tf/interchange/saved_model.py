"""A trained model for servers: a SavedModel with a named signature, in the layout of a Triton model repository.

    <folder>/config.pbtxt               Triton's configuration of the model
    <folder>/1/model.savedmodel/        version 1 of the model
    <folder>/settings.json              how to make inputs and read outputs, such as length and casing
    <folder>/vocab.txt, bert_config.json

The inputs are ``input_ids``, ``input_mask`` and ``segment_ids``, int32 [batch, max_seq_length]; the outputs
are float32, and their names depend on the task.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError, first_line
from bert_tf.base.files import atomic_folder, read_json_object
from bert_tf.base.tensorflow import keras, tf
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.google import CONFIG_FILE
from bert_tf.interchange.weights import Weights
from bert_tf.run.run_folder import find_damage
from bert_tf.text.tokenizer import StoredTokenizer

INPUTS = ("input_ids", "input_mask", "segment_ids")
SETTINGS_FILE, TRITON_CONFIG = "settings.json", "config.pbtxt"
MODEL = Path("1") / "model.savedmodel"
# The number of requests that Triton may join into a batch if the exported batch size is variable.
_MAX_TRITON_BATCH = 64


def export_model(
    model: keras.Model,
    folder: Path,
    output_names: Sequence[str],
    settings: Mapping[str, Any],
    companions: Mapping[str, str],
) -> None:
    """Writes a model and all that is needed to use it to a new folder, which appears complete or not at all.

    Args:
      model: in scope "off", so that servers without XLA can load it.
      output_names: names for the model's outputs, in their order.
      settings: for ``settings.json``: "task", "max_seq_length", "do_lower_case" and what else the task needs;
        "batch_size" fixes the first dimension, None leaves it variable.
      companions: the texts of files to be written, by name, including ``vocab.txt`` and ``bert_config.json``.

    Raises:
      UserError: the folder cannot be written.
    """
    shape = [settings["batch_size"], settings["max_seq_length"]]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec(shape, tf.int32, name) for name in INPUTS])
    def serve(*inputs):
        outputs = tf.nest.flatten(model(dict(zip(INPUTS, inputs)), dropout=None))
        return {name: tf.identity(output, name) for name, output in zip(output_names, outputs)}

    module = tf.Module()
    module.weights, module.serve = list(model.variables), serve
    concrete = serve.get_concrete_function()
    outputs = {name: list(tensor.shape) for name, tensor in concrete.structured_outputs.items()}
    config = triton_config(settings["batch_size"], settings["max_seq_length"], outputs)
    hashes = {name: hashlib.sha256(text.encode("utf-8")).hexdigest() for name, text in companions.items()}
    recorded = {**settings, "outputs": list(output_names), "sha256": hashes}
    settings_json = json.dumps(recorded, indent=2, default=str) + "\n"
    try:
        with atomic_folder(folder) as made:
            logging.disable(logging.INFO)  # of all loggers, as TensorFlow has several: the temporary folder's name
            try:
                tf.saved_model.save(module, str(made / MODEL), signatures={"serving_default": concrete})
            finally:
                logging.disable(logging.NOTSET)
            for name, text in {**companions, TRITON_CONFIG: config, SETTINGS_FILE: settings_json}.items():
                (made / name).write_text(text, encoding="utf-8")
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"{folder} cannot be written ({first_line(error)}); make room, or name another folder with "
            "--model_export_path"
        ) from None


def triton_config(batch_size: int | None, max_seq_length: int, outputs: Mapping[str, Sequence[int | None]]) -> str:
    """The text of Triton's ``config.pbtxt`` (its ModelConfig as a text proto).

    If the batch size is variable, Triton adds the batch dimension itself and joins requests into batches; if it is
    fixed, it is one of the dimensions.
    """
    leading = [] if batch_size is None else [batch_size]
    tensors = [
        *(("input", name, "TYPE_INT32", [*leading, max_seq_length]) for name in INPUTS),
        *(("output", name, "TYPE_FP32", [*leading, *shape[1:]]) for name, shape in outputs.items()),
    ]
    lines = [
        'platform: "tensorflow_savedmodel"',
        f"max_batch_size: {_MAX_TRITON_BATCH if batch_size is None else 0}",
        *(
            f'{kind} {{ name: "{name}" data_type: {dtype} dims: {json.dumps(dims)} }}'
            for kind, name, dtype, dims in tensors
        ),
        *(["dynamic_batching { }"] if batch_size is None else []),
    ]
    return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """An exported model, loaded and ready to compute, without its run."""

    settings: Mapping[str, Any]
    signature: Any  # a TensorFlow function

    @property
    def batch_size(self) -> int | None:
        """The fixed batch size; None if it is variable."""
        return self.signature.structured_input_signature[1][INPUTS[0]].shape[0]

    def __call__(self, features: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """The outputs, in the model's order, for int32 inputs [batch, max_seq_length]."""
        outputs = self.signature(**{name: features[name] for name in INPUTS})
        return tuple(outputs[name] for name in self.settings["outputs"])


def load_exported(folder: Path, task: str) -> ExportedModel:
    """Reads what `export_model` wrote for `task`.

    Raises:
      UserError: there is no such model, it is damaged, or it is for another task.
    """
    export_again = "write one with --mode=export_only and name it with --model_export_path"
    settings = read_json_object(folder / SETTINGS_FILE, export_again)
    if settings.get("task") != task:
        raise UserError(f"{folder} holds a model for {settings.get('task')!r}, not for {task!r}; {export_again}")
    if damage := find_damage(folder, SETTINGS_FILE):
        raise UserError(f"{folder} is not as it was exported ({damage}); copy it again, or {export_again}")
    try:
        signature = tf.saved_model.load(str(folder / MODEL)).signatures["serving_default"]
    except (IndexError, KeyError, OSError, ValueError, tf.errors.OpError) as error:
        raise UserError(f"{folder / MODEL} cannot be read ({first_line(error)}); {export_again}") from None
    length = signature.structured_input_signature[1][INPUTS[0]].shape[1]
    if settings.get("max_seq_length") != length:
        raise UserError(f"{folder / SETTINGS_FILE} has another max_seq_length than the model, {length}; {export_again}")
    return ExportedModel(settings, signature)


def read_exported_files(folder: Path) -> Weights:
    """The configuration and the tokenizer of an exported model, as `Weights` without variables."""
    config = BertConfig.from_json_file(folder / CONFIG_FILE)
    no_variables: dict[str, Any] = {}
    return Weights(
        str(folder), {}, no_variables.__getitem__, folder, config, folder / CONFIG_FILE, StoredTokenizer(folder)
    )
