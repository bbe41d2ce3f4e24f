"""Progress where stderr is no terminal; the bar at a terminal is in test_telemetry.py."""

import os
import subprocess
import sys
import time

import pytest

from bert_tf.base import progress
from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from tests.processes import ROOT


def test_an_iterable_ends_with_one_line(capsys):
    assert list(Progress([1, 2, 3], unit="files", description="reading")) == [1, 2, 3]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reading: 3 of 3 files, ") and line.endswith(" files/s, 0 s left")


def test_work_by_hand_counts_from_what_was_done_before(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_LINE_INTERVAL_SECS", 0.0)
    with Progress(total=4_168_810, initial=1_000_000, unit="B", description="download") as bar:
        bar.update(1_084_405, "7 documents")
    (line,) = capsys.readouterr().err.splitlines()  # which is not said again at the end
    assert line.startswith("download: 2.08M of 4.17MB, ") and "B/s, " in line and line.endswith(" s left, 7 documents")


def test_a_clock_that_stands_still_and_more_work_than_announced(capsys, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 7.0)
    with Progress(total=2, unit="files", description="reading") as bar:
        bar._time = lambda: bar.start_t
        bar.update(3)
    assert "reading: 3 of 3 files, " in capsys.readouterr().err


def test_a_clock_set_back_by_an_hour_neither_stops_the_lines_nor_changes_the_rate(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_LINE_INTERVAL_SECS", 0.01)
    of_day, set_back = time.time, []
    monkeypatch.setattr("tqdm.std.time", lambda: of_day() - sum(set_back))
    with Progress(total=2, unit="files", description="reading") as bar:
        for _ in range(2):
            time.sleep(0.02)
            set_back.append(3600)
            bar.update()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("reading: 1 of 2 files, ")
    assert 1 < float(second.split(", ")[1].removesuffix(" files/s")) <= 100


def test_disabled_it_prints_nothing(capsys):
    assert list(Progress("ab", unit="letters", description="reading", disable=True)) == ["a", "b"]
    assert capsys.readouterr() == ("", "")


def test_a_name_from_a_file_cannot_command_the_terminal(capsys):
    """In a message or an error: colours, a title, a line that is written over another, ended by \\x9c."""
    name, shown = "a\x1b]0;title\x07\r\x1b[2Kb\x9c\tc", r"a\x1b]0;title\x07\r\x1b[2Kb\x9c" + "\tc"
    progress.print_beside_bars(f"warning: {name}\nand more")
    assert capsys.readouterr().err == f"warning: {shown}\nand more\n"
    assert str(UserError(f"{name}\n{UserError(name)}")) == rf"{shown}\n{shown}"


PRINTING = """
import sys
from bert_tf.base.progress import print_beside_bars
print_beside_bars("one", sys.stdout)
print_beside_bars("two")
sys.exit(75)
"""


@pytest.mark.parametrize("output", ["a full disk", "a closed pipe"])
def test_an_output_that_takes_nothing_changes_no_exit_code(output):
    """What could not be printed is not tried again at the end, where Python would fail, with code 120."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe, open("/dev/full", "wb") as full:
        file, command = full if output == "a full disk" else pipe, [sys.executable, "-c", PRINTING]
        environ = {**os.environ, "PYTHONUNBUFFERED": ""}
        assert subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, env=environ, timeout=60).returncode == 75
