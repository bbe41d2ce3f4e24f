"""What is asked before anything is measured: the doctor, and the tests of what a GPU computes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bert_tf.base.files import checkout


@dataclasses.dataclass(frozen=True)
class Check:
    """A program that answers yes or no. Its dictionary identifies its line in rows.jsonl, as that of a `Row`."""

    part: str  # of the report
    title: str
    marks: str = ""  # of the tests; without any it is the doctor

    def run(self, limit_secs: float, log: Path, rehearse: bool) -> dict[str, Any]:
        """What was found; {"failed": reason} if the program itself failed."""
        with tempfile.TemporaryDirectory() as folder:
            counts = Path(folder) / "tests.xml"
            arguments = ["-m", "bert_tf.doctor"]
            if self.marks:
                arguments = ["-m", "pytest", "-q", "-m", self.marks, f"--junitxml={counts}", "tests"]
            code, text = run_program(arguments, limit_secs, log, rehearse)
            if code is None:
                return timed_out(limit_secs)
            if counts.exists():
                return read_counts(counts)
        said = text.replace(str(checkout()), ".").replace(str(Path.home()), "~").splitlines()
        if self.marks:
            return {"failed": f"exit code {code}: {(said or ['nothing was said'])[-1][:300]}"}
        return {"said": said}


def run_program(arguments: Sequence[str], limit_secs: float, log: Path, rehearse: bool) -> tuple[int | None, str]:
    """Runs this Python in the checkout. Its errors go to `log`, and what it printed, too.

    Returns: the exit code, None where the time was over, and what it printed.
    """
    # Without growth a process would take all of the GPU's memory from those that it starts.
    chosen = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if rehearse:
        # On a CPU only oneDNN's allocator counts memory, and TensorFlow disables oneDNN on some CPUs.
        chosen = {"CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "1"}
    with open(log, "w", encoding="utf-8") as errors:
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=checkout(),
                env={**os.environ, **chosen},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=limit_secs,
            )
        except subprocess.TimeoutExpired:
            return None, ""
        errors.write(done.stdout)
    return done.returncode, done.stdout


def timed_out(limit_secs: float) -> dict[str, Any]:
    return {"failed": f"not done within {limit_secs / 60:.1f} minutes", "timed_out": True}


def read_counts(file: Path) -> dict[str, Any]:
    """How many tests passed, were skipped and failed, and of those that failed the names and first lines."""
    cases = ElementTree.parse(file).getroot().iter("testcase")
    found: dict[str, Any] = {"passed": 0, "skipped": {}, "wrong": {}}
    for case in cases:
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        told = {kind: each for kind in ("failure", "error", "skipped") if (each := case.find(kind)) is not None}
        if not told:
            found["passed"] += 1
            continue
        kind, each = next(iter(told.items()))
        message = each.get("message", "").partition("\n")[0][:300]
        found["skipped" if kind == "skipped" else "wrong"][name] = message
    return found
