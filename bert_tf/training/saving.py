"""Saves while the updates go on: the state is copied to the host, and a thread writes the copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bert_tf.run.checkpoint import CheckpointFolder, SaveError
from bert_tf.run.telemetry import Telemetry
from bert_tf.training.state import TrainState


class BackgroundWriter:
    """Writes checkpoints, one at a time. However its context is left, the one that is being written is completed.

    Args:
      telemetry: is told of each checkpoint, and of each that could not be written.
      after_save: called after each checkpoint, in the thread.
    """

    def __init__(self, checkpoints: CheckpointFolder, telemetry: Telemetry, after_save: Callable[[], None]):
        self._checkpoints, self._telemetry, self._after_save = checkpoints, telemetry, after_save
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._newest: Future[None] | None = None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def save(self, state: TrainState, identity: Mapping[str, Any], *, is_last: bool) -> None:
        """Copies the state, and has it written; waits for that only if it `is_last`.

        Raises:
          SaveError: the last checkpoint could not be written. Of others that is a warning.
        """
        started = time.monotonic()
        self.wait()  # for the previous checkpoint, so that there are never two copies
        snapshot = state.copy(self._checkpoints, identity)
        copied_secs = time.monotonic() - started

        def write() -> None:
            began = time.monotonic()
            try:
                path = self._checkpoints.write(snapshot)
            except SaveError as error:
                if is_last:
                    raise
                self._telemetry.warning(str(error))
                return
            write_secs = time.monotonic() - began
            waited_secs = copied_secs + write_secs if is_last else copied_secs
            self._telemetry.checkpoint(snapshot.update, path, waited_secs, write_secs)
            self._after_save()

        self._newest = self._thread.submit(write)
        if is_last:
            self.wait()

    def wait(self) -> None:
        """Until nothing is being written; raises what the thread raised."""
        if self._newest:
            self._newest.result()
            self._newest = None
