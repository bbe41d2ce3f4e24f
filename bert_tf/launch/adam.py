"""Pre-training with Adam in one phase: thirteen arguments, NVIDIA's recipe of 1,144,000 updates."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.base.errors import UserError
from bert_tf.config import MAX_LEARNING_RATE, PRECISIONS, PRESETS
from bert_tf.launch.arguments import Argument, one_of, parse_arguments, positive, whole
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.pretraining import Phase, Recipe, check_warmup

ARGUMENTS = (
    Argument("train_batch_size", "16", whole(1)),
    Argument("eval_batch_size", "8", whole(1)),
    Argument("learning_rate", "1e-4", positive(MAX_LEARNING_RATE)),
    Argument("precision", "fp16", one_of(*PRECISIONS)),
    Argument("use_xla", "true", one_of("true", "false")),
    Argument("num_gpus", "8", whole(1)),
    Argument("warmup_steps", "10000", whole(0)),
    Argument("train_steps", "1144000", whole(1)),
    Argument("save_checkpoint_steps", "5000", whole(1)),
    Argument("bert_model", "large", one_of(*PRESETS)),
    Argument("num_accumulation_steps", "1", whole(1)),
    Argument("seq_len", "512", whole(8)),
    Argument("max_pred_per_seq", "80", whole(1)),
)


def launch(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Runs the phase; returns the ranks' exit code."""
    values = parse_arguments(ARGUMENTS, typed)
    if values["max_pred_per_seq"] > values["seq_len"]:
        raise UserError(
            f"max_pred_per_seq (position 13) is {values['max_pred_per_seq']}: must be at most seq_len, "
            f"{values['seq_len']}"
        )
    phase = Phase(
        "pretraining",
        values["seq_len"],
        values["max_pred_per_seq"],
        values["train_batch_size"],
        values["num_accumulation_steps"],
        values["num_gpus"],
        values["learning_rate"],
        values["warmup_steps"],
        values["train_steps"],
    )
    check_warmup(phase, "warmup_steps (position 7)")
    return Recipe("adam", "adamw", ARGUMENTS, typed, values, [phase]).launch(environment)
