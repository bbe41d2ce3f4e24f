"""What a running training prints and records: console, metrics.jsonl, TensorBoard, DLLogger.

All sinks carry the same numbers under the same names (NVIDIA's, if it has one). Only the chief
rank writes. A sink that cannot be written, for instance on a full disk, is reported once and does not
stop the training: the weights are worth more than the log.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError, first_line
from bert_tf.base.files import read_json_object, write_text
from bert_tf.base.machine.hardware import memory_peak_mib
from bert_tf.base.progress import print_beside_bars
from bert_tf.base.tensorflow import tf
from bert_tf.run.events import CONVERGED, DONE, METRICS, append_line, read_events, strict
from bert_tf.run.sinks import Console, DLLogger, TensorBoard

# NVIDIA's names for the metrics of an update -> ours.
_SAME_NAMES = ("throughput_train", "mlm_loss", "nsp_loss", "total_loss", "learning_rate", "loss_scaler")
_DLLOGGER_TRAIN_NAMES = {**dict(zip(_SAME_NAMES, _SAME_NAMES)), "avg_loss_step": "total_loss"}


def _device_peak_mib() -> float:
    """Peak memory use so far: of the first GPU if there is one, else of this process."""
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    return memory_peak_mib()


def _on_chief(method: Callable[..., None]) -> Callable[..., None]:
    """Makes a method of `Telemetry` run on the chief only, and one at a time if several threads call them."""

    @functools.wraps(method)
    def wrapped(self: Telemetry, *arguments: Any, **keywords: Any) -> None:
        if self.is_chief:
            with self._lock:
                method(self, *arguments, **keywords)

    return wrapped


class Telemetry:
    """Shows and records one training run. Metrics and fields are plain numbers and texts.

    Args:
      run_folder: gets ``metrics.jsonl`` (appended to), ``summaries/{train,eval}`` and ``training_summary.txt``.
      is_chief: true on rank 0; all other ranks stay silent and write nothing.
      dllog_path: file for NVIDIA's DLLogger lines (appended to); None for none.
    """

    def __init__(self, run_folder: str | Path, *, is_chief: bool, dllog_path: str | Path | None = None):
        self.run_folder = Path(run_folder)
        self.is_chief = is_chief
        self._lock = threading.RLock()  # checkpoints are reported from the thread that writes them
        self._console = Console(0)
        self._dllogger = DLLogger(dllog_path) if dllog_path else None
        self._tensorboard = TensorBoard(self.run_folder / "summaries")
        self._failed: list[str] = []
        self._first_update = self._last_update = 0
        self._start_fields: dict[str, Any] = {}
        self._last_train: dict[str, Any] = {}
        self._last_evaluation: dict[str, Any] = {}
        self._rates: list[tuple[int, float]] = []  # of each report: number of updates, sequences/s

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @_on_chief
    def start(
        self,
        total_updates: int,
        *,
        update: int = 0,
        resumed_from: Path | None = None,
        phase: str = "training",
        **fields: Any,
    ) -> None:
        """Starts or continues the log. `update` is the number of updates already applied.

        Further fields are recorded as they are. Some are also used: ``device``, ``num_ranks``,
        ``global_batch_size``, ``flops_per_sequence`` (for TFLOP/s) and, if it is known, ``peak_tflops``
        (of all devices together, for MFU).
        """
        self._first_update = self._last_update = update
        self._start_fields = fields
        total, source = total_updates, str(resumed_from) if resumed_from else None
        record = {"phase": phase, "update": update, "total_updates": total, "resumed_from": source, **fields}
        self._record("start", record)
        self._log("PARAMETER", record)
        self._console = Console(total, phase, update)
        ranks, size = fields["num_ranks"], fields["global_batch_size"]
        where = f"on {ranks:,} rank{'s' if ranks > 1 else ''} ({fields['device']})"
        plan = f"{total:,} updates of {size:,} sequences {where}; everything goes to {self.run_folder}"
        if source:
            left = max(total - update, 0)
            plan = f"going on from {source}: {update:,} of {total:,} updates done, {left:,} to go {where}"
        self.note(f"{phase}: {plan}")

    @_on_chief
    def first_update(self, update: int, loss: float, secs: float) -> None:
        """Says that a start has made its first update: of ten of the recipe's, the next line may be minutes away."""
        self.note(f"first update: loss {loss:.4f}, after {secs:.1f} s with compilation")
        self._console.begin(update)

    @_on_chief
    def train(self, update: int, **metrics: Any) -> None:
        """Records the state after `update` updates; names as in metrics.jsonl.

        ``throughput_train`` is global sequences/s since the last call. Adds ``memory_peak_mib``, ``model_tflops`` (all
        ranks together), and ``mfu`` if it is known.
        """
        rate = metrics["throughput_train"]
        # With packing, the instances in a row share its work.
        rows = rate / metrics.get("instances_per_row", 1.0)
        metrics["model_tflops"] = rows * self._start_fields["flops_per_sequence"] / 1e12
        if peak := self._start_fields.get("peak_tflops"):
            metrics["mfu"] = metrics["model_tflops"] / peak
        metrics["memory_peak_mib"] = round(_device_peak_mib(), 1)
        if update > self._last_update:
            self._rates.append((update - self._last_update, rate))
        self._last_update, self._last_train = update, metrics
        for_dllogger = {theirs: metrics[ours] for theirs, ours in _DLLOGGER_TRAIN_NAMES.items() if ours in metrics}
        self._publish("train", "train", update, metrics, for_dllogger)
        self._console.train(update, metrics)

    @_on_chief
    def evaluation(self, update: int, **metrics: Any) -> None:
        """Records held-out results after `update` updates (accuracies, losses, f1, ...)."""
        self._last_evaluation = metrics
        self._publish("evaluation", "eval", update, metrics, metrics)
        # The program has already printed its speed, under NVIDIA's names. Without labels there are no other metrics.
        printed = ("global_step", "latency_", "throughput_")
        figures = [f"{name} = {value:.5g}" for name, value in metrics.items() if not name.startswith(printed)]
        if line := ", ".join(figures):
            self.note(f"evaluation at update {update:,}: {line}")

    @_on_chief
    def results(self, update: int, scores: Mapping[str, float], speed: Mapping[str, float]) -> None:
        """Records the scores of the run's resulting weights, also in ``eval_results.txt``, and the inference speed."""
        if scores:
            scores = {**scores, "global_step": update}
            lines = "".join(f"{name} = {value}\n" for name, value in scores.items())
            write_text(self.run_folder / "eval_results.txt", lines)
        if scores or speed:
            self.evaluation(update, **scores, **speed)

    @_on_chief
    def checkpoint(self, update: int, path: str | Path, secs: float, write_secs: float) -> None:
        """Records that a checkpoint was written, how long the training waited for it, and how long writing took."""
        times = {"secs": round(secs, 3), "write_secs": round(write_secs, 3)}
        self._record("checkpoint", {"update": update, "path": str(path), **times})
        self.note(f"checkpoint of update {update:,} saved in {write_secs:.1f} s, training waited {secs:.1f} s: {path}")

    @_on_chief
    def warning(self, *messages: str) -> None:
        """Shows each message on stderr and records it."""
        for message in messages:
            self._record("warning", {"update": self._last_update, "message": message})
            print_beside_bars(f"warning: {message}")

    @_on_chief
    def note(self, message: str) -> None:
        """Prints a line without tearing the bar. Not recorded."""
        print_beside_bars(message, sys.stdout)

    @_on_chief
    def end(self, reason: str = DONE, *, total_secs: float = 0.0) -> None:
        """Closes the run: the last console lines, ``training_summary.txt``, the final record.

        `reason` is "done" or says why the run stopped early. `total_secs` is the time of the updates since the program
        was started this time; sequences are counted since then, too.
        """
        # The first report, which includes compilation, counts only if there is no other.
        rates = self._rates[1:] or self._rates
        average = sum(num for num, _ in rates) / sum(num / rate for num, rate in rates) if rates else None
        num_sequences = (self._last_update - self._first_update) * self._start_fields["global_batch_size"]
        times = {"total_secs": round(total_secs, 3), "num_sequences": num_sequences, "throughput_train": average}
        record = {"reason": reason, "update": self._last_update, **times}
        self.close()
        self._record("end", record)
        summary = self.run_folder / "training_summary.txt"
        if self._last_train or not self._is_of_end(summary):
            self.write(summary.name, self._write_summary, summary, record)
        final = {"throughput_train": average, "total_loss": self._last_train.get("total_loss"), **self._last_evaluation}
        self._log([], {name: value for name, value in final.items() if value is not None})
        if reason != DONE:
            self.note(f"stopped at update {self._last_update:,}: {reason}")
        # Scripts for NVIDIA's programs parse this exact wording.
        self.note(f"Total Training Time = {total_secs:0.2f} for Sequences = {num_sequences}")
        if total_secs > 0 and num_sequences:
            self.note(f"Throughput Average (sequences/sec) with overhead = {num_sequences / total_secs:0.2f}")
        if average is not None:
            self.note(f"Throughput Average (sequences/sec) = {average:0.2f}")

    def _is_of_end(self, summary: Path) -> bool:
        """Whether a summary is that of the run's end, which stays if the finished run is started again."""
        with contextlib.suppress(UserError):
            earlier = read_json_object(summary, "")
            return earlier.get("update") == self._last_update and earlier.get("reason") in (DONE, CONVERGED)
        return False

    def _write_summary(self, path: Path, record: dict[str, Any]) -> None:
        # NVIDIA's and Google's TF2 code leaves a JSON file with this name and the first two keys
        # for tools that collect results.
        # A start that only ends a run, killed or stopped behind its last update, has trained nothing itself.
        last_train = self._last_train or next(
            (event for event in reversed(read_events(self.run_folder)) if event["event"] == "train"), {}
        )
        summary = {
            "total_training_steps": record["update"],
            "train_loss": last_train.get("total_loss"),
            **record,
            "last_train_metrics": last_train,
            "eval_metrics": self._last_evaluation,
        }
        write_text(path, json.dumps(strict(summary), indent=4) + "\n")

    def close(self) -> None:
        """Closes the bar. Called by `end` and at the end of a ``with`` block."""
        self._console.close()

    def _publish(
        self, event: str, split: str, update: int, metrics: dict[str, Any], for_dllogger: dict[str, Any]
    ) -> None:
        """Sends the numbers of an update to all sinks; `split` is the subfolder for TensorBoard."""
        self._record(event, {"update": update, **metrics})
        self.write("TensorBoard", self._tensorboard.write, split, update, metrics)
        self._log([update], for_dllogger)

    def _record(self, event: str, fields: dict[str, Any]) -> None:
        record = {"event": event, "time_unix": round(time.time(), 3), **fields}
        self.write(METRICS, append_line, self.run_folder / METRICS, json.dumps(strict(record)))

    def _log(self, step: str | list[int], data: dict[str, Any]) -> None:
        if self._dllogger:
            self.write("DLLogger", self._dllogger.log, step, data)

    def write(self, target: str, write: Callable[..., None], *arguments: Any) -> None:
        """Calls write(*arguments); the first failure of a `target` is only a warning, and further ones are ignored."""
        try:
            write(*arguments)
        except (OSError, UserError, tf.errors.OpError) as error:
            if target not in self._failed:
                self._failed.append(target)
                print_beside_bars(
                    f"warning: cannot write {target} ({first_line(error)}); the training goes on, and what belongs "
                    f"there from update {self._last_update:,} on is lost until writing works again"
                )
