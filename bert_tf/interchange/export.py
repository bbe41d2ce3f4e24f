"""Exports a checkpoint to a folder that Hugging Face's `transformers` can load, with a model card."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import safetensors
import safetensors.numpy

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_folder, check_folder
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import HEADS, TEXTS, Head
from bert_tf.interchange.hugging_face import ACTIVATIONS, CONFIG, SAFETENSORS, is_transposed, to_their_name
from bert_tf.interchange.initialise import choose_tokenizer, find_weights, require_config
from bert_tf.interchange.labels import CLASSES, REGRESSION, TrainedTask, numbered_labels, read_task
from bert_tf.interchange.weights import Weights
from bert_tf.model.heads import PretrainingModel
from bert_tf.run.run_folder import read_config
from bert_tf.run.variables import check_encoder, enumerate_names
from bert_tf.text.hugging_face import SPECIAL_FIELDS, TOKENIZER, wordpiece_pipeline
from bert_tf.text.tokenizer import CasingFlags
from bert_tf.text.vocabulary import SETTINGS, VOCABULARY, Tokenizer
from bert_tf.text.wordpiece import MAX_WORD_CHARS

CARD = "README.md"
_TEMPLATE = "model_card.md"


class _Architecture(NamedTuple):
    """A class of transformers."""

    name: str
    prefixes: tuple[str, ...]  # of our names of its heads' variables
    pipeline: str
    has_pooler: bool = True


# The first one whose heads are all in a checkpoint is used; the checkpoint's other heads are left out.
_ARCHITECTURES = (
    *(_Architecture(head.architecture, (f"{head.scope}output_",), head.pipeline, head.uses_pooler) for head in HEADS),
    _Architecture("BertForPreTraining", ("cls/predictions/", "cls/seq_relationship/"), "fill-mask"),
    _Architecture("BertForMaskedLM", ("cls/predictions/",), "fill-mask", has_pooler=False),
    _Architecture("BertModel", (), "feature-extraction"),
)
_POOLER = "bert/pooler/"
_FILES = {CONFIG, SAFETENSORS, CARD, TOKENIZER, SETTINGS, VOCABULARY}


def training_data_name(checkpoint: Path) -> str:
    """The name of the data that the run of a checkpoint folder was trained on, without path; "" if it is not known.

    Raises:
      UserError: the run's ``config.json`` is missing or damaged.
    """
    config = read_config(checkpoint.parent.parent) if checkpoint.parent.name == "checkpoints" else None
    data = (config or {}).get("data") or {}
    return str(data.get("dataset") or Path(str(data.get("first_file", ""))).name)


def write_card(architecture: str, pipeline: str, **values: Any) -> str:
    """The text of ``README.md`` in Markdown; `values`: the template's other variables."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(Path(__file__).with_name(_TEMPLATE).read_text(encoding="utf-8"))
    return template.render(architecture=architecture, pipeline=pipeline, **values)


def export(
    path: str,
    folder: Path,
    *,
    replace: bool = False,
    vocab_file: str | None = None,
    flags: CasingFlags = CasingFlags(),  # noqa: B008
) -> list[str]:
    """Writes the weights at `path` (see `find_weights`), and everything else that `transformers` needs, to `folder`.

    Returns: lines that tell the user what was done.

    Raises:
      UserError: the weights or their tokenizer are damaged, incomplete or not finite; or `folder` contains an export
        and `replace` is False, or contains other files. Nothing has been written then.
    """
    check_folder(folder, f"FOLDER={folder}")
    _check_contents(folder, replace)
    weights = find_weights(path, "RUN")
    config = require_config(weights)
    tokenizer, assumed = choose_tokenizer(vocab_file, flags, config, weights)
    architecture, names = _choose_architecture(weights, config)
    hugging_face_config = _to_hugging_face_config(config, architecture.name, tokenizer.vocab)
    task = None
    for head in HEADS:
        if head.has_labels and head.architecture == architecture.name:
            task = read_task(weights, head)
            hugging_face_config.update(_describe_classes(weights, head, task))
    texts = {CONFIG: _to_json(hugging_face_config), **tokenizer_files(tokenizer, config)}
    arrays = ((name, weights.read(name)) for name in names)  # one after the other: a large model is not held twice
    tensors = {
        to_their_name(name): np.ascontiguousarray(array.T if is_transposed(name) else array) for name, array in arrays
    }
    num_weights = sum(array.size for array in tensors.values())
    card = folder / CARD
    if has_card := card.is_file():
        advice = f"{CARD} is the one that was there; for a new one delete it, and export again"
    else:
        advice = f"before you publish it, fill in what {CARD} leaves open"
        texts[CARD] = write_card(
            architecture.name,
            architecture.pipeline,
            name=folder.resolve().name,
            config=config,
            casing=tokenizer.casing,
            num_weights=num_weights,
            data=training_data_name(weights.folder),
            reads_pairs=task is not None and len(task.text_columns) == 2,
        )
    try:
        with atomic_folder(folder) as made:
            if has_card:
                shutil.copy(card, made)
            safetensors.numpy.save_file(tensors, made / SAFETENSORS, metadata={"format": "pt"})
            for name, text in texts.items():
                (made / name).write_text(text, encoding="utf-8")
            shutil.copymode(made / CONFIG, made / SAFETENSORS)  # safetensors writes a file that only its owner can read
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder} cannot be written ({error}); make room or name another folder") from None
    left_out = [f"{name} {weights.shapes[name]}" for name in weights.shapes if name not in names]
    return [
        *(f"warning: {warning}" for warning in weights.warnings),
        *([f"left out, as {architecture.name} does not have them: {', '.join(left_out)}"] if left_out else []),
        *([assumed] if assumed else []),
        f"{architecture.name} with {num_weights:,} weights from {weights.source} is in {folder}; {advice}",
    ]


def tokenizer_files(tokenizer: Tokenizer, config: BertConfig) -> dict[str, str]:
    """The tokenizer's files for transformers, with which it makes inputs for a model with this configuration."""
    files = tokenizer.files()
    if TOKENIZER not in files:  # a tokenizer by Google's rules, which allow longer words than Hugging Face's default
        pipeline = wordpiece_pipeline(tokenizer.vocab, tokenizer.casing, MAX_WORD_CHARS)
        files[TOKENIZER] = pipeline.to_str(pretty=True) + "\n"
    settings = {
        **json.loads(files[SETTINGS]),
        # Not BertTokenizer, which reads only the vocabulary of tokenizer.json, and limits words to 100 characters.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        "model_input_names": ["input_ids", *["token_type_ids"] * (config.type_vocab_size > 1), "attention_mask"],
        **SPECIAL_FIELDS,
    }
    return {**files, SETTINGS: _to_json(settings)}


def _to_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def _check_contents(folder: Path, replace: bool) -> None:
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if other_files := sorted(names - _FILES):
        raise UserError(
            f"{folder} holds other files ({', '.join(other_files[:3])}); name a folder that does not exist yet"
        )
    if names and not replace:
        raise UserError(f"{folder} holds a model; replace it with --replace, or name another folder")


def _stored_shapes(config: BertConfig) -> dict[str, list[int]]:
    """By name: the shapes that files have of all variables of a pre-trained model with this configuration."""
    model = PretrainingModel(dataclasses.replace(config, num_hidden_layers=1))
    shapes: dict[str, list[int]] = {}
    for variable in model.variables:
        name, shape = variable.name.split(":")[0], list(variable.shape)
        if name.endswith(("/word_embeddings", "/predictions/output_bias")):
            shape[0] = config.vocab_size
        for layer in range(config.num_hidden_layers):
            shapes[name.replace("/layer_0/", f"/layer_{layer}/")] = shape
    return shapes


def _choose_architecture(weights: Weights, config: BertConfig) -> tuple[_Architecture, list[str]]:
    """The class of transformers for a checkpoint, by the heads in it, and our names of the class's variables."""
    stored, width = weights.shapes, config.hidden_size
    shapes = _stored_shapes(config)
    check_encoder(weights, shapes, "name a whole checkpoint of BERT's, with the configuration it was trained with")
    for head in HEADS:
        num_outputs = (stored.get(head.variable) or [2])[0]
        shapes.update(zip(head.names.values(), ([num_outputs, width], [num_outputs])))
    architecture = next(
        candidate
        for candidate in _ARCHITECTURES
        if all(any(name.startswith(prefix) for name in stored) for prefix in candidate.prefixes)
    )
    names = [name for name in shapes if name.startswith(("bert/", *architecture.prefixes))]
    needs_pooler = architecture.prefixes or any(name.startswith(_POOLER) for name in stored)
    if not (architecture.has_pooler and needs_pooler):
        names = [name for name in names if not name.startswith(_POOLER)]
    if wrong := [name for name in names if list(stored.get(name, ())) != shapes[name]]:
        faults = [f"{name} is {stored.get(name, 'missing')}, not {shapes[name]}" for name in wrong]
        raise UserError(
            f"{weights.source}: {enumerate_names(faults)}; name a whole {architecture.name}, with its own "
            f"{weights.config_file.name}"
        )
    return architecture, names


def _to_hugging_face_config(config: BertConfig, architecture: str, vocab: Mapping[str, int]) -> dict[str, Any]:
    """The content of Hugging Face's ``config.json`` with which `architecture` computes the same as our model."""
    return {
        "architectures": [architecture],
        "model_type": "bert",
        **config.to_dict(),
        "hidden_act": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.hidden_act),
        "layer_norm_eps": config.layer_norm_eps,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "pad_token_id": vocab["[PAD]"],
        "torch_dtype": "float32",
    }


def _describe_classes(weights: Weights, head: Head, task: TrainedTask | None) -> dict[str, Any]:
    """What ``config.json`` says about a classifier: its labels, which are numbered if they are not known, and what kind
    of problem it solves."""
    num_classes = weights.shapes[head.variable][0]
    labels = task.labels if task else numbered_labels(num_classes)
    described = {"id2label": dict(enumerate(labels)), "label2id": dict(zip(labels, range(num_classes)))}
    problem = task.problem if task else REGRESSION if num_classes == 1 else CLASSES
    # If a regression's config.json had no problem_type, a pipeline shows the number's sigmoid. The export keeps that.
    if head == TEXTS and not (task and problem == REGRESSION and not task.is_named):
        described["problem_type"] = problem
    return described
