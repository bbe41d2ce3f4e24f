"""SQuAD: fine-tuning with eleven arguments, predicting with eight; each is one run of run_squad.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.files import check_file
from bert_tf.config import MAX_EPOCHS, MAX_LEARNING_RATE, PRECISIONS, PRESETS
from bert_tf.launch.arguments import Argument, Values, one_of, parse_arguments, positive, text, whole
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.finetuning import Call, Flags, check_model, initial_weights

ARGUMENTS = (
    Argument("batch_size_per_gpu", "10", whole(1)),
    Argument("learning_rate_per_gpu", "5e-6", positive(MAX_LEARNING_RATE)),
    Argument("precision", "fp16", one_of(*PRECISIONS)),
    Argument("use_xla", "true", one_of("true", "false")),
    Argument("num_gpus", "10", whole(1)),
    Argument("seq_length", "384", whole(8)),
    Argument("doc_stride", "128", whole(1)),
    Argument("bert_model", "large", one_of(*PRESETS)),
    Argument("squad_version", "1.1", one_of("1.1", "2.0")),
    Argument("checkpoint", "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt", text),
    Argument("epochs", "1.1", positive(MAX_EPOCHS)),
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


def launch(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tuning, prediction and scores; returns the ranks' exit code."""
    values = parse_arguments(ARGUMENTS, typed)
    squad_dir = find_squad_dir(values, environment)
    call = Call("finetuning_squad", ARGUMENTS, typed, values, ("squad_dir", squad_dir), environment)
    results = {"predictions": "predictions.json", "curves": "report.html"}
    return call.run(
        "SQuAD", "run_squad.py", lambda: [squad_flags(values, squad_dir, call.folder, environment)], results
    )


def launch_inference(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Prediction, and scores where the file holds answers; returns the program's exit code."""
    values = parse_arguments(INFERENCE_ARGUMENTS, typed)
    squad_dir = find_squad_dir(values, environment)
    call = Call("squad_inference", INFERENCE_ARGUMENTS, typed, values, ("squad_dir", squad_dir), environment)

    def prepare() -> list[Flags]:
        flags = {
            "mode": "predict",
            "init_checkpoint": check_model(values, INFERENCE_ARGUMENTS),
            "predict_file": find_questions("dev", values, squad_dir),
            "predict_batch_size": values["batch_size"],
            **prediction_flags(values, call.folder),
        }
        return [flags]

    return call.run("SQuAD", "run_squad.py", prepare, {"predictions": "predictions.json"})


def squad_flags(values: Values, squad_dir: Path, folder: Path, environment: LaunchEnvironment) -> Flags:
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


def prediction_flags(values: Values, model_dir: Path) -> Flags:
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
