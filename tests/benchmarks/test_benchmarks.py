"""The benchmarks' frame: the list, turns and ratios, results that are not lost, pages equal to their JSON, peers."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as program
from benchmarks import frame, killing, pages, peers, probe, results, soak, squad_answers, trials
from benchmarks.pages import pictures
from bert_tf.base.errors import UserError
from tests.refusals import refused
from tests.squad_data import read_golden

ROOT = Path(__file__).resolve().parents[2]
# Modules that hold parts of others.
PARTS = set("child finished finetuning_sweeps frame results made_up killing trials __init__ __main__".split())


def bench(folder, *arguments, rounds=2):
    options = program.make_parser("x", argparse.Namespace(__doc__="x", add_options=lambda _: None)).parse_args(
        ["--results", str(folder), "--rounds", str(rounds), *arguments]
    )
    return frame.Bench("x", options, "What it measures.")


def test_every_benchmark_is_listed(capsys):
    program.main(["benchmarks"])
    said = capsys.readouterr().out
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - PARTS | {"gpu"}
    assert set(program.find_benchmarks()) == modules
    for name in modules:
        assert re.search(rf"^{name} +\S+.*\n +needs: \S", said, re.MULTILINE), name
    with pytest.raises(UserError, match="there is no benchmark 'nothing'; there are budget, "):
        program.main.__wrapped__(["benchmarks", "nothing"])


def test_too_few_updates_are_refused_before_they_are_made():
    options = program.make_parser("soak", soak).parse_args(["--updates", "6999"])
    refused("^--updates is 6999; at least 7,000", soak.run, argparse.Namespace(options=options, folder=Path("x")))


def test_questions_that_fit_into_a_window_are_chosen(tmp_path):
    examples, _ = read_golden(tmp_path)
    options = argparse.Namespace(file=tmp_path / "squad.json", model=tmp_path, num_questions=3)
    questions, mean_tokens = squad_answers.choose_questions(options)
    assert len(questions) == 3 and mean_tokens > 3
    assert {(example.question, example.context) for example in examples} > set(questions)


@pytest.mark.parametrize("arguments", [["pictures", "no_run"], ["tables", "README.md"]])
def test_pages_and_plots_are_not_made_of_what_is_no_run(arguments, monkeypatch):
    for module, function in ((pages, "write"), (pictures, "read_runs")):
        monkeypatch.setattr(module, function, lambda *_: pytest.fail("written"))
    refused("no_run: not a run folder|README.md; see --help", program.main.__wrapped__, ["benchmarks", *arguments])


def test_a_probe_reads_a_score_of_every_fine_tuning_and_refuses_one_that_it_lacks(tmp_path, monkeypatch):
    def finetune(command):
        model_dir = next(part.removeprefix("--model_dir=") for part in map(str, command) if "--model_dir=" in part)
        Path(model_dir).mkdir(exist_ok=True)
        (Path(model_dir) / "eval_results.txt").write_text("exact_match = 70.5\nf1 = 81.25\n")
        begun.append(command)

    begun, tables = [], []
    monkeypatch.setattr(probe, "run_command", finetune)
    (tmp_path / "checkpoints/ckpt-00000001").mkdir(parents=True)
    (tmp_path / "config.json").write_text('{"identity": {"global_batch_size": 8}}')
    arguments = ["--run", str(tmp_path), "--probes", str(tmp_path), "--finetune", "run_squad.py --train_file x"]
    options = program.make_parser("probe", probe).parse_args([*arguments, "--score", "f1", "--seeds", "2"])
    probe.run(argparse.Namespace(options=options, table=lambda *table: tables.append(table)))
    ((_, columns, rows),) = tables
    assert columns[2].startswith("f1, ") and len(begun) == 4
    assert [row[:2] for row in rows] == [["0", "0"], ["1", "8"]] and rows[0][2].startswith("81.25")
    options.score = "F1"
    refused(
        "--score F1: this fine-tuning has the scores exact_match, f1; name",
        probe.run,
        argparse.Namespace(options=options),
    )


def test_ratios_are_medians_of_the_rounds_and_follow_the_clock():
    theirs = [[10.0, 4.0, {}], [20.0, 4.0, {}], [90.0, 4.0, {}]]
    ours = [[5.0, 4.0, {}], [5.0, 2.0, {}], [30.0, 1.0, {}]]
    part = {"title": "t", "amount": 8.0, "unit": "MB", "clock": "wall", "variants": {"a": theirs, "b": ours}}
    assert results.ratios(part, "b") == (3.0, 2.0, 4.0) and results.ratios(part, "a") == (1.0, 1.0, 1.0)
    assert results.rates(part, "b") == (1.6, 8 / 30, 1.6)
    assert results.ratios({**part, "clock": "cpu"}, "b") == (2.0, 1.0, 4.0)
    assert "| b | 5 (5 to 30) | 2 (1 to 4) | 1.6 (0.267 to 1.6) | 3 (2 to 4) |" in results.part_lines(part)
    part = {**part, "amount": "tokens", "clock": "cpu"}  # where each turn says how much it did
    part["variants"] = {"a": [[0.0, 2.0, {"tokens": 100}]], "b": [[0.0, 2.0, {"tokens": 300}]]}
    assert results.ratios(part, "b").median == 3.0 and results.rates(part, "b").median == 150.0


def test_variants_take_turns_in_processes_and_here(tmp_path):
    (tmp_path / "made.py").write_text(
        "def make(settings):\n"
        "    calls = []\n"
        "    def call():\n"
        "        calls.append(1)\n"
        "        return {'calls': len(calls), 'pinned': len(__import__('os').sched_getaffinity(0)), **settings}\n"
        "    return call\n"
    )
    taken = []
    # A module of a test, which the child finds through its path.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with bench(tmp_path / "results", "--label", "here", "--no_peers").pinned() as own:
        kept = frame.Variant("made:make", {"x": 1}, warm_up=2, python=str(python))
        variants = {
            "kept": kept,
            "new": kept._replace(is_restarted=True),
            "left out": frame.Variant("x:y", peer="abacus"),
        }
        found = own.compare("t", {**variants, "here": lambda: taken.append(1)}, amount=1, unit="y")
    assert list(found) == ["kept", "new", "here"]
    assert [each.figures["calls"] for each in found["kept"]] == [3, 4]
    assert [each.figures["calls"] for each in found["new"]] == [3, 3]
    assert {each.figures["pinned"] for each in found["kept"]} == {1} and len(taken) == 2
    own.save()
    kept_result = json.loads((tmp_path / "results/x.here.json").read_text())
    assert kept_result["parts"][0]["variants"]["here"][0][1] == found["here"][0].cpu_secs
    assert kept_result["hardware"]["num_cores"] and kept_result["load"] and kept_result["versions"]["python"]
    assert (tmp_path / "results/x.md").read_text() == pages.result_pages(tmp_path / "results")["x"]
    assert set(os.sched_getaffinity(0)) == set(own.available), "of this process, as before"


def test_a_number_that_json_has_not_is_a_text(tmp_path):
    made = bench(tmp_path)
    made.table("x", ["loss", "spread"], [[1.5, math.nan], [math.inf, 0.25]])
    made.save()
    (result,) = results.read_all(tmp_path)["x"]
    assert result["parts"][0]["rows"] == [[1.5, "NaN"], ["Infinity", 0.25]]
    assert "| 1.5 | NaN |" in (tmp_path / "x.md").read_text()


def test_files_that_are_others_missing_or_too_many_after_a_kill_are_named():
    undisturbed = {"ckpt-28": b"a", "ckpt-36": b"b", "eval_results.txt": b"loss"}
    assert killing.differences(undisturbed, undisturbed) == []
    assert killing.differences({"ckpt-33": b"?", "ckpt-36": b"b", "eval_results.txt": b"other"}, undisturbed) == [
        "ckpt-28 is missing",
        "ckpt-33 is left over",
        "eval_results.txt is different",
    ]


def test_a_peer_that_cannot_be_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "abacus.txt").write_text("no-such-package==1.0\n")
    said = argparse.Namespace(returncode=1, stdout="Looking\nERROR: No matching distribution\n")
    monkeypatch.setattr(peers.subprocess, "run", lambda *_, **__: said)
    monkeypatch.setattr(peers, "HERE", tmp_path)
    words = (
        r"peer abacus cannot be installed from abacus.txt \(Looking / ERROR: No .*or leave peers out with --no_peers"
    )
    refused(words, bench(tmp_path).single_turn, frame.Variant("x:y", peer="abacus"))


@pytest.mark.parametrize("path", sorted(peers.HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_versions_of_peers_are_exact(path):
    for line in path.read_text().splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line), line


def test_pages_are_those_of_the_results():
    texts = pages.result_pages()
    assert {path.stem for path in results.FOLDER.glob("*.md")} == set(texts)
    for name, text in texts.items():
        page = (results.FOLDER / f"{name}.md").read_text(encoding="utf-8")
        assert page == text, f"{name}: python -m benchmarks tables"


@pytest.mark.parametrize("document", pages.TABLES)
def test_tables_of_documents_are_those_of_today(document):
    assert (ROOT / document).read_text(encoding="utf-8") == pages.renewed(document), "python -m benchmarks tables"


def test_plots_are_of_todays_figures():
    for name, digest in pictures.sources().items():
        assert digest in (pictures.IMAGES / f"{name}.svg").read_text(), "python -m benchmarks pictures"
        assert f"images/{name}.svg" in (ROOT / "docs/RESULTS.md").read_text()


def test_results_name_no_folder_of_a_machine():
    for path in results.FOLDER.glob("*.json"):
        assert not re.search(r'"/|[= ,]/(home|tmp|root|work)\b', path.read_text(encoding="utf-8")), path


def test_a_trial_without_clipping_makes_an_optimizer_without_a_limit():
    pytest.importorskip("tensorflow")
    from bert_tf.tasks import job

    limits = []
    for changes in (contextlib.nullcontext(), trials._without_clipping()):
        with changes:
            limits.append(job.make_optimizer("lamb", 0.01, 1, 10).global_clipnorm)
    assert limits == [1.0, math.inf]


def test_emulated_matmuls_round_what_goes_into_them_forward_and_backward():
    tf = pytest.importorskip("tensorflow")
    from benchmarks.trials import rounded_matmuls

    last_bit = 2.0**-10
    x = tf.Variable([[1 + 0.5 * last_bit, 1 + 1.5 * last_bit, 1 + 0.6 * last_bit, 3e-9]])  # halves to even
    for precision, tiny in (("tf32", 3e-9), ("fp16", 0.0)):
        with rounded_matmuls(precision), tf.GradientTape() as tape:
            product = tf.matmul(x, tf.eye(4))
        expected = [1, 1 + 2 * last_bit, 1 + last_bit, tiny]
        np.testing.assert_array_equal(product[0, :3], np.float32(expected[:3]))
        assert float(product[0, 3]) == pytest.approx(tiny, rel=1e-3)
        # Of a gradient, which is scaled for fp16 and so does not vanish.
        found = tape.gradient(product, x, tf.constant([[1 + 0.5 * last_bit, 1 + 0.6 * last_bit, 2e-9, 0.0]]))[0].numpy()
        np.testing.assert_array_equal(found[:2], np.float32([1, 1 + last_bit]))
        assert found[2] == pytest.approx(2e-9, rel=2e-3 if precision == "tf32" else 0.5)
