"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from bert_tf.base.errors import exit_on_user_error
from bert_tf.programs.finetuning import run_task
from bert_tf.programs.flags import define_flags, run_program
from bert_tf.tasks.squad.settings import SETTINGS

FLAGS = flags.FLAGS

define_flags(*SETTINGS)


@exit_on_user_error
def main(_: Sequence[str]) -> None:
    """Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""
    run_task("squad", FLAGS.flag_values_dict())


if __name__ == "__main__":
    run_program(main, *SETTINGS)
