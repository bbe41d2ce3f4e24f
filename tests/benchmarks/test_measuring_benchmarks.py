"""The benchmarks of updates and records run; what they measure is not looked at."""

from __future__ import annotations

import bz2
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.finished import Finished
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import checks, report
from benchmarks.gpu.rows import Sizes, plan_rows
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.preparation import documents
from tests.pretraining_data import write_dataset
from tests.refusals import refused

CHECKOUT = Path(__file__).parents[2]


def run(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *map(str, arguments)],
        cwd=CHECKOUT,
        text=True,
        capture_output=True,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_start_goes_on_where_another_was_cut_off_and_refuses_another_gpu(tmp_path):
    file = tmp_path / "new" / "rows.jsonl"
    Finished(file, {"device": "a"}).add([1, "fp16"], {"failed": "exit code 1: no memory"})
    again = Finished(file, {"device": "a"})
    assert again.find([1, "fp16"])["failed"].startswith("exit") and again.find([2, "fp16"]) is None
    again.add([2, "fp16"], {"loss": 1.0})
    assert [line["row"][0] for line in Finished(file, {"device": "a"}).lines] == [1, 2]
    refused("another device; take another folder", Finished, file, {"device": "b"})


NAMES = ("device", "compute_capability", "driver", "cuda", "cudnn", "processor", "num_cores")
FACTS = {"rehearsal": True, "versions": {}, "environment": {}, **dict.fromkeys(NAMES)}
FIRST, *_ = GROUPS = plan_rows(Sizes(), memory=139e9, has_bf16=True, has_peer=True)
ROWS = [row for group in GROUPS for row in group]


def test_the_first_group_answers_the_questions_and_the_others_need_no_24_layers():
    sizes = [f"{model} bf16 {size}" for model in ("large", "base") for size in ("512/80, 16 x {}", "128/20, 16 x {}")]
    sizes = [size.format(number) for size, number in zip(sizes, (32, 128, 64, 256))]  # with the memory of an H200
    for part in "speed", "peer":
        rows = [row for row in FIRST if row.part == part]
        assert [row.size for row in rows if not row.packing] == sizes
        assert [row.size for row in rows if row.packing] == sizes[:1] * (part == "speed")
    assert [row.start for row in FIRST if row.part == "start"] == [1, 2]
    assert all(row.num_layers == 4 for group in GROUPS[1:] for row in group if row.part != "tests")
    assert {row.precision for row in plan_rows(Sizes(), 17e9, False, True)[0] if row.part == "peer"} == {"fp16"}
    assert not [row for row in plan_rows(Sizes(), 17e9, True, has_peer=False)[0] if row.part == "peer"]
    keys = [json.dumps(dataclasses.asdict(row)) for row in ROWS]
    assert len(set(keys)) == len(keys), "each line of rows.jsonl belongs to one row"


def test_the_report_names_what_failed_and_what_is_missing_and_never_passes_for_a_gpu_s(tmp_path):
    first, second, *_ = ROWS
    finished = Finished(tmp_path / "rows.jsonl", FACTS)
    finished.add(dataclasses.asdict(first), {"title": first.title, "commit": "c", "failed": "exit code 1: no memory"})
    text = report.render(finished, [first, second])
    assert text.startswith("# Rehearsal on a CPU: no figure here says anything about a GPU\n")
    failed, missing = text.split("## Failed")[1].split("## Not run yet")
    assert f"{first.title}: exit code 1: no memory" in failed and second.title in missing and first.title not in missing


def test_a_row_stands_beside_its_peer_s_and_starts_that_differ_are_wrong(tmp_path):
    finished = Finished(tmp_path / "rows.jsonl", FACTS)
    memory = {"memory_peak": 4e9, "memory_planned": 3e9, "first_call_secs": 9.0, "is_finite": True, "commit": "c"}
    ours = next(row for row in FIRST if row.part == "speed")
    for row, digest in zip((row for row in FIRST if row.part == "start"), ("aa", "ab")):
        assert report.is_right(finished.lines)
        finished.add(dataclasses.asdict(row), {"title": row.title, "digest": digest, **memory})
    assert not report.is_right(finished.lines) and report.same_bits(finished.lines) is False
    for part, rate in (("speed", 300.0), ("peer", 400.0)):
        row = dataclasses.replace(ours, part=part)
        figures = {"sequences_per_sec": rate, "update_secs": 1.0, **memory}
        finished.add(dataclasses.asdict(row), {"title": row.title, **figures})
    text = report.render(finished, ROWS)
    assert "THEY DIFFER" in text and f"| {ours.title} | 0.75 | 300.0 |" in text and "| -25 % |" in text


def test_tests_that_fail_are_named_in_the_report_and_make_it_end_with_1(tmp_path):
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="one"/><testcase classname="tests.a" name="two">'
        '<skipped message="no GPU"/></testcase><testcase classname="tests.a" name="three">'
        '<failure message="0.5 is too much&#10;and more">text</failure></testcase></testsuite></testsuites>'
    )
    found = checks.read_counts(tmp_path / "tests.xml")
    assert found == {"passed": 1, "skipped": {"tests.a::two": "no GPU"}, "wrong": {"tests.a::three": "0.5 is too much"}}
    assert report.brief(found) == "1 passed, 1 skipped, 1 failed" and not report.is_right([found])
    text = "\n".join(report.checks_of([{"row": {"part": "tests"}, "title": "the tests", **found}]))
    assert "the tests: 1 passed" in text and "- wrong: tests.a::three: 0.5 is too much" in text


@pytest.mark.slow
def test_a_row_of_the_gpu_benchmark_runs_once_without_what_a_bare_machine_lacks(tmp_path, monkeypatch):
    for name in ("horovod", "tensorflow_addons", "google_crc32c"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    output = tmp_path / "results"
    arguments = ("gpu", "--rehearse", "--output", output, "--only", "32/4, 3 x 4, scope step, 1 layer(s), packed")
    assert "minutes left: tiny bf16" in run(*arguments, PYTHONPATH=str(tmp_path))
    _, line = map(json.loads, (output / "rows.jsonl").read_text().splitlines())
    assert "failed" not in line and line["is_finite"] and line["mfu"] is None
    assert line["title"] in (output / "report.md").read_text().split("## Failed")[0]
    facts = json.loads((output / "rows.jsonl").read_text().splitlines()[0])["facts"]
    monkeypatch.setattr(gpu, "find_facts", lambda *_: facts)
    monkeypatch.setattr(gpu, "make_job", lambda *_: pytest.fail("it is there already"))
    assert gpu.main.__wrapped__(list(map(str, arguments))) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, task, name", [("train", "entities", "throughput_train"), ("predict", "squad", "throughput_val")]
)
def test_fine_tuning_logs_the_rate_of_its_batches(tmp_path, mode, task, name):
    sizes = ("--bert_model", "tiny", "--cased", "true", "--batch_size", 2, "--seq_length", 32, "--secs", 0.1)
    typed = ("--mode", mode, "--task", task, *sizes, "--dllog_path", tmp_path / "log")
    run("finetuning", *typed, CUDA_VISIBLE_DEVICES="")
    logged = json.loads((tmp_path / "log").read_text().splitlines()[-1].partition(" ")[2])["data"]
    assert logged[name] == pytest.approx(2 * 1000 / logged["latency_average_ms"])


@pytest.mark.slow
def test_reading_gives_its_table(tmp_path):
    folder = write_dataset(tmp_path / "records") / "training"
    sizes = ("--rounds", 1, "--batch_size", 8, "--micro_batch_size", 4, "--num_batches", 2)
    text = run("input_pipeline", "--results", tmp_path, "--input_files", folder, "--names", "records", *sizes)
    assert "### records: 137 records of " in text
    assert [line.split(" | ")[0] for line in text.splitlines() if line.endswith(" | 16 |")] == [
        "| tf.data, batch then parse",
        "| this project",
    ]


@pytest.mark.slow
def test_preparing_and_formatting_give_their_tables(tmp_path):
    text, vocab, dump = (tmp_path / name for name in ("text.txt", "vocab.txt", "dump.xml.bz2"))
    texts, letters = documents(20), "abcdefghijklmnopqrstuvwxyz."
    text.write_text("".join(f"{each}\n" for each in texts))
    vocab.write_text("\n".join([*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]))
    pages = "".join(
        f"<page>\n<title>{number}</title><ns>0</ns><revision><text>{each}</text></revision>\n</page>\n"
        for number, each in enumerate(texts[:5])
    )
    dump.write_bytes(bz2.compress(f"<mediawiki>\n{pages}</mediawiki>\n".encode()))
    common = ("--rounds", 1, "--no_peers", "--results", tmp_path)
    sizes = ("--megabytes", 0.03, "--stage_megabytes", 0.05)
    said = run("preparation", "--text", text, "--vocab_file", vocab, *sizes, *common)
    assert said.count("\n### ") + said.startswith("### ") == 4 and "\n| token files, second shard | " in said
    said = run("formatting", "--dump", dump, "--copies", 2, *common)
    assert sum(line.startswith("| ") for line in said.splitlines()) == 2 + 3
