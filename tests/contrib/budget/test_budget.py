"""The recipe for a budget of hours: what follows from the rate that is measured, with a stand-in for the program."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from bert_tf.base.locks import FileLock
from bert_tf.base.machine.hardware import GIB
from bert_tf.contrib.budget import budget
from bert_tf.launch import call, environment
from bert_tf.memory.plan import RankMemory
from bert_tf.records.token_file import Shard, TokenizedText, write_tokens
from tests.launch.helpers import flags_of, launch, prepare_tokens, recorded_of
from tests.refusals import refused
from tests.stand_ins import nvidia_smi

TOKENS = 50_000_000


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The programs that were started, as flags; each ends at once, having made `started.rate` sequences a second."""

    class Started(list):
        rate = 100.0
        reason = "done"
        folder = tmp_path / "run"

    calls = Started()

    def run(_, command, *__):
        flags = flags_of(command)
        calls.append(flags)
        folder = Path(flags["model_dir"])
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        others = {1: {"throughput_train": 1.0}, 2: {"throughput_train": calls.rate}, 3: {"reason": calls.reason}}
        with open(folder / "metrics.jsonl", "w") as file:
            for number, name in enumerate(("start", "train", "train", "end")):
                line = {"event": name, "update": 0, "time_unix": 1e9 + 1800 * (3 * len(calls) + number)}
                file.write(json.dumps({**line, **others.get(number, {})}) + "\n")
        (folder / "config.json").write_text(json.dumps(recorded_of(flags)))
        return 0

    monkeypatch.setattr(call, "run", run)
    monkeypatch.setattr(budget.Pretraining, "results", lambda *_: [])
    monkeypatch.setenv("RESULTS_DIR", str(calls.folder))
    data = prepare_tokens(tmp_path / "data", "custom")
    change_text(tmp_path, num_tokens=TOKENS, num_documents=1)
    text = TokenizedText(np.repeat(np.arange(4), 25), np.array([0, 100]), np.array([0, 1]))
    write_tokens(data / "training/custom_training_0.tokens", text, Shard(0, 0), vocab_size=10)
    return calls


def _add_gpu(monkeypatch, tmp_path, capability):
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path / "bin", capability), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(budget, "find_rank_memory", lambda *_: RankMemory(140 * GIB, "a GPU"))


def change_text(tmp_path, **counts):
    """The text has other counts."""
    file = next((tmp_path / "data").rglob("manifest.json"))
    manifest = json.loads(file.read_text())
    manifest["counts"].update(counts)
    file.write_text(json.dumps(manifest))


def budget_of(typed):
    return launch("pretraining_budget", typed)


def test_the_rate_is_measured_once_and_everything_follows_from_it(started, capsys):
    started.rate = 3000.0
    assert budget_of("10 mini custom") == 0
    *measurements, phase_1, phase_2 = started
    for flags in measurements:
        assert flags["num_train_steps"] == str(budget.MEASURED_UPDATES) and "eval_files" not in flags
    phases, sequences = [phase_1, phase_2], 3000 * 3600 * 10 * budget.UPDATES_SHARE
    names = ("max_seq_length", "max_predictions_per_seq", "train_batch_size", "num_accumulation_steps")
    expected = [[32, 10, 32, 4], [128, 39, 8, 4], [32, 10, 32, 256], [128, 39, 8, 512]]
    assert [[int(flags[name]) for name in names] for flags in started] == expected
    for number, (flags, batch) in enumerate(zip(phases, (8192, 4096))):
        updates, warmup = int(flags["num_train_steps"]), int(flags["warmup_steps"])
        assert updates == int([1 / 3, 2 / 3][number] * sequences / batch)
        assert float(flags["learning_rate"]) == 2.5e-3, "by width, and the cube root of 4,096 / 32"
        assert warmup == round(budget.PARTS[number].warmup_share * updates)
        assert int(flags["decay_steps"]) == [1, updates - warmup][number], "the rate falls in the second phase only"
    assert "init_checkpoint" not in phases[0] and phases[1]["init_checkpoint"] == phases[0]["model_dir"]
    for flags in started:
        names = ("packing", "masked_lm_prob", "no_next_sentence", "dropout")
        assert [flags.get(name) for name in names] == [None, "0.3", "true", "0.0"]
        assert flags["precision"] == "fp32"
    said = capsys.readouterr().out
    tokens = sequences * (32 + 2 * 128) / 3
    assert f"epochs = {tokens / TOKENS:.3g} of {TOKENS:,} tokens" in said
    assert f"loss_to_beat = {math.log(4):.2f} with no more than" in said
    # The same command on a machine of another rate makes the same updates.
    started.rate = 1.0
    assert budget_of("10 mini custom") == 0
    assert started[4:] == phases  # they made no checkpoint
    said = capsys.readouterr().out
    assert "so_far = 0 updates in 3.00 of 10 hours; 0.00 between its 2 start(s) are not counted" in said


def test_variables_go_before_the_preset_and_what_was_typed_before_these(started, monkeypatch, capsys):
    """And the measurement scores nothing."""
    variables = {"PACKING": "1", "MASKED_LM_PROB": "0.15", "DROPOUT": "0.1", "NO_NEXT_SENTENCE": "0"}
    for name, value in {**variables, "DATASET": "another", "EVAL_STEPS": "50", "EARLY_STOPPING": "3"}.items():
        monkeypatch.setenv(name, value)
    budget_of("24 mini custom")
    measurements, phases = started[:2], started[2:]
    for flags in started:
        assert [flags[name] for name in ("packing", "no_next_sentence", "dropout")] == ["true", "false", "0.1"]
        assert flags["masked_lm_prob"] == "0.15"
        assert (flags["max_seq_length"], flags["max_predictions_per_seq"]) in (("32", "5"), ("128", "20"))
        assert "/custom/training" in flags["input_files"]
    for flags in measurements:
        assert not {"eval_files", "eval_steps", "early_stopping"} & flags.keys()
    assert [(flags["eval_steps"], flags["early_stopping"]) for flags in phases] == [("50.0", "3")] * 2
    assert f"loss_to_beat = {math.log(4) + math.log(2):.2f} " in capsys.readouterr().out, "and that of next sentences"


@pytest.mark.parametrize("tokens_each, packs", [(64, True), (65, False)])
def test_short_texts_are_packed_into_several_micro_batches(started, tmp_path, tokens_each, packs):
    change_text(tmp_path, num_documents=TOKENS // tokens_each)
    budget_of("0.2 mini")
    names = ("train_batch_size", "num_accumulation_steps")
    assert [[int(flags[name]) for name in names] for flags in started[2:]] == [[16, 4] if packs else [32, 2], [8, 4]]
    assert {flags.get("packing") for flags in started} == {"true" if packs else None}


@pytest.mark.parametrize("gpu, precision, size", [("9.0", "bf16", 1024), ("7.0", "fp16", 1024), (None, "fp32", 8)])
def test_precision_and_micro_batch_follow_from_the_device(started, monkeypatch, tmp_path, gpu, precision, size):
    if gpu:
        _add_gpu(monkeypatch, tmp_path, gpu)
    budget_of("24 mini")
    assert started[0]["precision"] == precision and int(started[1]["train_batch_size"]) == size


def test_what_cannot_be_done_in_the_hours_is_refused(started, monkeypatch):
    for typed, rule in (("0", "above 0"), ("-1", "above 0"), ("soon", "a number"), ("99999", "at most 10,000")):
        refused(f"hours .*{rule}", budget_of, f"{typed} mini")
    refused("bert_model .* must be one of large, base", budget_of, "24 huge")
    refused("no sets of data.* DATASET=wiki", budget_of, "24 mini wiki")
    message = r"is 0.05: fewer than 1,000 updates of 32 .* at least 0.1 hours, or take a smaller model$"
    refused(message, budget_of, "0.05 mini")
    started.rate = 3000.0
    monkeypatch.setenv("RESULTS_DIR", str(started.folder / "other"))
    message = r"more than 400 times, the 50,000,000 tokens of .* prepare more text, or give 19.88 hours$"
    refused(message, budget_of, "900 mini")
    assert budget_of("19.88 mini") == 0


def test_where_no_hours_fit_the_text_its_size_is_what_is_said(started, tmp_path):
    """Which is the same for all hours, and enough."""
    change_text(tmp_path, num_tokens=1_000)
    way = "prepare at least 8,381 tokens of text, which are enough for 0.1 hours$"
    refused(f"is 0.01: fewer than 1,000 updates of 32 .* teach a model little: {way}", budget_of, "0.01 mini")
    refused(f"is 1: read more than 400 times, the 1,000 tokens .* nothing left to teach: {way}", budget_of, "1 mini")
    change_text(tmp_path, num_tokens=8_381)
    assert budget_of("0.1 mini") == 0


@pytest.mark.parametrize("rate", ["NaN", 0, "100", None])
def test_what_is_no_rate_measures_nothing(started, rate):
    started.rate = rate
    refused(r"run: the measurement's metrics.jsonl name no rate; delete its folders", budget_of, "1 mini")


def test_a_measurement_that_was_stopped_begins_anew(started, monkeypatch):
    """Going on after update 13, it would measure little more than the compiler."""
    checkpoint = started.folder / "measurement/checkpoints/ckpt-00000013"
    started.reason = "signal"
    refused(r"run: the measurement's metrics.jsonl name no rate; delete its folders", budget_of, "1 mini")
    started.reason = "done"
    checkpoint.mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("DRY_RUN", "1")
        assert budget_of("1 mini") == 0 and checkpoint.exists()
    with FileLock(started.folder / "measurement/.lock"):  # by ranks that outlive a killed launcher, and still save
        refused(r"run/measurement is in use by process \d+", budget_of, "1 mini")
    assert budget_of("1 mini") == 0 and not checkpoint.exists()
    names = [part.measurement for part in budget.PARTS] + [part.name for part in budget.PARTS]
    assert [Path(flags["model_dir"]).name for flags in started[2:]] == names


def test_the_hours_of_a_start_are_those_of_measurement_and_training(started, monkeypatch):
    clock = iter(range(0, 36_000, 360))
    monkeypatch.setattr(environment.time, "monotonic", lambda: next(clock))
    monkeypatch.setenv("MAX_HOURS", "1")
    assert budget_of("1 mini") == 0
    left = [float(flags["max_hours"]) for flags in started]
    assert left == sorted(left, reverse=True) and len(set(left)) == 4


def test_the_rate_of_other_settings_is_not_taken(started, monkeypatch, tmp_path):
    """But a training that has begun keeps its updates; its own runs refuse what they cannot go on with."""
    refused("fewer than 1,000 updates", budget_of, "0.05 mini")
    message = r"measurement.* with other settings \(bert_config: hidden_size: 256 there, 128 now.* another RESULTS_DIR"
    refused(message, budget_of, "1 tiny")
    monkeypatch.setenv("MASKED_LM_PROB", "0.15")
    refused(r"with other settings \(masked_lm_prob: 0.3 there, 0.15 now; max_predictions", budget_of, "1 mini")
    monkeypatch.delenv("MASKED_LM_PROB")
    manifest = next((tmp_path / "data").rglob("manifest.json"))
    text = manifest.read_text()
    size = json.loads(text)["vocab"]["size"]
    manifest.write_text(json.dumps({**json.loads(text), "vocab": {**json.loads(text)["vocab"], "size": 30522}}))
    refused(rf"with other settings \(vocab_size: {size} there, 30522 now\): name another", budget_of, "1 mini")
    manifest.write_text(text)
    assert budget_of("1 mini") == 0
    updates = [flags["num_train_steps"] for flags in started[2:]]
    _add_gpu(monkeypatch, tmp_path, "8.0")
    assert budget_of("1 mini") == 0
    assert [(flags["num_train_steps"], flags["precision"]) for flags in started[4:]] == [(n, "bf16") for n in updates]
    monkeypatch.setenv("DROPOUT", "0.1")
    refused(r"phase_1 holds a run with other settings \(dropout: 0.0 there, 0.1 now\)", budget_of, "1 mini")
