import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.run.run_folder import RunFolder, describe_differences, locate_start, provenance
from tests.refusals import refused


def test_what_a_kill_left_of_a_file_is_removed(tmp_path):
    (tmp_path / "notes.tmp").write_text("mine")
    killed = "import os, sys, pathlib; from bert_tf.base.files import atomic_file\n"
    killed += "with atomic_file(pathlib.Path(sys.argv[1]) / 'report.html') as file: file.write(b'<ht'); os._exit(9)"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)])
    assert len(list(tmp_path.glob("report.html.*"))) == 1
    RunFolder(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["notes.tmp"]


def test_a_path_at_which_no_checkpoint_could_be_read_is_refused(tmp_path):
    (tmp_path / "run[1]").mkdir()
    refused("run folder .*/run.1.: TensorFlow cannot read a checkpoint .*; rename", RunFolder, tmp_path / "run[1]")
    (tmp_path / "link").symlink_to(tmp_path / "run[1]")
    RunFolder(tmp_path / "link")


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_commit_of_a_checkout_that_another_user_owns(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b"]
    for arguments in ["init"], ["commit", "--allow-empty", "-m", "c"]:
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr("bert_tf.run.run_folder.checkout", lambda: tmp_path)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert len(provenance()["commit"] or "") == 12


def test_the_command_names_the_programs_module(monkeypatch):
    """Started by run_squad.py, it would otherwise be a file in a package, which cannot be run by itself."""
    monkeypatch.setitem(sys.modules, "__main__", importlib.import_module("bert_tf.programs.squad"))
    monkeypatch.setattr(sys, "argv", ["bert_tf/programs/squad.py", "--mode=train"])
    assert provenance()["command"] == [sys.executable, "-m", "bert_tf.programs.squad", "--mode=train"]


def test_other_settings_are_refused_with_the_difference(tmp_path):
    folder = RunFolder(tmp_path)
    for command in "a", "b":
        folder.check({"seed": 1, "size": 2}, {})
        folder.write_config({"seed": 1, "size": 2}, {"command": [command]}, {"vocab.txt": "x"})
    assert (tmp_path / "vocab.txt").read_text() == "x"
    refused("other settings .seed: 1 there, 3 now.;.*--continue_with_changes", folder.check, {"seed": 3, "size": 2}, {})
    del folder  # and the lock
    folder = RunFolder(tmp_path, continue_with_changes=True)
    assert folder.check({"seed": 3, "size": 2}, {}) == "seed: 1 there, 3 now"
    folder.write_config({"seed": 3, "size": 2}, {}, {})
    assert folder.check({"seed": 3, "size": 2}, {}) == ""


def test_a_start_beside_the_run_moves_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "results")
    for typed in ("results/phase_1", tmp_path / "results/phase_1", "link/phase_1"):
        assert locate_start(typed, Path("results/phase_2")) == "../phase_1"
    assert locate_start("results/phase_1/checkpoints/ckpt-2", Path("link/phase_2")) == "../phase_1/checkpoints/ckpt-2"
    assert locate_start("google/bert_model.ckpt", Path("results/phase_2")) == f"{tmp_path}/google/bert_model.ckpt"
    assert locate_start("results2/run", Path("results/run")) == f"{tmp_path}/results2/run"


def test_a_number_that_was_rounded_otherwise_is_the_same():
    assert not describe_differences({"rate": 0.0006}, {"rate": 3 * 0.0002})
    assert describe_differences({"rate": 0.0006}, {"rate": 0.000600001}) == "rate: 0.0006 there, 0.000600001 now"


def test_other_files_are_named_with_their_hashes(tmp_path):
    """Also in a nested setting only what differs."""
    folder, model = RunFolder(tmp_path), {"layers": 2, "width": 8}

    def differs(message, identity, files):
        identity = {"model": model, "data": "a1", **identity}
        refused(f"other settings .{message}.; continue", folder.check, identity, {"data": files})

    folder.write_config({"model": model, "data": "a1"}, {"sources": {"data": "/a/train.json"}}, {})
    folder.check({"model": model, "data": "a1"}, {"data": "/moved/train.json"})
    differs("data: '/a/train.json, a1' there, '/b/train.json, b2' now", {"data": "b2"}, "/b/train.json")
    differs("data: '/a/train.json, a1' there, '/a/train.json, b2' now", {"data": "b2"}, "/a/train.json")
    differs("model: layers: 2 there, 4 now", {"model": {"layers": 4, "width": 8}}, "/a/train.json")


def test_a_folder_of_unknown_origin_and_a_file_are_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    refused("no config.json", RunFolder(tmp_path).check, {}, {})
    (tmp_path / "file").write_text("")
    message = f"^run folder {tmp_path}/file/run: {tmp_path}/file is a file, and must be"
    refused(message, RunFolder, tmp_path / "file/run")


@pytest.mark.parametrize(
    "name", ["vocab.txt", "tokenizer.json", "metrics.jsonl", "report.html", "test_results.tsv", "predictions.tsv"]
)
def test_a_folder_that_no_run_has_made_keeps_its_files(tmp_path, name):
    (tmp_path / name).write_text("mine")
    refused(f"was not made by a run, but holds {name}, which a run would overwrite; choose a new", RunFolder, tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_dllogger_s_lines_are_appended_only_to_such_a_file(tmp_path):
    log = tmp_path / "log.json"
    log.write_text('{"of": "mine"}\n')
    words = f"^--dllog_path={log} is a file that this program has not written"
    refused(words, RunFolder, tmp_path / "run", str(log))
    assert not (tmp_path / "run").exists()
    for text in ("", 'DLLL {"type": "LOG"}\n'):
        log.write_text(text)
        RunFolder(tmp_path / "run", str(log))
