"""Pre-training with Adam in one phase: thirteen arguments, NVIDIA's recipe of 1,144,000 updates."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.base.errors import UserError
from bert_tf.launch.arguments import Typed, arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.pretraining import Recipe, only_phase
from bert_tf.settings.programs import PRETRAINING

ARGUMENTS = arguments(
    """
    train_batch_size=16 eval_batch_size=8 learning_rate=1e-4 precision=fp16 use_xla=true num_gpus=8 warmup_steps=10000
    train_steps=1144000 save_checkpoint_steps=5000 bert_model=large num_accumulation_steps=1 seq_len=512
    max_pred_per_seq=80
    """,
    *PRETRAINING,
)


def launch(texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Runs the phase; returns the ranks' exit code."""
    typed = Typed(ARGUMENTS, texts)
    if typed["max_pred_per_seq"] > typed["seq_len"]:
        raise UserError(
            f"{typed.title('max_pred_per_seq')} is {typed['max_pred_per_seq']}: must be at most seq_len, "
            f"{typed['seq_len']}"
        )
    phase = only_phase("pretraining", (typed["seq_len"], typed["max_pred_per_seq"]), typed)
    return Recipe("pretraining_adam", typed, environment, "adamw", [phase]).launch()
