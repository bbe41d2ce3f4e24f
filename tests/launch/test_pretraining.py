"""Recipes of pre-training: which data they choose, and how they run, with a stand-in for the program."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from bert_tf.base.locks import FileLock
from bert_tf.base.machine import software
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.launch import call, pretraining
from bert_tf.launch.prepared_data import choose_data
from tests.launch.helpers import flags_of, launch, prepare, prepare_tokens, recorded_of, values_of
from tests.refusals import refused
from tests.stand_ins import nvidia_smi

SMALL = "4 2 2 1e-3 1e-3 fp32 false 1 1 1 20 5 1 2 tiny"
LENGTHS = [(128, 20), (512, 80)]

# --- Which data ----------------------------------------------------------------------------------


def data_of(folder, dataset=None, data_format=None):
    """What is chosen for both phases: dataset, lengths and format of each."""
    chosen = choose_data(folder, dataset, LENGTHS, data_format)
    return [(item.dataset, item.lengths, item.data_format) for item in chosen]


def test_the_only_dataset_is_found_and_of_several_the_named_one(tmp_path):
    prepare(tmp_path, "sample")
    prepare(tmp_path, "half", lengths=LENGTHS[:1])
    assert data_of(tmp_path) == [("sample", (128, 20), "records"), ("sample", (512, 80), "records")]
    prepare(tmp_path, "wikicorpus_en")
    message = "2 sets of data, .* found below .*_20/sample .*_20/wikicorpus_en .*; choose by DATASET=<name>, or move"
    refused(message, data_of, tmp_path)
    assert data_of(tmp_path, "WikiCorpus_en")[1][0] == "wikicorpus_en"
    prepare(tmp_path, lengths=LENGTHS[:1], parameters="_dupe_factor_9")
    refused("2 sets of data, .*DATASET=sample; .*; move the folders", data_of, tmp_path, "sample")


def test_errors_list_what_was_found(tmp_path):
    refused("found below .*: nothing", data_of, tmp_path)
    prepare(tmp_path, "sample", lengths=LENGTHS[:1])
    (tmp_path / "tfrecord/begun/sample/training").mkdir(parents=True)
    message = r"no sets of data.* DATASET=sample; found .*_20/sample \(128/20\).*no manifest"
    refused(message, data_of, tmp_path, "sample")
    prepare(tmp_path, lengths=LENGTHS[1:], sha="b")
    refused("one vocabulary", data_of, tmp_path)


def test_token_files_serve_both_phases(tmp_path):
    prepare_tokens(tmp_path)
    prepare(tmp_path, lengths=LENGTHS[:1])
    assert data_of(tmp_path) == [("sample", None, "tokens")] * 2
    message = r"DATA_FORMAT=records; found below .*_20/sample \(128/20\), .*/sample \(all lengths\)"
    refused(message, data_of, tmp_path, None, "records")
    prepare(tmp_path, lengths=LENGTHS[1:])
    refused(r"2 sets of data.*; choose by DATA_FORMAT=records\|tokens, or move the folders", data_of, tmp_path)
    assert data_of(tmp_path, None, "tokens") == [("sample", None, "tokens")] * 2
    assert [lengths for _, lengths, _ in data_of(tmp_path, None, "records")] == LENGTHS


# --- Running -------------------------------------------------------------------------------------


calls = []  # the flags of each start of a program so far, in a test


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Prepared data, and results in `run`; the programs do nothing but leave traces, or end with STAND_IN_CODE."""

    def run(_, command, *__):
        flags = flags_of(command)
        model_dir = Path(flags["model_dir"])
        model_dir.mkdir(parents=True, exist_ok=True)
        calls.append(flags)
        if code := int(os.environ.get("STAND_IN_CODE", "0")):
            return code
        (model_dir / "config.json").write_text(json.dumps(recorded_of(flags)))
        checkpoint = model_dir / f"checkpoints/ckpt-{int(flags['num_train_steps']):08d}"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "manifest.json").write_text('{"sha256": {}}')
        record_end(model_dir)
        return 0

    calls.clear()
    monkeypatch.setattr(call, "run", run)
    monkeypatch.setattr(pretraining.Pretraining, "results", lambda *_: [])
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path / "run"))
    prepare(tmp_path / "data")
    return tmp_path


def record_end(model_dir, **event):
    end = {"event": "end", "reason": "done", "update": 0, "time_unix": 0.0, **event}
    (model_dir / "metrics.jsonl").write_text(json.dumps(end) + "\n")


def run_folders():
    return [Path(flags["model_dir"]).name for flags in calls]


def lamb(typed=SMALL):
    return launch("pretraining_lamb", typed)


def phase(number, typed=SMALL):
    return launch(f"pretraining_lamb_phase{number}", typed)


def dry(monkeypatch, start, *arguments):
    with monkeypatch.context() as patch:
        patch.setenv("DRY_RUN", "1")
        return start(*arguments)


def test_both_phases_run_and_a_repetition_does_nothing(folder, monkeypatch, capfd):
    assert lamb() == 0
    first, second = calls
    assert second["init_checkpoint"] == str(folder / "run/phase_1") and "use_horovod" not in first
    assert (second["num_train_steps"], second["max_seq_length"], second["learning_rate"]) == ("2", "512", "0.001")
    assert lamb() == 0
    assert len(calls) == 2
    assert "phase 1: finished already" in capfd.readouterr().out
    with monkeypatch.context() as patch:  # it would begin a training of its own
        patch.setenv("RESULTS_DIR", str(folder / "run/phase_2"))
        refused("^RESULTS_DIR=.*phase_2 is the folder of a run, .* name the folder above it, to go on", lamb)
    (damaged,) = folder.glob("run/phase_2/checkpoints/ckpt-*/manifest.json")
    damaged.write_text("no longer one")
    assert lamb() == 0
    assert run_folders() == ["phase_1", "phase_2", "phase_2"], "a damaged last checkpoint is made again"


def test_continued_pretraining_starts_from_a_checkpoint(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("INIT_CHECKPOINT", "google/bert_model.ckpt")
    (folder / "google").mkdir()
    (folder / "google/bert_model.ckpt.index").touch()
    assert lamb() == 0
    starts = [flags["init_checkpoint"] for flags in calls]
    assert starts == [os.path.abspath("google/bert_model.ckpt"), str(folder / "run/phase_1")]
    shutil.rmtree(folder / "google")
    assert lamb() == 0, "a run that has begun does not need these weights"
    monkeypatch.delenv("INIT_CHECKPOINT")
    refused("init_checkpoint: '.*google/bert_model.ckpt' there, None now", lamb)


@pytest.mark.parametrize("name", ["packing", "no_next_sentence"])
def test_what_changes_the_rows_is_passed_on_and_belongs_to_the_plan(folder, monkeypatch, name):
    """Without next sentences token files are read, although there are records, too."""
    tokens = prepare_tokens(folder / "data")
    monkeypatch.setenv("DATA_FORMAT", "records" if name == "packing" else "")
    monkeypatch.setenv(name.upper(), "1")
    assert lamb() == 0
    assert all(flags[name] == "true" for flags in calls)
    assert (calls[0]["input_files"] == f"{tokens}/training") == (name == "no_next_sentence")
    monkeypatch.setenv("DATA_FORMAT", "records" if name == "packing" else "tokens")
    monkeypatch.delenv(name.upper())
    refused(f"{name}: True there, False now", lamb)
    monkeypatch.setenv("DATA_FORMAT", "tokens" if name == "packing" else "records")
    refused("data_format: '(records|tokens)' there, '(records|tokens)' now", lamb)


def test_variables_of_the_programs_are_passed_on(folder, monkeypatch):
    """The CPU can be asked for where there are GPUs; the hours are those of all phases."""
    monkeypatch.setenv("PATH", nvidia_smi(folder / "bin", "a", "b"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    given = {"ALLOW_MISSING_WEIGHTS": "true", "RECOMPUTE": "true", "MAX_EVAL_STEPS": "0", "DEVICE": "cpu"}
    for name, value in {**given, "MAX_HOURS": "1.5"}.items():
        monkeypatch.setenv(name, value)
    assert lamb() == 0
    assert all(flags[name.lower()] == value for flags in calls for name, value in given.items())
    first, second = (float(flags["max_hours"]) for flags in calls)
    assert 1.4 < second <= first <= 1.5


ADAM = "4 4 1e-3 fp32 false 1 0 10 5 tiny 1 512 80"
PUBMED = "4 1e-4 false fp32 false 1 2 9 3 5 7 tiny"
OF_PUBMED = (
    "bert_model=tiny optimizer_type=lamb train_batch_size=4 num_accumulation_steps=3 learning_rate=0.0001 "
    "warmup_steps=2 num_train_steps=9 save_checkpoint_steps=5 eval_batch_size=7"
)


@pytest.mark.parametrize(
    "name, typed, run_folder, expected",
    [
        ("pretraining_adam", ADAM, "pretraining", "optimizer_type=adamw 512 80"),
        ("biobert/run_pretraining-pubmed_base_phase_1", PUBMED, "phase_1", f"{OF_PUBMED} 128 20"),
        ("biobert/run_pretraining-pubmed_base_phase_2", f"weights {PUBMED}", "phase_2", f"{OF_PUBMED} 512 80"),
    ],
)
def test_recipes_of_one_phase(folder, monkeypatch, name, typed, run_folder, expected):
    """BioBERT's start from weights: those of a variable, or those that are typed."""
    monkeypatch.chdir(folder)
    (folder / "weights").mkdir()
    (folder / "weights/bert_config.json").write_text('{"num_hidden_layers": 2, "hidden_size": 128}')
    monkeypatch.setenv("DATASET", "sample")
    if "pubmed" in name:
        monkeypatch.setenv("INIT_CHECKPOINT", "weights" if typed == PUBMED else "another")
    assert launch(name, typed) == 0
    (flags,) = calls
    *pairs, length, num_predictions = expected.split()
    assert dict(pair.split("=") for pair in pairs).items() <= flags.items()
    assert (flags["max_seq_length"], flags["max_predictions_per_seq"]) == (length, num_predictions)
    assert flags["model_dir"] == str(folder / "run" / run_folder)
    assert flags.get("init_checkpoint") == (str(folder / "weights") if "pubmed" in name else None)


def test_other_arguments_are_refused_with_the_difference(folder, monkeypatch):
    assert lamb() == 0
    changed = SMALL.replace("1e-3", "2e-3", 1)
    refused("learning_rate_phase1: 0.001 there, 0.002 now", lamb, changed)
    (folder / "run/phase_1/metrics.jsonl").unlink()
    with monkeypatch.context() as patch:
        patch.setenv("CONTINUE_WITH_CHANGES", "1")
        assert lamb(changed) == 0
    assert calls[-1]["continue_with_changes"] == "true"
    for content in ("", "[]"):
        (folder / "run/plan.json").write_text(content)
        refused("plan.json (is|holds) .*; delete it", lamb)


@pytest.mark.parametrize(
    "data_format, variable, changed",
    [
        ("records", ("DROPOUT", "0.1"), "dropout: None there, 0.1 now"),
        ("tokens", ("MASKED_LM_PROB", "0.1"), "masked_lm_prob: 0.15 there, 0.1 now"),
        ("tokens", ("WHOLE_WORD_MASKING", "1"), "whole_word_masking: False there, True now"),
    ],
)
def test_a_finished_phase_is_not_the_run_of_other_settings(folder, monkeypatch, data_format, variable, changed):
    """Those of the next, if it has not begun, may be others; so may what no update depends on."""
    prepare_tokens(folder / "data")
    monkeypatch.setenv("DATA_FORMAT", data_format)
    assert phase(1) == 0
    monkeypatch.setenv(*variable)
    refused(rf"phase_1 holds a run with other settings \({changed}\); .* or CONTINUE_WITH_CHANGES=1$", phase, 1)
    refused(changed, lamb)
    refused(changed, dry, monkeypatch, lamb)
    assert phase(2) == 0
    monkeypatch.delenv(variable[0])
    refused("phase_2 holds a run with other settings", lamb)
    for name, value in {"MAX_HOURS": "3", "RECOMPUTE": "1", "CONTINUE_WITH_CHANGES": "1"}.items():
        assert phase(1) == 0
        monkeypatch.setenv(name, value)
    assert lamb() == 0
    assert run_folders() == ["phase_1", "phase_2"], "all were finished"


def test_other_text_of_the_same_name_is_another_run(folder):
    """Even for a phase that has not begun; where the plan is of before it named the text, for those that have."""
    assert phase(1) == 0
    (folder / "data").rename(folder / "moved")
    prepare(folder / "data")
    assert phase(1) == 0, "the same data"
    for file in (folder / "data").rglob("manifest.json"):
        manifest = json.loads(file.read_text())
        file.write_text(json.dumps({**manifest, "inputs": [{"file": "0.txt", "bytes": 1, "sha256": "other"}]}))
    for call_of in (lamb, lambda: phase(2)):
        refused("text_sha256: '.*' there, '.*' now", call_of)
    plan = json.loads((folder / "run/plan.json").read_text())
    del plan["text_sha256"]
    (folder / "run/plan.json").write_text(json.dumps(plan))
    refused(r"phase_1 holds a run with other settings \(data: '.*seq_len_128.*manifest \w{16}' there, '", lamb)
    assert run_folders() == ["phase_1"]


def test_a_batch_size_to_be_found_counts_as_one_in_the_global_batch(folder, monkeypatch):
    """The accumulation argument then holds the rank's sequences in an update. With packing it is refused."""
    typed = SMALL.replace("4 2", "auto auto", 1).replace("1 2 tiny", "4 4 tiny")
    assert lamb(typed) == 0
    for flags in calls:
        assert (flags["train_batch_size"], flags["global_batch_size"]) == ("auto", "4")
        assert "num_accumulation_steps" not in flags
    monkeypatch.setenv("PACKING", "1")
    refused("batch size auto and packing .* give it as a number", lamb, typed)


def test_phases_one_by_one(folder, monkeypatch, capfd):
    """One that has not begun may get other arguments."""
    refused("phase 2 starts from the end of phase 1", phase, 2)
    assert dry(monkeypatch, phase, 2) == 0
    shown = capfd.readouterr().out
    assert values_of(shown)["init_checkpoint"] == str(folder / "run/phase_1")
    assert "note: a real run would stop here: phase 2 starts from the end of phase 1" in shown
    assert phase(1) == 0
    refused("train_batch_size_phase1: 4 there, 5 now", phase, 2, SMALL.replace("4 2", "5 2"))
    assert phase(2, SMALL.replace("4 2", "4 1")) == 0
    assert run_folders() == ["phase_1", "phase_2"]
    refused("train_batch_size_phase2: 1 there, 2 now", phase, 2)


@pytest.mark.parametrize("name", ["plan.json", "report.html"])
def test_files_of_others_in_the_results_folder_stay(folder, name):
    file = folder / "run" / name
    file.parent.mkdir()
    file.write_text("<!DOCTYPE html>mine")
    refused(f"^{file} is a file that this program has not written, so it is not overwritten", lamb)
    assert [path.name for path in file.parent.iterdir()] == [name] and file.read_text() == "<!DOCTYPE html>mine"


def test_without_a_test_split_there_is_training_and_no_evaluation(folder, capfd):
    for file in (folder / "data").glob("tfrecord/*/*/test/*"):
        file.unlink()
    assert lamb() == 0
    assert "evaluation = none, because the dataset has no test split" in capfd.readouterr().out
    assert not any("eval" in name for flags in calls for name in flags if name != "eval_batch_size")
    assert lamb() == 0
    assert len(calls) == 2


def test_evaluations_while_training_need_a_test_split(folder, monkeypatch):
    """Which a dry run says, too, and the launcher in its own words."""
    for file in (folder / "data").glob("tfrecord/*512*/*/test/*"):
        file.unlink()
    monkeypatch.setenv("EVAL_STEPS", "1")
    message = "^EVAL_STEPS=1: .*seq_len_512.*/sample has no test split.*; leave EVAL_STEPS and EARLY_STOPPING out, or"
    refused(message, lamb)
    refused(message, dry, monkeypatch, lamb)
    assert not calls


def test_a_phase_goes_on_that_was_killed_behind_its_last_update_or_has_not_reached_it(folder):
    """The next phase needs no more than its weights."""
    assert phase(1) == 0
    record_end(folder / "run/phase_1", event="evaluation")
    assert phase(2) == lamb() == 0
    assert run_folders() == ["phase_1", "phase_2", "phase_1"]
    (folder / "run/phase_1/checkpoints/ckpt-00000018").rename(folder / "run/phase_1/checkpoints/ckpt-00000017")
    shutil.rmtree(folder / "run/phase_2/checkpoints")
    assert lamb() == 0
    assert len(calls) == 5


def test_a_phase_whose_weights_the_next_one_has_taken_is_not_trained_again(folder, monkeypatch, capfd):
    """Neither if its checkpoints were deleted to make room, nor for updates that the next phase would not take."""
    assert lamb() == 0
    shutil.rmtree(folder / "run/phase_1/checkpoints")
    assert lamb() == phase(2) == 0
    assert len(calls) == 2
    monkeypatch.setenv("CONTINUE_WITH_CHANGES", "1")
    assert lamb(SMALL.replace(" 20 ", " 40 ")) == 0
    assert run_folders() == ["phase_1", "phase_2", "phase_2"]
    assert "phase 1: left as it is, because the next phase goes on from its own checkpoint" in capfd.readouterr().out


def test_after_a_phase_that_has_stopped_early_the_next_begins_and_itself_the_program_judges(folder, monkeypatch):
    """Which knows the scores, and how many EARLY_STOPPING now allows; until the next has begun with its weights."""
    assert phase(1) == 0
    (folder / "run/phase_1/checkpoints/ckpt-00000018").rename(folder / "run/phase_1/checkpoints/ckpt-00000007")
    record_end(folder / "run/phase_1", reason="signal")
    refused("phase 2 starts from the end of phase 1", phase, 2)
    record_end(folder / "run/phase_1", reason="early_stopping")
    monkeypatch.setenv("EVAL_STEPS", "5")
    monkeypatch.setenv("EARLY_STOPPING", "1")
    assert phase(1) == 0
    record_end(folder / "run/phase_1", reason="early_stopping")
    assert phase(2) == lamb() == 0
    assert run_folders() == ["phase_1", "phase_1", "phase_2"]
    monkeypatch.delenv("EARLY_STOPPING")
    refused(r"phase_1 holds a run with other settings \(early_stopping: 1 there, None now\); use the same", lamb)
    monkeypatch.setenv("CONTINUE_WITH_CHANGES", "1")
    assert lamb() == 0
    assert len(calls) == 3


def test_a_signal_at_the_end_of_a_phase_starts_no_other(folder, monkeypatch):
    ends_well = call.run

    def is_signalled(*arguments):
        arguments[-1].signals.append(signal.SIGTERM)
        return ends_well(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(call, "run", is_signalled)
        assert lamb() == STOPPED_EXIT_CODE
        assert run_folders() == ["phase_1"]
        assert lamb() == 0, "the last one has done all"
    assert run_folders() == ["phase_1", "phase_2"]


def test_one_launcher_at_a_time_has_the_results_folder(folder, monkeypatch):
    """Another would write its plan in the place of the first one's."""
    (folder / "run").mkdir()
    with FileLock(folder / "run/.lock"):
        refused(r"run is in use by process \d+ on .*; name another RESULTS_DIR", lamb)
        assert dry(monkeypatch, lamb) == 0
    assert not (folder / "run/plan.json").exists()
    assert lamb() == lamb() == 0


def test_a_start_that_was_refused_does_not_bind_the_next_one(folder, monkeypatch):
    """By the launcher, which sees that there is no checkpoint, or by the program, before it binds its folder."""
    with monkeypatch.context() as patch:
        patch.setenv("INIT_CHECKPOINT", str(folder / "gogle"))
        refused(r"INIT_CHECKPOINT=.*gogle: there is no checkpoint; name .* prefix as .../bert_model\.ckpt$", lamb)
        (folder / "gogle").mkdir()
        patch.setenv("STAND_IN_CODE", "2")
        assert lamb() == 2
    assert lamb() == 0


def test_without_tensorflow(folder, monkeypatch, capsys):
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None)
    refused("scripts/setup.sh", lamb)
    assert dry(monkeypatch, lamb) == 0
    assert f"note: a real run would stop here: {sys.executable} has no tensorflow" in capsys.readouterr().out
