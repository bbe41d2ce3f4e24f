"""Ranks wait for each other before Horovod starts, so that a rank that never starts can be named.

Horovod does not name it: Gloo gives up after 30 s without saying which rank is missing, and MPI waits forever. So each
rank creates a file in the launcher's log folder, which all ranks share.
"""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from pathlib import Path

from bert_tf.base.errors import LostRankError

# Variable that the launchers set: "<rank> <number of ranks> <log folder>".
VARIABLE = "BERT_TF_RENDEZVOUS"
LIMIT_SECS = 120.0
_POLL_SECS = 0.2


def arrival_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.here"


def await_ranks(environ: MutableMapping[str, str] = os.environ) -> None:
    """Returns once all ranks of this job have called it.

    Without our launchers there is no such folder. Then Horovod is told to give up after `LIMIT_SECS` on ranks that do
    not answer; it lists them in the log of rank 0.

    Raises:
      LostRankError: some ranks did not start in time. (The launcher then ends those that come later.)
    """
    if VARIABLE not in environ:
        environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", f"{LIMIT_SECS:.0f}")
        return
    rank, num_ranks, name = environ[VARIABLE].split(" ", 2)
    folder, missing, until = Path(name), set(range(int(num_ranks))), time.monotonic() + LIMIT_SECS
    arrival_file(folder, int(rank)).touch()
    while True:
        # A single listing: thousands of ranks looking up every file by name would keep a shared file system busy.
        file_names = set(os.listdir(folder))
        missing = {number for number in missing if arrival_file(folder, number).name not in file_names}
        if not missing:
            return
        if time.monotonic() > until:
            raise LostRankError(
                f"rank {', '.join(map(str, sorted(missing)))} of {num_ranks} has not started within {LIMIT_SECS:.0f} s "
                f"after rank {rank}; rank_<number>.log in {folder} may say why. The same command starts again"
            )
        time.sleep(_POLL_SECS)
