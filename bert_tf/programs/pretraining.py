"""Pre-trains BERT: one phase, from token files or TFRecords to checkpoints. See docs/training.md."""

import sys
from pathlib import Path
from types import SimpleNamespace

from bert_tf.base.errors import UserError
from bert_tf.base.registration import load
from bert_tf.programs.tasks import define_program


def _replay(flags: SimpleNamespace) -> bool:
    """Replays an update if --replay_update asks for it; returns whether it did."""
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


main = define_program("pretraining", __doc__, _replay)

if __name__ == "__main__":
    sys.exit(main(sys.argv))
