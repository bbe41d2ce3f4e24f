"""What is asked before anything is measured: the doctor, and the tests of what a GPU computes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
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

    def run(self, limit_secs: float, log: Path, environment: dict[str, str]) -> dict[str, Any]:
        """What was found; {"failed": reason} if the program itself failed."""
        with tempfile.TemporaryDirectory() as folder, open(log, "w+", encoding="utf-8") as output:
            counts = Path(folder) / "tests.xml"
            command = ["-m", "bert_tf.doctor"]
            if self.marks:
                command = ["-m", "pytest", "-q", "-m", self.marks, f"--junitxml={counts}", "tests"]
            try:
                code = subprocess.run(
                    [sys.executable, *command],
                    cwd=checkout(),
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    timeout=limit_secs,
                ).returncode
            except subprocess.TimeoutExpired:
                return {"failed": f"not done within {limit_secs / 60:.1f} minutes", "timed_out": True}
            output.seek(0)
            said = output.read().replace(str(checkout()), ".").replace(str(Path.home()), "~").splitlines()
            if not self.marks:
                return {"said": said}
            if not counts.exists():
                return {"failed": f"exit code {code}: {(said or ['nothing was said'])[-1][:300]}"}
            return read_counts(counts)


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
