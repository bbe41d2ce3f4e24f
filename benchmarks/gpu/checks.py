"""The checks besides the measurements: the doctor, and the tests of what a GPU computes."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.jobs import Job
from bert_tf.base.files import checkout
from bert_tf.base.machine.hardware import GIB

# In scope `step` XLA compiles a test's kernels for the GPU. Each of TensorFlow's own kernels takes a second or more at
# its first use where it has no machine code for the GPU, as in 2.15 for compute capability 9.0.
TELLING_TESTS = "step or attention"


@dataclasses.dataclass(frozen=True)
class Check:
    """A program that answers yes or no. Its fields identify its line in rows.jsonl, as those of a `Row`."""

    part: str  # of the report
    title: str
    marks: str = ""  # of the tests; without any it is the doctor
    names: str = ""  # words in the tests' names, as for pytest's -k

    @property
    def memory(self) -> float:
        """Bytes of the GPU that its process may take; the tests' models are small."""
        return 4.0 * GIB if self.marks else 0.0

    def command(self, log: Path, *_: Any) -> list[str]:
        """Tests write their counts into a file beside the log."""
        if not self.marks:
            return [sys.executable, "-m", "bert_tf.doctor"]
        counts = log.with_suffix(".xml").absolute()
        counts.unlink(missing_ok=True)
        # A file that cannot be imported here, for want of a package, does not stop the others.
        command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", "-m", self.marks]
        return [*command, "-k", self.names, f"--junitxml={counts}", "tests"]

    def outcome(self, code: int, job: Job) -> dict[str, Any]:
        """What was found; {"failed": reason} if the program itself failed."""
        counts = job.log.with_suffix(".xml")
        if counts.exists():
            return read_counts(counts)
        if self.marks:
            return {"failed": job.failure_reason(code)}
        return {"said": job.output_text().replace(str(checkout()), ".").replace(str(Path.home()), "~").splitlines()}


def read_counts(file: Path) -> dict[str, Any]:
    """How many tests passed, were skipped and failed, and of those that failed the names and first lines."""
    cases = ElementTree.parse(file).getroot().iter("testcase")
    counts: dict[str, Any] = {"passed": 0, "skipped": {}, "wrong": {}}
    for case in cases:
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        outcomes = {kind: part for kind in ("failure", "error", "skipped") if (part := case.find(kind)) is not None}
        if not outcomes:
            counts["passed"] += 1
            continue
        kind, element = next(iter(outcomes.items()))
        message = element.get("message", "").partition("\n")[0][:300]
        counts["skipped" if kind == "skipped" else "wrong"][name] = message
    return counts
