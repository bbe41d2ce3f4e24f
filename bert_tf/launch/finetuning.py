"""What the launchers of fine-tuning share: the weights that it starts from, and its start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, read_json_object
from bert_tf.config import PRESETS, BertConfig
from bert_tf.launch import launchers
from bert_tf.launch.arguments import Argument, Values
from bert_tf.launch.environment import CHECKOUT, LaunchEnvironment, check_tensorflow, end_dry_run, program_command, show
from bert_tf.launch.supervisor import train

# Switches that are passed on as flags of the programs.
_EXTRAS = ("CONTINUE_WITH_CHANGES", "RECOMPUTE")


def fine_tune(
    what: str, program: str, prepare: Callable[[], dict[str, Any]], num_ranks: int, environment: LaunchEnvironment
) -> int:
    """Starts `program` on all ranks with the flags that `prepare` makes once all is checked; returns their exit code.

    The logs go to ``logs`` below the flags' model_dir.
    """
    if limits := environment.describe_limits():
        show(limits)
    environment.check_num_gpus(num_ranks)

    def prepare_all() -> tuple[dict[str, Any], str]:
        flags, launcher = prepare(), launchers.choose_launcher(num_ranks, environment.environ)
        show([f"launcher = {launcher}"])
        return flags, launcher

    if environment.is_dry_run:
        return end_dry_run(prepare_all)
    check_tensorflow()
    flags, launcher = prepare_all()
    command = program_command(program, flags, environment.extra_flags(_EXTRAS))
    job = launchers.Job(command, num_ranks, environment.num_gpus, launcher, flags["model_dir"] / "logs")
    return train(what, job, environment)


def initial_weights(
    values: Values, arguments: Sequence[Argument], folder: Path, environment: LaunchEnvironment
) -> dict[str, Any]:
    """Flags for the initial weights: those of a checkpoint, or new ones if the argument is ``none``."""
    if values["checkpoint"] == "none":
        if not environment.environ.get("VOCAB_FILE"):
            raise UserError("checkpoint is 'none' (random weights), which needs VOCAB_FILE=<a vocab.txt>")
        vocab_file = environment.path("VOCAB_FILE", Path())
        check_file(vocab_file, "set VOCAB_FILE to a vocab.txt")
        with open(vocab_file, encoding="utf-8") as file:
            config = BertConfig.preset(values["bert_model"], sum(1 for _ in file))
        config_file = folder / "bert_config.json"
        if not environment.is_dry_run:
            folder.mkdir(parents=True, exist_ok=True)
            config_file.write_text(config.to_json(), encoding="utf-8")
        return {"bert_config_file": config_file, "vocab_file": vocab_file}
    return {"init_checkpoint": check_model(values, arguments)}


def check_model(values: Values, arguments: Sequence[Argument]) -> Path:
    """The checkpoint that was typed; raises `UserError` where there is none or it is another model's."""
    positions = {argument.name: number for number, argument in enumerate(arguments, 1)}
    checkpoint = find_checkpoint(values["checkpoint"], positions["checkpoint"])
    model_folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    config_file = model_folder / "bert_config.json"
    if not config_file.is_file() and (model_folder / "config.json").is_file():
        config_file = model_folder / "config.json"  # Hugging Face's, with the same names for sizes
    sizes = read_json_object(config_file, "the model's configuration must lie beside its weights")
    described = sizes.get("num_hidden_layers"), sizes.get("hidden_size")
    if described != PRESETS[values["bert_model"]]:
        num_layers, hidden_size = PRESETS[values["bert_model"]]
        raise UserError(
            f"bert_model (position {positions['bert_model']}) is {values['bert_model']}, {num_layers} layers of "
            f"{hidden_size}, but {config_file} describes {described[0]} layers of {described[1]}; name the "
            "checkpoint's model"
        )
    return checkpoint


def find_checkpoint(typed: str, position: int) -> Path:
    """The folder or prefix that was typed, from here or from the checkout."""
    for base in (Path.cwd(), CHECKOUT):
        path = base / typed
        if path.is_dir() or Path(f"{path}.index").is_file():
            return path
    raise UserError(
        f"checkpoint (position {position}) is {typed!r}: there is neither such a folder nor {typed}.index; name a "
        "run folder, a checkpoint's folder or a bert_model.ckpt; fine-tuning takes 'none', too: random weights"
    )
