"""SQuAD: fine-tuning with eleven arguments, predicting with eight; each is a run of run_squad.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.files import check_file
from bert_tf.config import MAX_EPOCHS, MAX_LEARNING_RATE, PRECISIONS, PRESETS
from bert_tf.launch.arguments import TEXT, Argument, one_of, parse_arguments, positive, whole
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.finetuning import Call, Flags
from bert_tf.tasks.squad.features import FeatureSettings

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
    Argument("checkpoint", "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt", TEXT),
    Argument("epochs", "1.1", positive(MAX_EPOCHS)),
)
INFERENCE_ARGUMENTS = (
    Argument("checkpoint", "results/tf_bert_finetuning_squad_large_fp16_gbs100/squad", TEXT),
    Argument("batch_size", "8", whole(1)),
    Argument("precision", "fp16", one_of(*PRECISIONS)),
    Argument("use_xla", "true", one_of("true", "false")),
    Argument("seq_length", "384", whole(8)),
    Argument("doc_stride", "128", whole(1)),
    Argument("bert_model", "large", one_of(*PRESETS)),
    Argument("squad_version", "1.1", one_of("1.1", "2.0")),
)


def launch(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tunes, predicts and scores; returns the ranks' exit code."""
    call = make_call("finetuning_squad", ARGUMENTS, typed, environment)
    results = {"predictions": "predictions.json", "curves": "report.html"}
    return call.run("SQuAD", "run_squad.py", lambda: [training_flags(call)], results)


def launch_inference(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Predicts, and scores if the file contains answers; returns the program's exit code."""
    call = make_call("squad_inference", INFERENCE_ARGUMENTS, typed, environment)

    def prepare() -> list[Flags]:
        start = {"mode": "predict", "init_checkpoint": call.checkpoint()}
        return [{**start, **prediction_flags(call, call.folder)}]

    return call.run("SQuAD", "run_squad.py", prepare, {"predictions": "predictions.json"})


def make_call(kind: str, arguments: Sequence[Argument], typed: Sequence[str], environment: LaunchEnvironment) -> Call:
    values = parse_arguments(arguments, typed)
    FeatureSettings(values["seq_length"], values["doc_stride"])  # refuses what the program would refuse
    default = environment.data_dir / "download" / "squad" / f"v{values['squad_version']}"
    data = ("squad_dir", environment.path("SQUAD_DIR", default))
    return Call(kind, arguments, typed, values, data, environment)


def training_flags(call: Call) -> Flags:
    """The program's flags for fine-tuning.

    Raises:
      UserError: a file is missing, or the checkpoint is not of the requested model.
    """
    return {
        "mode": "train_and_predict",
        "train_file": find_questions("train", call),
        **call.training_flags(),
        **prediction_flags(call, call.folder / "squad"),
    }


def prediction_flags(call: Call, model_dir: Path) -> Flags:
    """The flags that fine-tuning and mere prediction have in common."""
    return {
        "predict_file": find_questions("dev", call),
        "doc_stride": call.values["doc_stride"],
        "version_2_with_negative": "true" if call.values["squad_version"] == "2.0" else "false",
        **call.flags(model_dir),
    }


def find_questions(split: str, call: Call) -> Path:
    """SQuAD's file for a split; raises `UserError` if it is missing."""
    file = call.data[1] / f"{split}-v{call.values['squad_version']}.json"
    check_file(
        file,
        "download it with data/bertPrep.py --action download --dataset squad, or set SQUAD_DIR to the folder "
        "that holds it",
    )
    return file
