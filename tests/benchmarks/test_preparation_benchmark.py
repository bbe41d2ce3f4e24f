"""The benchmark of data preparation runs; what it measures is not looked at."""

from __future__ import annotations

import bz2
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.preparation import documents

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_gives_its_table(tmp_path):
    texts = documents(20)
    (tmp_path / "text.txt").write_text("".join(text + "\n" for text in texts))
    letters = "abcdefghijklmnopqrstuvwxyz."
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *letters, *(f"##{x}" for x in letters)]))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks",
            "preparation",
            "--text",
            str(tmp_path / "text.txt"),
            "--vocab_file",
            str(tmp_path / "vocab.txt"),
            "--megabytes",
            "0.03",
            "--stage_megabytes",
            "0.05",
            "--rounds",
            "1",
            "--no_peers",
            "--results",
            str(tmp_path),
        ],
        cwd=CHECKOUT,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    titles = [line for line in done.stdout.splitlines() if line.startswith("### ")]
    assert len(titles) == 5
    assert "\n| token files, second shard | " in done.stdout


@pytest.mark.slow
def test_formatting_gives_its_table(tmp_path):
    pages = "".join(
        f"<page>\n<title>{number}</title><ns>0</ns><revision><text>{text}</text></revision>\n</page>\n"
        for number, text in enumerate(documents(5))
    )
    (tmp_path / "dump.xml.bz2").write_bytes(bz2.compress(f"<mediawiki>\n{pages}</mediawiki>\n".encode()))
    options = ["--dump", str(tmp_path / "dump.xml.bz2"), "--copies", "2", "--rounds", "1", "--no_peers"]
    command = [sys.executable, "-m", "benchmarks", "formatting", *options, "--results", str(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True, cwd=CHECKOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(line.startswith("| ") for line in done.stdout.splitlines()) == 3 + 5
