"""Pre-training with Adam in one phase: thirteen arguments, NVIDIA's recipe of 1,144,000 updates."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.base.errors import UserError
from bert_tf.launch.arguments import arguments, parse_arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.pretraining import Phase, Recipe, check_warmup
from bert_tf.settings.programs import PRETRAINING

ARGUMENTS = arguments(
    """
    train_batch_size=16 eval_batch_size=8 learning_rate=1e-4 precision=fp16 use_xla=true num_gpus=8 warmup_steps=10000
    train_steps=1144000 save_checkpoint_steps=5000 bert_model=large num_accumulation_steps=1 seq_len=512
    max_pred_per_seq=80
    """,
    *PRETRAINING,
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
