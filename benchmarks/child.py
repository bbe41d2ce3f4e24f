"""The process of a variant, which measures itself turn by turn: ``python child.py MODULE:FUNCTION``.

A line of JSON on stdin holds the settings. FUNCTION(settings) makes a function, which is called `warm_up` times (for
tracing and compiling); then a line of JSON states the versions of the imported packages, and each further line on stdin
calls the function once more and is answered with seconds, processor seconds, and the figures that it returned, if any.
This module also runs in the environments of other tools, so it needs nothing but Python.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Callable

# Names of modules -> the packages that hold them.
PACKAGES = {
    "tensorflow": "tensorflow",
    "official": "tf-models-official",
    "tensorflow_addons": "tensorflow-addons",
    "torch": "torch",
    "transformers": "transformers",
    "numpy": "numpy",
}


def cpu_secs() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def timed(call: Callable[[], Any]) -> tuple[float, float, dict[str, float]]:
    """Seconds and processor seconds of a call, and the figures that it returns, if any.

    A call that must not be timed as a whole returns its own `wall_secs` and `cpu_secs` among the figures.
    """
    wall, cpu = time.perf_counter(), cpu_secs()
    result = call()
    secs = {"wall_secs": time.perf_counter() - wall, "cpu_secs": cpu_secs() - cpu}
    figures = {**secs, **(result if isinstance(result, dict) else {})}
    return figures.pop("wall_secs"), figures.pop("cpu_secs"), figures


def versions() -> dict[str, str]:
    """The versions of the packages that this process has imported."""
    by_package = {}
    for name, package in PACKAGES.items():
        with contextlib.suppress(KeyError, metadata.PackageNotFoundError):  # `official` may belong to another package
            by_package[package] = getattr(sys.modules[name], "__version__", None) or metadata.version(package)
    return by_package


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    module, _, function = sys.argv[1].partition(":")
    settings = json.loads(sys.stdin.readline())
    call = getattr(importlib.import_module(module), function)(settings)
    for _ in range(settings["warm_up"]):
        call()
    print(json.dumps(versions()), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(timed(call)), file=answers, flush=True)


if __name__ == "__main__":
    main()
