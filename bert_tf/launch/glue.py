"""GLUE: fine-tuning with twelve arguments, scoring and predicting with eight; both call run_classifier.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import MissingError, UserError
from bert_tf.config import MAX_EPOCHS, MAX_LEARNING_RATE, PRECISIONS, PRESETS
from bert_tf.launch.arguments import SHARE, TEXT, Argument, one_of, parse_arguments, positive, whole
from bert_tf.launch.environment import LaunchEnvironment, show, shown
from bert_tf.launch.finetuning import Call, Flags
from bert_tf.tasks.glue.records import QUOTINGS
from bert_tf.tasks.glue.tasks import CUSTOM, EVAL, PREDICT, TRAIN, TextTask, find_files, find_task

ARGUMENTS = (
    Argument("task_name", "MRPC", TEXT),
    Argument("batch_size", "16", whole(1)),
    Argument("learning_rate", "3e-6", positive(MAX_LEARNING_RATE)),
    Argument("precision", "fp16", one_of(*PRECISIONS)),
    Argument("use_xla", "true", one_of("true", "false")),
    Argument("num_gpus", "8", whole(1)),
    Argument("seq_length", "128", whole(8)),
    Argument("doc_stride", "64", whole(1)),  # has no effect on sentences, but NVIDIA's script has it
    Argument("bert_model", "large", one_of(*PRESETS)),
    Argument("epochs", "3.0", positive(MAX_EPOCHS)),
    Argument("warmup_proportion", "0.1", SHARE),
    Argument("checkpoint", "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt", TEXT),
)
INFERENCE_ARGUMENTS = (
    Argument("task_name", "MRPC", TEXT),
    Argument("checkpoint", "results/tf_bert_finetuning_glue_mrpc_large_fp16_gbs128/glue", TEXT),
    Argument("batch_size", "16", whole(1)),
    Argument("precision", "fp16", one_of(*PRECISIONS)),
    Argument("use_xla", "true", one_of("true", "false")),
    Argument("seq_length", "128", whole(8)),
    Argument("doc_stride", "64", whole(1)),
    Argument("bert_model", "large", one_of(*PRESETS)),
)


def launch(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tunes and scores; returns the ranks' exit code."""
    call, task = _make_call("finetuning_glue", ARGUMENTS, typed, environment)

    def prepare() -> list[Flags]:
        check_files(task, (TRAIN, EVAL), call)
        flags = {
            "mode": "train_and_eval",
            "warmup_proportion": call.values["warmup_proportion"],
            **call.training_flags(),
            **_task_flags(task, call, call.folder / "glue"),
        }
        return [flags]

    results = {"scores": "eval_results.txt", "curves": "report.html"}
    return call.run(task.name, "run_classifier.py", prepare, results)


def launch_inference(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Scores the development file and, if there is one, predicts the test file; 0, or the first bad exit code."""
    call, task = _make_call("glue_inference", INFERENCE_ARGUMENTS, typed, environment)

    def prepare() -> list[Flags]:
        check_files(task, (EVAL,), call)
        flags = {"init_checkpoint": call.checkpoint(), **_task_flags(task, call, call.folder)}
        to_predict = [call.data[1] / names[0] for names in task.files[PREDICT].values()]
        can_predict = all(path.is_file() for path in to_predict)
        if not can_predict:
            show([f"without {' and '.join(map(shown, to_predict))} nothing is predicted, only scored"])
        return [{"mode": mode, **flags} for mode in (("eval", "predict") if can_predict else ("eval",))]

    return call.run(task.name, "run_classifier.py", prepare, {"scores": "eval_results.txt"})


def _make_call(
    kind: str, arguments: Sequence[Argument], typed: Sequence[str], environment: LaunchEnvironment
) -> tuple[Call, TextTask]:
    values = parse_arguments(arguments, typed)
    if values["task_name"].lower() == CUSTOM:
        raise UserError(
            f"task_name (position 1) is {values['task_name']!r}: for files of your own, see run_classifier.py "
            f"--task_name={CUSTOM} in docs/fine_tuning.md"
        )
    task = find_task(values["task_name"])
    data_dir = environment.path("GLUE_DIR", environment.data_dir / "download" / "glue") / task.name
    name = f"{kind}_{task.name.lower()}"
    return Call(name, arguments, typed, values, ("data_dir", data_dir), environment), task


def _task_flags(task: TextTask, call: Call, model_dir: Path) -> Flags:
    quoting = call.environment.environ.get("QUOTING")
    if quoting and quoting not in QUOTINGS:
        raise UserError(f"QUOTING={quoting}: must be {' or '.join(QUOTINGS)}")
    flags = {"task_name": task.name, "data_dir": call.data[1], **call.flags(model_dir)}
    return {**flags, "quoting": quoting} if quoting else flags


def check_files(task: TextTask, uses: Sequence[str], call: Call) -> None:
    """Raises `UserError` if a file of the task is missing."""
    for use in uses:
        try:
            find_files(task, use, str(call.data[1]), None)
        except UserError as error:
            raise MissingError(f"{error}; GLUE_DIR names the folder with the tasks' folders") from None
