"""Ranks wait for each other before Horovod starts, so that one that never starts is named.

Horovod does not name it: Gloo gives up after 30 s without saying on which rank, and MPI waits for ever. So each
rank creates a file in the launcher's log folder, which all ranks share.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import MutableMapping
from pathlib import Path

from bert_tf.base.errors import LostRankError
from bert_tf.base.files import write_text

# Set by the launchers: "<rank> <number of ranks> <folder>".
VARIABLE = "BERT_TF_RENDEZVOUS"
LIMIT_SECS = 120.0
# Hosts whose clocks are further apart are told of.
MOST_SKEW_SECS = 2.0
_POLL_SECS = 0.2
_VERDICT = "missing_ranks.txt"


def arrival_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.here"


def await_ranks(environ: MutableMapping[str, str] = os.environ) -> None:
    """Returns when all ranks of this job have called it.

    Without our launchers there is no such folder; then Horovod is told to give up on a rank that does not answer
    for `LIMIT_SECS`. It lists such ranks in the log of rank 0.

    Raises:
      LostRankError: some did not start in time. All others raise the same.
    """
    if VARIABLE not in environ:
        environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", f"{LIMIT_SECS:.0f}")
        return
    rank, num_ranks, folder = environ[VARIABLE].split(" ", 2)
    missing = set(range(int(num_ranks)))
    verdict, until = Path(folder) / _VERDICT, time.monotonic() + LIMIT_SECS
    arrival_file(Path(folder), int(rank)).touch()
    while True:
        # One listing: thousands of ranks that ask for every file by its name keep a shared file system busy.
        here = set(os.listdir(folder))
        missing = {number for number in missing if arrival_file(Path(folder), number).name not in here}
        with contextlib.suppress(FileNotFoundError):
            raise LostRankError(verdict.read_text(encoding="utf-8"))
        if not missing:
            return
        if time.monotonic() > until:
            write_text(
                verdict,
                f"rank {', '.join(map(str, sorted(missing)))} of {num_ranks} has not started within {LIMIT_SECS:.0f} s "
                f"after rank {rank}; rank_<number>.log in {folder} may say why. Nothing is lost: the same command "
                "starts again",
            )
        time.sleep(_POLL_SECS)
