"""GLUE: fine-tuning with twelve arguments, scoring and predicting with eight; both call run_classifier.py."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.base.errors import MissingError, UserError
from bert_tf.launch.arguments import Argument, Typed, Values, arguments
from bert_tf.launch.environment import LaunchEnvironment, show, shown
from bert_tf.launch.finetuning import DEFAULT_WEIGHTS, MODEL, SEQ_LENGTH, FinetuningCall
from bert_tf.settings.declaration import Setting
from bert_tf.tasks.glue.settings import SETTINGS
from bert_tf.tasks.glue.tasks import CUSTOM, EVAL, PREDICT, TRAIN, TextTask, find_files, find_task

_SPECIAL = {
    "bert_model": MODEL,
    "seq_length": SEQ_LENGTH,
    # Has no effect on sentences, but NVIDIA's scripts have it.
    "doc_stride": Setting("doc_stride", "int", 64, at_least=1, is_flag=False),
}
ARGUMENTS = arguments(
    f"""
    task_name=MRPC batch_size=16 learning_rate=3e-6 precision=fp16 use_xla=true num_gpus=8 seq_length=128 doc_stride=64
    bert_model=large epochs=3.0 warmup_proportion=0.1 checkpoint={DEFAULT_WEIGHTS}
    """,
    *SETTINGS,
    **_SPECIAL,
)
INFERENCE_ARGUMENTS = arguments(
    """
    task_name=MRPC checkpoint=results/tf_bert_finetuning_glue_mrpc_large_fp16_gbs128/glue batch_size=16 precision=fp16
    use_xla=true seq_length=128 doc_stride=64 bert_model=large
    """,
    *SETTINGS,
    **_SPECIAL,
)


def launch(texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tunes and scores; returns the ranks' exit code."""
    call, task = _make_call("finetuning_glue", ARGUMENTS, texts, environment)

    def prepare() -> list[Values]:
        check_files(task, (TRAIN, EVAL), call)
        return [{**_flags(call, task), "mode": "train_and_eval"}]

    results = {"scores": "eval_results.txt", "curves": "report.html"}
    return call.run(task.name, ("classifier", SETTINGS), prepare, results)


def launch_inference(texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Scores the development file and, if there is one, predicts the test file; 0, or the first bad exit code."""
    call, task = _make_call("glue_inference", INFERENCE_ARGUMENTS, texts, environment)

    def prepare() -> list[Values]:
        check_files(task, (EVAL,), call)
        to_predict = [call.data[1] / names[0] for names in task.files[PREDICT].values()]
        can_predict = all(path.is_file() for path in to_predict)
        if not can_predict:
            show([f"without {' and '.join(map(shown, to_predict))} nothing is predicted, only scored"])
        return [{**_flags(call, task), "mode": mode} for mode in (("eval", "predict") if can_predict else ("eval",))]

    return call.run(task.name, ("classifier", SETTINGS), prepare, {"scores": "eval_results.txt"})


def _make_call(
    kind: str, known: Sequence[Argument], texts: Sequence[str], environment: LaunchEnvironment
) -> tuple[FinetuningCall, TextTask]:
    typed = Typed(known, texts)
    if typed["task_name"].lower() == CUSTOM:
        raise UserError(
            f"task_name (position 1) is {typed['task_name']!r}: for files of your own, see run_classifier.py "
            f"--task_name={CUSTOM} in docs/fine_tuning.md"
        )
    task = find_task(typed["task_name"])
    data_dir = environment.path("glue_dir", environment.data_dir / "download" / "glue") / task.name
    return FinetuningCall(f"{kind}_{task.name.lower()}", typed, environment, ("data_dir", data_dir)), task


def _flags(call: FinetuningCall, task: TextTask) -> Values:
    return {**call.flags("glue"), "task_name": task.name, "data_dir": call.data[1]}


def check_files(task: TextTask, uses: Sequence[str], call: FinetuningCall) -> None:
    """Raises `UserError` if a file of the task is missing."""
    for use in uses:
        try:
            find_files(task, use, str(call.data[1]), None)
        except UserError as error:
            raise MissingError(f"{error}; GLUE_DIR names the folder with the tasks' folders") from None
