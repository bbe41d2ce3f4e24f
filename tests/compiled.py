"""The project's C++ for a test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bert_tf.base.compiled import compile_code, compiled_file


def compile_for_test(source: Path, path: Path) -> Path:
    """Compiles to `path`, or skips the test where that is not possible."""
    try:
        compile_code(source, path)
    except OSError:
        if not compiled_file(source).exists():
            pytest.skip("there is no C++ compiler")
        shutil.copy(compiled_file(source), path)  # as in a container image
    return path
