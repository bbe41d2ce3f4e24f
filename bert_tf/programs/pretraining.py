"""Pre-trains BERT: one phase, from token files or TFRecords to checkpoints. See docs/training.md."""

from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.registration import load
from bert_tf.programs.flags import run_program
from bert_tf.programs.tasks import define_program
from bert_tf.tasks.task import settings_classes


def _replay(flags: Any) -> bool:
    """Replays an update if that is asked for."""
    if flags.replay_update is None:
        return False
    if not flags.model_dir or flags.use_horovod:
        raise UserError("--replay_update needs the run folder as --model_dir, and one process, without --use_horovod")
    replay = load("bert_tf.contrib.replay.replay:replay")
    started_from, attempts = replay(Path(flags.model_dir), flags.replay_update, flags.input_files)
    print(f"update {flags.replay_update}, made again from {started_from}")
    for attempt in attempts:
        print("\n".join(attempt.describe()))
    return True


SETTINGS = settings_classes("pretraining")
main = define_program("pretraining", SETTINGS, _replay)

if __name__ == "__main__":
    run_program(main, __doc__, *SETTINGS)
