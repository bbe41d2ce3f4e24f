"""Checks that a checkpoint that was typed is one, and of the model that was typed."""

from __future__ import annotations

from pathlib import Path

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import CHECKOUT, read_json_object
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Typed


def find_checkpoint(path: str, title: str) -> Path:
    """A folder or prefix, relative to the working folder or to the checkout; `title` begins the message."""
    for base in (Path.cwd(), CHECKOUT):
        if (base / path).is_dir() or Path(f"{base / path}.index").is_file():
            return base / path
    raise MissingError(
        f"{title}: there is no checkpoint; name a run folder, a folder with a checkpoint or with a model of Hugging "
        "Face's, or a prefix such as .../bert_model.ckpt; fine-tuning takes 'none', too: random weights"
    )


def config_file(checkpoint: Path) -> Path:
    """The file beside a checkpoint that describes its model, ours or Hugging Face's; it may not exist."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    ours, theirs = folder / "bert_config.json", folder / "config.json"
    return theirs if theirs.is_file() and not ours.is_file() else ours


def check_model(checkpoint: Path, typed: Typed) -> None:
    """Raises `UserError` if the file beside a checkpoint describes another model than argument bert_model."""
    file = config_file(checkpoint)
    sizes = read_json_object(
        file, "name the folder in which it lies beside the weights; of a pre-training in two phases that is phase_2"
    )
    described = sizes.get("num_hidden_layers"), sizes.get("hidden_size")
    num_layers, hidden_size = PRESETS[typed["bert_model"]]
    if described != (num_layers, hidden_size):
        raise UserError(
            f"{typed.title('bert_model')} is {typed['bert_model']}, {num_layers} layers of {hidden_size}, but {file} "
            f"describes {described[0]} layers of {described[1]}; name the checkpoint's model, or use the program "
            "itself (run_*.py), which takes any size"
        )
