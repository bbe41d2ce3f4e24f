"""SQuAD: fine-tuning with eleven arguments, predicting with eight; each is a run of run_squad.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.files import check_file
from bert_tf.launch.arguments import Argument, Typed, Values, arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.finetuning import DEFAULT_WEIGHTS, MODEL, SEQ_LENGTH, FinetuningCall
from bert_tf.settings.declaration import Setting
from bert_tf.tasks.squad.settings import SETTINGS, FeatureSettings

_SPECIAL = {
    "bert_model": MODEL,
    "seq_length": SEQ_LENGTH,
    "squad_version": Setting("squad_version", "str", "1.1", choices=("1.1", "2.0"), is_flag=False),
}
ARGUMENTS = arguments(
    f"""
    batch_size_per_gpu=10 learning_rate_per_gpu=5e-6 precision=fp16 use_xla=true num_gpus=10 seq_length=384
    doc_stride=128 bert_model=large squad_version=1.1 checkpoint={DEFAULT_WEIGHTS} epochs=1.1
    """,
    *SETTINGS,
    **_SPECIAL,
)
INFERENCE_ARGUMENTS = arguments(
    """
    checkpoint=results/tf_bert_finetuning_squad_large_fp16_gbs100/squad batch_size=8 precision=fp16 use_xla=true
    seq_length=384 doc_stride=128 bert_model=large squad_version=1.1
    """,
    *SETTINGS,
    **_SPECIAL,
)


def launch(texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tunes, predicts and scores; returns the ranks' exit code."""
    call = make_call("finetuning_squad", ARGUMENTS, texts, environment)
    results = {"predictions": "predictions.json", "curves": "report.html"}
    return call.run("SQuAD", ("squad", SETTINGS), lambda: [program_flags(call)], results)


def launch_inference(texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Predicts, and scores if the file contains answers; returns the program's exit code."""
    call = make_call("squad_inference", INFERENCE_ARGUMENTS, texts, environment)
    return call.run("SQuAD", ("squad", SETTINGS), lambda: [program_flags(call)], {"predictions": "predictions.json"})


def make_call(
    kind: str, known: Sequence[Argument], texts: Sequence[str], environment: LaunchEnvironment
) -> FinetuningCall:
    typed = Typed(known, texts)
    FeatureSettings(typed["seq_length"], typed["doc_stride"])  # refuses what the program would refuse
    default = environment.data_dir / "download" / "squad" / f"v{typed['squad_version']}"
    return FinetuningCall(kind, typed, environment, ("squad_dir", environment.path("squad_dir", default)))


def program_flags(call: FinetuningCall) -> Values:
    """Raises `UserError` if a file is missing, or the checkpoint is not of the requested model."""
    training = {"mode": "train_and_predict", "train_file": find_questions("train", call)} if call.trains else {}
    return {
        **call.flags("squad"),
        "mode": "predict",
        "predict_file": find_questions("dev", call),
        "version_2_with_negative": call.typed["squad_version"] == "2.0",
        **training,
    }


def find_questions(split: str, call: FinetuningCall) -> Path:
    """SQuAD's file for a split; raises `UserError` if it is missing."""
    file = call.data[1] / f"{split}-v{call.typed['squad_version']}.json"
    check_file(
        file,
        "download it with data/bertPrep.py --action download --dataset squad, or set SQUAD_DIR to the folder "
        "that holds it",
    )
    return file
