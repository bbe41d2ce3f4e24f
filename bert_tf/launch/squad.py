"""SQuAD: fine-tuning with eleven arguments, predicting with eight; each is one run of run_squad.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, read_json_object
from bert_tf.config import PRECISIONS, PRESETS, BertConfig
from bert_tf.launch import launchers
from bert_tf.launch.arguments import (
    Argument,
    Values,
    describe_arguments,
    one_of,
    parse_arguments,
    positive,
    text,
    whole,
)
from bert_tf.launch.environment import (
    CHECKOUT,
    LaunchEnvironment,
    check_tensorflow,
    end_dry_run,
    program_command,
    run_program,
    show,
    shown,
)

ARGUMENTS = (
    Argument("batch_size_per_gpu", "10", whole(1)),
    Argument("learning_rate_per_gpu", "5e-6", positive),
    Argument("precision", "fp16", one_of(*PRECISIONS)),
    Argument("use_xla", "true", one_of("true", "false")),
    Argument("num_gpus", "10", whole(1)),
    Argument("seq_length", "384", whole(8)),
    Argument("doc_stride", "128", whole(1)),
    Argument("bert_model", "large", one_of(*PRESETS)),
    Argument("squad_version", "1.1", one_of("1.1", "2.0")),
    Argument("checkpoint", "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt", text),
    Argument("epochs", "1.1", positive),
)
INFERENCE_ARGUMENTS = (
    Argument("checkpoint", "results/tf_bert_finetuning_squad_large_fp16_gbs100/squad", text),
    Argument("batch_size", "8", whole(1)),
    Argument("precision", "fp16", one_of(*PRECISIONS)),
    Argument("use_xla", "true", one_of("true", "false")),
    Argument("seq_length", "384", whole(8)),
    Argument("doc_stride", "128", whole(1)),
    Argument("bert_model", "large", one_of(*PRESETS)),
    Argument("squad_version", "1.1", one_of("1.1", "2.0")),
)
# Switches that are passed on as flags of run_squad.py.
EXTRAS = ("CONTINUE_WITH_CHANGES", "RECOMPUTE")


def launch(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tuning, prediction and scores; returns the ranks' exit code."""
    values = parse_arguments(ARGUMENTS, typed)
    num_ranks = values["num_gpus"]
    global_batch_size = values["batch_size_per_gpu"] * num_ranks
    name = f"tf_bert_finetuning_squad_{values['bert_model']}_{values['precision']}_gbs{global_batch_size}"
    folder = environment.path("RESULTS_DIR", CHECKOUT / "results" / name)
    squad_dir = find_squad_dir(values, environment)
    show(describe_arguments(ARGUMENTS, typed))
    show(
        [
            f"global_batch_size = {global_batch_size}",
            f"effective_learning_rate = {values['learning_rate_per_gpu'] * num_ranks:g}",
            f"device = {environment.describe_device(num_ranks)}",
            f"squad_dir = {shown(squad_dir)}",
            f"results_dir = {shown(folder)}",
        ]
    )
    environment.check_num_gpus(num_ranks)

    def prepare():
        flags = squad_flags(values, squad_dir, folder, environment)
        launcher = launchers.choose_launcher(num_ranks, environment.environ)
        show([f"launcher = {launcher}"])
        return flags, launcher

    if environment.is_dry_run:
        return end_dry_run(prepare)
    check_tensorflow()
    flags, launcher = prepare()
    command = program_command("run_squad.py", flags, environment.extra_flags(EXTRAS))
    code = run_program("SQuAD", command, num_ranks, launcher, environment, folder / "squad" / "logs")
    if code == 0:
        show(
            [
                f"predictions: {shown(folder / 'squad' / 'predictions.json')}",
                f"curves: {shown(folder / 'squad' / 'report.html')}",
            ]
        )
    return code


def squad_flags(values: Values, squad_dir: Path, folder: Path, environment: LaunchEnvironment) -> dict[str, Any]:
    """The program's flags.

    Raises:
      UserError: a file is missing, or the checkpoint is not the model that was asked for.
    """
    return {
        "train_file": find_questions("train", values, squad_dir),
        "predict_file": find_questions("dev", values, squad_dir),
        **initial_weights(values, ARGUMENTS, folder, environment),
        "mode": "train_and_predict",
        "train_batch_size": values["batch_size_per_gpu"],
        "predict_batch_size": values["batch_size_per_gpu"],
        "learning_rate": values["learning_rate_per_gpu"],
        "num_train_epochs": values["epochs"],
        **prediction_flags(values, folder / "squad"),
    }


def prediction_flags(values: Values, model_dir: Path) -> dict[str, Any]:
    """The flags that fine-tuning and predicting alone have in common."""
    return {
        "model_dir": model_dir,
        "max_seq_length": values["seq_length"],
        "doc_stride": values["doc_stride"],
        "version_2_with_negative": "true" if values["squad_version"] == "2.0" else "false",
        "precision": values["precision"],
        "enable_xla": values["use_xla"],
        "dllog_path": model_dir / "dllogger.json",
    }


def find_squad_dir(values: Values, environment: LaunchEnvironment) -> Path:
    default = environment.data_dir / "download" / "squad" / f"v{values['squad_version']}"
    return environment.path("SQUAD_DIR", default)


def find_questions(split: str, values: Values, squad_dir: Path) -> Path:
    """SQuAD's file of a split; raises `UserError` where it is missing."""
    file = squad_dir / f"{split}-v{values['squad_version']}.json"
    check_file(
        file,
        "download it with data/bertPrep.py --action download --dataset squad, or set SQUAD_DIR to the folder "
        "that holds it",
    )
    return file


def launch_inference(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Prediction, and scores where the file holds answers; returns the program's exit code."""
    values = parse_arguments(INFERENCE_ARGUMENTS, typed)
    name = f"tf_bert_squad_inference_{values['bert_model']}_{values['precision']}_bs{values['batch_size']}"
    folder = environment.path("RESULTS_DIR", CHECKOUT / "results" / name)
    squad_dir = find_squad_dir(values, environment)
    show(
        [
            *describe_arguments(INFERENCE_ARGUMENTS, typed),
            f"device = {environment.describe_device(1)}",
            f"squad_dir = {shown(squad_dir)}",
            f"results_dir = {shown(folder)}",
        ]
    )

    def prepare() -> dict[str, Any]:
        return {
            "mode": "predict",
            "init_checkpoint": check_model(values, INFERENCE_ARGUMENTS),
            "predict_file": find_questions("dev", values, squad_dir),
            "predict_batch_size": values["batch_size"],
            **prediction_flags(values, folder),
        }

    if environment.is_dry_run:
        return end_dry_run(prepare)
    check_tensorflow()
    command = program_command("run_squad.py", prepare(), environment.extra_flags(()))
    code = run_program("SQuAD inference", command, 1, "none", environment, folder / "logs")
    if code == 0:
        show([f"predictions: {shown(folder / 'predictions.json')}"])
    return code


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
