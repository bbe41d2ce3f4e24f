"""Where telemetry goes besides metrics.jsonl: the console, DLLogger's file and TensorBoard.

A failed write raises OSError or a TensorFlow error; `telemetry` handles it.
"""

from __future__ import annotations

import datetime
import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bert_tf.base.progress import Progress
from bert_tf.base.tensorflow import tf
from bert_tf.run.events import append_line


class Console(Progress):
    """Shows a training's progress as a bar or as lines; nothing without a `phase`."""

    bar = "{desc} {n_fmt}/{total_fmt} ETA {remaining}{postfix} |{bar}|"
    line = "{desc}"  # made by `train`

    def __init__(self, total_updates: int, phase: str = "", update: int = 0):
        super().__init__(total=total_updates, initial=update, description=phase, smoothing=0.1, disable=not phase)

    def begin(self, update: int) -> None:
        """Measures the time left from here on: after the first update, which includes compilation."""
        if not self.disable:
            self.n = self.initial = update
            self.unpause()
            if not self.is_plain:
                self.show()

    def train(self, update: int, metrics: dict[str, Any]) -> None:
        is_first = self.n == self.initial
        if self.is_plain:
            texts, secs = _format_metrics(metrics, 2), metrics.get("update_secs")
            has_time_left = secs and update < self.total and not is_first  # whose time includes compilation
            left = f", {tqdm.format_interval(secs * (self.total - update))} left" if has_time_left else ""
            self.set_description_str(f"update {update:,} of {self.total:,}: {', '.join(texts)}{left}", refresh=False)
        self.update(update - self.n, " ".join(_format_metrics(metrics, 1)))
        if is_first or self.n >= self.total or not self.is_plain:
            self.show()


# The metrics that the console shows: name, short form for the bar, long form for lines.
_SHOWN: tuple[tuple[str, str, str], ...] = (
    ("total_loss", "loss {:.3f}", "loss {:.4f}"),
    ("mlm_accuracy", "mlm {:.3f}", "MLM accuracy {:.3f}"),
    ("nsp_accuracy", "nsp {:.3f}", "NSP accuracy {:.3f}"),
    ("learning_rate", "lr {:.2e}", "learning rate {:.3e}"),
    ("throughput_train", "{:,.1f} seq/s", "{:,.1f} sequences/s"),
    ("tokens_per_sec", "{:,.0f} tok/s", "{:,.0f} tokens/s"),
    ("model_tflops", "{:,.3g} TFLOP/s", "{:,.3g} TFLOP/s"),
    ("mfu", "MFU {:.1%}", "MFU {:.1%}"),
)


def _format_metrics(metrics: dict[str, Any], form: int) -> Iterator[str]:
    """The metrics of `_SHOWN` as texts, in the short form (1) or the long form (2)."""
    for row in _SHOWN:
        name, text, value = row[0], row[form], metrics.get(row[0])
        if isinstance(value, (int, float)):
            if name == "model_tflops" and abs(value) < 0.1:
                value, text = 1000 * value, text.replace("TFLOP", "GFLOP")
            yield text.format(value)


class DLLogger:
    """Writes the lines of DLLogger's JSON backend: ``DLLL {"type": "LOG", "step": ..., ...}``."""

    def __init__(self, path: str | Path):
        self._path = Path(path)
        self._started_at = time.monotonic()

    def log(self, step: str | list[int], data: dict[str, Any]) -> None:
        """`step` is [update], [] for the final results, or "PARAMETER"."""
        now = datetime.datetime.now()
        line = {
            "timestamp": str(now.timestamp()),
            "datetime": str(now),
            "elapsedtime": str(time.monotonic() - self._started_at),
            "type": "LOG",
            "step": step,
            "data": data,
        }
        # NaN is written as a number, as DLLogger does, because its readers compute with it.
        append_line(self._path, f"DLLL {json.dumps(line)}")


class TensorBoard:
    """Writes the numbers among the metrics as scalars, in a subfolder of `folder` for each split: train and eval."""

    def __init__(self, folder: Path):
        self._writer = functools.cache(lambda split: tf.summary.create_file_writer(str(folder / split)))

    def write(self, split: str, update: int, metrics: dict[str, Any]) -> None:
        writer = self._writer(split)
        # Pinned to the host: a summary must not wait for a device or use its memory. NumPy numbers, because what
        # TensorFlow makes of a Python number stays in memory for the life of the process.
        with writer.as_default(step=np.int64(update)), tf.device("CPU:0"):
            for name, value in metrics.items():
                if isinstance(value, (int, float)):
                    tf.summary.scalar(name, np.float32(value))
        writer.flush()
