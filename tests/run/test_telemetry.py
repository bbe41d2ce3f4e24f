"""The logs of a run: what is written, for whom, and what happens when it cannot be written."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest
import tensorflow as tf

from bert_tf.base import progress
from bert_tf.bert_config import BertConfig
from bert_tf.memory.plan import Workload
from bert_tf.run import gpus
from bert_tf.run.gpus import peak_tflops
from bert_tf.run.sinks import TensorBoard
from bert_tf.run.telemetry import Telemetry

TRAIN = dict(batches_consumed=10, total_loss=9.5, mlm_loss=8.8, nsp_loss=0.7, mlm_accuracy=0.125, nsp_accuracy=0.5)
TRAIN |= dict(learning_rate=6e-3, loss_scaler=32768.0, gradient_norm=2.5, skipped_updates=0, throughput_train=100.0)
EVALUATION = {"masked_lm_accuracy": 0.25, "masked_lm_loss": 5.5, "loss": 6.0, "global_step": 20}
FIELDS = {"device": "CPU", "num_ranks": 2, "global_batch_size": 64, "flops_per_sequence": 2e9}


def start(folder, total_updates=20, is_chief=True, dllog_path=None, **fields):
    logs = Telemetry(folder, is_chief=is_chief, dllog_path=dllog_path)
    logs.start(total_updates, **{**FIELDS, **fields})
    return logs


def run(folder, **kwargs) -> None:
    """Two reports and an evaluation of a run of 20 updates of 64 sequences."""
    logs = start(folder, **kwargs, phase="phase_1")
    logs.train(10, **{**TRAIN, "throughput_train": 10.0})
    logs.train(20, **TRAIN)
    logs.checkpoint(20, "checkpoints/ckpt-00000020", 0.25, 1.5)
    logs.evaluation(20, **EVALUATION)
    logs.end()


def read_events(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def dllogger_lines(path):
    lines = path.read_text().splitlines()
    assert all(line.startswith("DLLL ") for line in lines)
    return [json.loads(line[len("DLLL ") :]) for line in lines]


@pytest.mark.parametrize(
    "name, seq_length, num_predictions, gflop",
    [("large", 128, 20, 240.6), ("large", 512, 80, 1020.5), ("base", 128, 20, 69.9)],
)
def test_flops_are_the_published_ones(name, seq_length, num_predictions, gflop):
    config = BertConfig.preset(name, vocab_size=30522)
    work = Workload(config, seq_length, num_predictions, "off")
    flops, alone = gpus.flops_per_row(work), gpus.flops_per_row(dataclasses.replace(work, no_next_sentence=True))
    assert flops - alone == 3 * 2 * config.hidden_size**2
    assert round(flops / 1e9, 1) == gflop


@pytest.mark.parametrize(
    "device, precision, peak",
    [
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("NVIDIA H200", "bf16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("NVIDIA GeForce RTX 3060", "fp16", None),
    ],
)
def test_a_peak_is_known_or_absent_but_never_invented(device, precision, peak):
    assert peak_tflops(device, precision) == peak


def test_metrics_file_holds_every_event_with_its_numbers(tmp_path):
    run(tmp_path)
    start, first, second, checkpoint, evaluation, end = read_events(tmp_path)
    begun = dict(event="start", update=0, total_updates=20, phase="phase_1", resumed_from=None, num_ranks=2)
    done = dict(event="end", update=20, reason="done", num_sequences=20 * 64)
    for event, fields in (
        (start, begun),
        (second, {"event": "train", "update": 20, **TRAIN}),
        (checkpoint, dict(event="checkpoint", update=20, secs=0.25, write_secs=1.5)),
        (evaluation, {"event": "evaluation", "update": 20, **EVALUATION}),
        (end, done),
    ):
        assert event.items() >= fields.items() and event["time_unix"] > 1e9
    assert second["model_tflops"] == pytest.approx(100 * 2e9 / 1e12) and second["memory_peak_mib"] > 10
    assert "mfu" not in second  # no peak was given
    assert end["throughput_train"] == pytest.approx(100.0)  # the first report is compilation


def test_the_summary_is_that_of_the_end_also_if_the_last_start_has_only_evaluated(tmp_path):
    """The one before it was killed behind its last update, after an earlier one had been stopped by a signal."""

    def summary():
        return json.loads((tmp_path / "training_summary.txt").read_text())

    logs = start(tmp_path)
    logs.train(10, **{**TRAIN, "total_loss": 10.5})
    logs.end("signal")
    assert summary()["reason"] == "signal" and summary()["train_loss"] == 10.5
    start(tmp_path, update=10).train(20, **TRAIN)
    for loss in 6.0, 7.0:  # a run that has ended keeps its summary
        logs = start(tmp_path, update=20)
        logs.evaluation(20, loss=loss)
        logs.end()
        ended = summary()
        assert (ended["reason"], ended["total_training_steps"], ended["train_loss"]) == ("done", 20, 9.5)
        assert ended["last_train_metrics"]["mlm_loss"] == 8.8 and ended["eval_metrics"] == {"loss": 6.0}


def test_lines_stay_strict_json_when_numbers_are_not_finite(tmp_path):
    logs = start(tmp_path, dllog_path=tmp_path / "dllog.json")
    logs.train(1, total_loss=math.nan, gradient_norm=math.inf, loss_scaler=-math.inf, throughput_train=1.0)
    logs.end()

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    event = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1], parse_constant=refuse)
    found = [event[name] for name in ("total_loss", "gradient_norm", "loss_scaler")]
    assert found == ["NaN", "Infinity", "-Infinity"]
    json.loads((tmp_path / "training_summary.txt").read_text(), parse_constant=refuse)
    assert math.isnan(dllogger_lines(tmp_path / "dllog.json")[1]["data"]["total_loss"])  # as DLLogger writes it


def test_a_resumed_run_appends_and_says_where_it_goes_on(tmp_path, capsys):
    """Also after a line that was cut by a kill."""
    run(tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    before = len(path.read_text().splitlines())
    capsys.readouterr()
    logs = start(tmp_path, 1000, update=400, resumed_from=Path("ckpt-00000400"), phase="phase_1")
    logs.train(410, **TRAIN)
    logs.end("SIGTERM")
    first, _, last = map(json.loads, path.read_text().splitlines()[before:])
    assert first["resumed_from"] == "ckpt-00000400"
    assert last["num_sequences"] == 10 * 64  # of this start alone
    out = capsys.readouterr().out
    assert "going on from ckpt-00000400: 400 of 1,000 updates done, 600 to go" in out
    assert "stopped at update 410: SIGTERM" in out


def test_tensorboard_has_the_same_numbers(tmp_path):
    run(tmp_path)

    def scalars(split):
        found = {}
        for path in (tmp_path / "summaries" / split).iterdir():
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(record)
                for value in event.summary.value:
                    found[event.step, value.tag] = float(tf.make_ndarray(value.tensor))
        return found

    train, evaluation = scalars("train"), scalars("eval")
    for name in TRAIN:
        assert train[20, name] == pytest.approx(TRAIN[name])
    assert evaluation[20, "masked_lm_loss"] == pytest.approx(5.5)


def test_nothing_is_kept_of_the_numbers_that_tensorboard_gets(tmp_path):
    numbers = [float("12.345678"), int("123456789")]
    before = list(map(sys.getrefcount, numbers))
    TensorBoard(tmp_path).write("train", numbers[1], {"total_loss": numbers[0]})
    assert list(map(sys.getrefcount, numbers)) == before


def test_dllogger_lines_have_its_fields_and_nvidias_names(tmp_path):
    path = tmp_path / "logs" / "dllog.json"
    run(tmp_path, dllog_path=path)
    lines = dllogger_lines(path)
    assert {"timestamp", "datetime", "elapsedtime", "type"} <= set(lines[0])
    parameters, first, second, evaluation, final = lines
    assert parameters["step"] == "PARAMETER" and parameters["data"]["global_batch_size"] == 64
    assert (first["step"], second["step"], final["step"]) == ([10], [20], [])
    names = ("throughput_train", "mlm_loss", "nsp_loss", "total_loss", "learning_rate", "loss_scaler")
    expected = {name: TRAIN[name] for name in names}
    assert second["data"] == {**expected, "avg_loss_step": TRAIN["total_loss"]}
    assert evaluation["data"] == EVALUATION
    assert final["data"]["throughput_train"] == pytest.approx(100.0)
    assert final["data"]["total_loss"] == 9.5


def test_the_last_lines_are_those_that_scripts_look_for(tmp_path, capsys):
    logs = start(tmp_path)
    logs.train(10, throughput_train=1.0)
    logs.train(20, throughput_train=123.456)
    logs.end(total_secs=20.0)
    out = capsys.readouterr().out.splitlines()
    assert "Total Training Time = 20.00 for Sequences = 1280" in out
    assert "Throughput Average (sequences/sec) with overhead = 64.00" in out
    assert out[-1] == "Throughput Average (sequences/sec) = 123.46"


def test_an_evaluation_that_only_measured_the_speed_has_no_line(tmp_path, capsys):
    with Telemetry(tmp_path, is_chief=True) as logs:
        logs.results(1, {}, {"throughput_val": 2.0, "latency_average_ms": 3.0})
    assert "evaluation" not in capsys.readouterr().out and "latency" in (tmp_path / "metrics.jsonl").read_text()


def test_other_ranks_are_silent_and_write_nothing(tmp_path, capsys):
    run(tmp_path, is_chief=False, dllog_path=tmp_path / "dllog.json")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_lines_are_printed_at_most_every_ten_seconds(tmp_path, capsys):
    logs = start(tmp_path, 1000, phase="phase_1", flops_per_sequence=4e7)
    logs.first_update(1, 10.5, 21.04)
    for update in range(10, 510, 10):
        logs.train(update, **TRAIN, update_secs=2.0, instances_per_row=2.0, tokens_per_sec=12345.6)
    logs.end("SIGTERM")
    out, err = capsys.readouterr()
    assert "\nfirst update: loss 10.5000, after 21.0 s with compilation\n" in out
    first, last = err.splitlines()
    for text in ("update 10 of 1,000", "loss 9.5000", "MLM accuracy 0.125", "NSP accuracy 0.500"):
        assert text in first
    assert "learning rate 6.000e-03" in first and "100.0 sequences/s, 12,346 tokens/s" in first
    assert "2 GFLOP/s" in first, "packed instances share the work of their row"
    assert "left" not in first, "its time includes compilation"
    assert "update 500 of 1,000" in last and "16:40 left" in last  # 500 updates of 2 s


@pytest.mark.parametrize("interval", [0.0, 10.0])
def test_the_first_and_the_last_update_are_said_at_once_and_once(tmp_path, capsys, monkeypatch, interval):
    monkeypatch.setattr(progress, "PLAIN_LINE_INTERVAL_SECS", interval)
    logs = start(tmp_path, 20, phase="phase_1")
    for update in (10, 20):
        logs.train(update, **TRAIN)
        assert f"update {update} of 20" in capsys.readouterr().err
    logs.end()
    assert "update" not in capsys.readouterr().err


def test_at_a_terminal_there_is_a_bar(tmp_path, monkeypatch):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    monkeypatch.setattr("sys.stderr", os.fdopen(slave, "w"))
    logs = start(tmp_path, 1000, phase="phase_1", flops_per_sequence=1e10)
    logs.first_update(1, 10.5, 21.0)
    logs.train(10, **TRAIN)
    logs.warning("the loss has not moved")
    logs.end()
    sys.stderr.close()
    written = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while part := os.read(master, 4096):
            written += part
    shown = written.decode()
    for text in ("phase_1 1/1000 ETA ?", "phase_1 10/1000 ETA ", "loss 9.500", "mlm 0.125", "nsp 0.500", "lr 6.00e-03"):
        assert text in shown
    assert "100.0 seq/s" in shown and "1 TFLOP/s" in shown
    assert "\rwarning: the loss has not moved" in shown.replace("\x1b[A", "")
    assert "update 10 of" not in shown


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's always full device")
def test_a_full_disk_is_reported_once_a_sink_and_the_run_goes_on(tmp_path, capsys, monkeypatch):
    def full(*_args, **_kwargs):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.summary, "scalar", full)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    (tmp_path / "training_summary.txt").mkdir()  # so that renaming to it fails
    run(tmp_path, dllog_path="/dev/full")
    captured = capsys.readouterr()
    warnings = [line for line in captured.err.splitlines() if line.startswith("warning:")]
    for sink in ("metrics.jsonl (", "DLLogger (", "TensorBoard (", "training_summary.txt ("):
        assert sum(f"cannot write {sink}" in line for line in warnings) == 1
    assert len(warnings) == 4 and "No space left" in warnings[0]
    assert "Throughput Average (sequences/sec) = 100.00" in captured.out
