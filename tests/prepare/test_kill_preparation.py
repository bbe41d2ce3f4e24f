"""The script that kills every stage finds no difference, and would find one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.preparation import documents

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.long  # each stage's kill: test_bertprep
def test_killed_stages_end_with_the_bytes_of_undisturbed_ones(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(documents(60, words=200)))
    done = subprocess.run(
        [sys.executable, *"-m benchmarks kill_preparation --kills 1 --n_processes 1 --corpus".split(), str(corpus)],
        text=True,
        capture_output=True,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.endswith(" | 0 |")]
    assert len(rows) == 7
    kills = [sum(map(int, row.split("|")[3:6])) for row in rows]
    assert kills == [1] * 7
