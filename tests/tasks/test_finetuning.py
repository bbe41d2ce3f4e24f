"""Fine-tuning on a handful of questions: order of rows, resuming, scores, and what is refused."""

import contextlib
import dataclasses
import json
import os
import re
import signal
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from bert_tf.base.errors import UserError
from bert_tf.ranks.workers import Workers
from bert_tf.report.runs import read_run
from bert_tf.tasks import job as jobs
from bert_tf.tasks.data import TaskData
from bert_tf.tasks.rows import content_key
from bert_tf.tasks.squad.decode import DecodeSettings
from bert_tf.tasks.squad.features import FeatureSettings
from bert_tf.tasks.squad.task import SquadTask
from tests.jobs import events, from_checkpoint, short_training, small_job, weights_in
from tests.refusals import refused
from tests.squad_data import GOLDEN, write_squad

NUM_WINDOWS = len(GOLDEN["features"])
PREDICTIONS = ("predictions.json", "null_odds.json")


def settings(**changes):
    usual = dict(learning_rate=0.01, num_train_epochs=0.6, save_checkpoint_steps=3, display_loss_steps=2)
    return short_training(**{**usual, **changes})


def job(folder, model_dir, *, training=None, **changes):
    squad = dict(train_file=folder / "squad.json", predict_file=folder / "squad.json")
    rows = dict(features=FeatureSettings(**GOLDEN["settings"]), decoding=DecodeSettings(version_2_with_negative=True))
    common = dict(training=training or settings(), predict_batch_size=16)
    return small_job(SquadTask, folder, model_dir, **{**squad, **rows, **common, **changes})


def test_updates_cover_the_epochs_and_no_more():
    config = settings(train_batch_size=5, num_accumulation_steps=2, num_train_epochs=1.1)
    assert config.global_batch_size == 10
    assert config.num_updates(100) == 11  # 100 * 1.1 / 10 is a hair more than 11 in floating point
    assert settings(train_batch_size=1, num_accumulation_steps=1, num_train_epochs=0.29).num_updates(100) == 29
    assert config.num_updates(99) == 10  # the rest of the last epoch does not fill an update
    refused(r"9 rows x 1.1 epochs do not fill one update of 10 rows", config.num_updates, 9)
    assert settings(num_ranks=8).effective_learning_rate == pytest.approx(0.08)


class Numbers:
    """Rows that hold their numbers."""

    def __init__(self, num_rows):
        self.num_tokens = np.ones(num_rows, np.int64)

    def batch(self, numbers):
        return {"input_ids": numbers}


def all_rows(config, num_rows, num_updates):
    """[updates, G]: the global batches that the ranks make together, rank-major."""
    ranks = [TaskData(Numbers(num_rows), config, rank) for rank in range(config.num_ranks)]
    updates = [[rank.row_numbers(update).ravel() for rank in ranks] for update in range(num_updates)]
    return np.array(list(map(np.concatenate, updates)))


def test_order_of_rows_does_not_depend_on_the_split():
    num_rows, num_updates = 30, 9  # 12 rows an update: 108 positions, more than 3 epochs
    alone = all_rows(settings(train_batch_size=12, num_accumulation_steps=1), num_rows, num_updates)
    for batch, accumulation, ranks in ((3, 4, 1), (2, 2, 3), (1, 1, 12)):
        split = settings(train_batch_size=batch, num_accumulation_steps=accumulation, num_ranks=ranks)
        np.testing.assert_array_equal(all_rows(split, num_rows, num_updates), alone)
    epochs = alone.ravel()[:90].reshape(3, 30)
    for epoch in epochs:  # every row once an epoch, though updates run across the borders
        assert sorted(epoch) == list(range(num_rows))
    assert not (epochs[0] == epochs[1]).all()
    assert abs(np.diff(epochs[0])).min() >= 1 and (abs(np.diff(epochs[0])) > 1).mean() > 0.5  # neighbours are parted
    other_seed = all_rows(settings(train_batch_size=12, num_accumulation_steps=1, seed=1), num_rows, 2)
    assert not (other_seed == alone[:2]).all()


@pytest.fixture(scope="module")
def squad(tmp_path_factory):
    return write_squad(tmp_path_factory.mktemp("squad"))


@pytest.fixture(scope="module")
def finished(squad, tmp_path_factory):
    """A run nobody disturbed: 57 windows * 0.6 / 4 = 8 updates."""
    model_dir = tmp_path_factory.mktemp("finished")
    assert job(squad, model_dir).run()
    return model_dir


def test_a_run_leaves_what_is_promised(finished):
    answers = ("predictions.json", "nbest_predictions.json", "null_odds.json")
    for name in ("config.json", "report.html", "training_summary.txt", "eval_results.txt", *answers):
        assert (finished / name).stat().st_size > 0
    for folder in (finished / "checkpoints" / "ckpt-00000008", finished):  # either can be named as --init_checkpoint
        assert (folder / "vocab.txt").is_file() and (folder / "bert_config.json").is_file()
    ids = [qa["id"] for qa in GOLDEN["squad"]["data"][0]["paragraphs"][0]["qas"]]
    for name in answers:
        assert list(json.loads((finished / name).read_text())) == ids
    config, [evaluation] = json.loads((finished / "config.json").read_text()), events(finished, "evaluation")
    assert (config["data"]["instances"], config["settings"]["learning_rate"]) == (NUM_WINDOWS, 0.01)
    assert config["settings"].keys() >= {"train_file", "predict_file", "doc_stride", "n_best_size"}
    assert "features" not in config["settings"] and read_run(finished).task == "answering"
    assert events(finished, "start")[-1]["global_batch_size"] == 4 and evaluation["update"] == 8
    assert {"exact_match", "f1", "HasAns_f1", "best_f1_thresh", "throughput_val", "latency_50_ms"} <= set(evaluation)
    losses = [line["total_loss"] for line in events(finished, "train")]
    assert losses[0] == pytest.approx(np.log(48), abs=0.3)  # nothing is known yet: any of 48 tokens


def test_predicting_again_gives_the_same_answers(finished, squad, tmp_path, capsys):
    job(squad, tmp_path, **from_checkpoint(finished, wants_scores=True, predict_batch_size=7)).run()
    texts, odds = ([json.loads((run / name).read_text()) for run in (tmp_path, finished)] for name in PREDICTIONS)
    assert texts[0] == texts[1] and odds[0] == pytest.approx(odds[1], abs=1e-4)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert json.loads(printed[0])["f1"] == events(tmp_path, "evaluation")[0]["f1"]
    assert events(tmp_path, "evaluation")[0]["update"] == 8


def test_all_ranks_predict_with_the_weights_that_the_chief_has_read(finished, squad, tmp_path, monkeypatch):
    """And wait for as long as that takes it: they might find a newer checkpoint, or another file of this name."""
    done, ranks, load = [], Workers(), jobs.load_trained_weights

    @contextlib.contextmanager
    def keep_alive():
        done.append("begins")
        yield
        done.append("ends")

    ranks.keep_alive, ranks.broadcast = keep_alive, lambda variables: done.append("sends")
    monkeypatch.setattr(jobs, "load_trained_weights", lambda *given: (done.append("reads"), load(*given))[1])
    jobs.run_job(job(squad, tmp_path, **from_checkpoint(finished)), ranks)
    read = done.index("reads")
    assert done[read - 1 : read + 3] == ["begins", "reads", "ends", "sends"]


def test_ranks_with_other_files_to_predict_are_refused(finished, squad, tmp_path, monkeypatch):
    compared = {}
    monkeypatch.setattr(Workers, "require_same", lambda _, facts: compared.update(facts))
    assert job(squad, tmp_path, **from_checkpoint(finished)).run()
    assert compared[str(squad / "squad.json")] == content_key(squad / "squad.json") and compared["tokenizer"]


def test_a_null_threshold_is_advised_where_it_is_better(finished, squad, tmp_path, capsys):
    """With 1000 all is answered, also the question that is made unanswerable, whose odds are the highest; with -1000
    nothing is. Where nothing has an answer, SQuAD's script says 0, with which some would be answered."""
    odds = json.loads((finished / "null_odds.json").read_text())
    above = max(odds, key=odds.__getitem__)
    content = json.loads((squad / "squad.json").read_text())
    questions = [qa for text in content["data"] for paragraph in text["paragraphs"] for qa in paragraph["qas"]]
    for number, (threshold, unanswerable, is_advised) in enumerate(
        [(1e3, {above}, True), (-1e3, {above}, False), (1e3, set(odds), False)]
    ):
        for question in questions:
            if question["id"] in unanswerable:
                question.update(answers=[], is_impossible=True)
        changed = tmp_path / "changed.json"
        changed.write_text(json.dumps(content))
        decoding = DecodeSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
        changes = dict(predict_file=changed, wants_scores=True, decoding=decoding)
        job(squad, tmp_path / str(number), **from_checkpoint(finished, **changes)).run()
        assert ("best null threshold: " in capsys.readouterr().out) == is_advised


def test_answers_that_cannot_be_given_are_counted_before_anything_is_predicted(finished, squad, tmp_path, capsys):
    decoding = DecodeSettings(version_2_with_negative=True, max_answer_length=1)
    assert job(squad, tmp_path / "run", **from_checkpoint(finished, decoding=decoding)).run()
    out = capsys.readouterr().out
    said = re.search(r"squad.json: \d+ question\(s\) have only answers of more tokens than --max_answer_length=1,", out)
    assert said and said.start() < out.index("predicting with")


def test_a_file_without_answers_is_predicted_and_nothing_else(finished, squad, tmp_path, capsys):
    bare = json.loads((squad / "squad.json").read_text())
    for question in bare["data"][0]["paragraphs"][0]["qas"]:
        del question["answers"], question["is_impossible"]
    file = tmp_path / "bare.json"
    file.write_text(json.dumps(bare))

    def run(name, **changes):
        return job(squad, tmp_path / name, predict_file=file, **{**from_checkpoint(finished), **changes}).run()

    assert run("predicted")
    assert (tmp_path / "predicted" / "predictions.json").read_text() == (finished / "predictions.json").read_text()
    assert "not scored: the questions come without answers" in capsys.readouterr().out
    unscored = r"^\S+bare.json: question 'founded' has no field 'answers'; .* cannot be scored"
    refused(unscored, run, "scored", wants_scores=True)
    # Before the training, not after it.
    refused(unscored, run, "both", train_file=squad / "squad.json", wants_scores=True)
    assert not (tmp_path / "both" / "checkpoints").exists()
    refused("bare.json: question 'founded' has no field 'answers'", run, "trained", train_file=file)


def test_stopped_by_a_signal_and_started_again_it_ends_with_the_same_bits(finished, squad, tmp_path, monkeypatch):
    batches = TaskData.batches

    def stopping(*args):
        for number, features in enumerate(batches(*args)):
            if number == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield features

    with monkeypatch.context() as patch:
        patch.setattr(TaskData, "batches", stopping)
        assert not job(squad, tmp_path).run()
    assert not (tmp_path / "predictions.json").exists()
    assert job(squad, tmp_path).run()
    assert events(tmp_path, "start")[-1]["update"] == 4
    assert weights_in(tmp_path, 8) == weights_in(finished, 8)
    assert (tmp_path / "predictions.json").read_text() == (finished / "predictions.json").read_text()


def test_other_settings_in_the_same_folder_are_refused(finished, squad):
    other = job(squad, finished, training=settings(num_train_epochs=0.7), features=FeatureSettings(48, 11, 10))
    refused("num_train_epochs: 0.6 there, 0.7 now; doc_stride: 12 there, 11 now", other.run)


@pytest.mark.parametrize("asked", [False, True])
def test_adam_corrects_its_moments_bias_where_that_is_asked_for(squad, tmp_path, monkeypatch, asked):
    make = mock.Mock(side_effect=UserError("made"))
    monkeypatch.setattr(jobs, "make_optimizer", make)
    refused("made", job(squad, tmp_path, training=settings(adam_bias_correction=asked)).run)
    assert make.call_args.kwargs["bias_correction"] == asked


def test_identity_holds_what_decides_the_result():
    """What may differ between two starts of one run: the split, how often it shows and saves, XLA."""
    base = settings(num_accumulation_steps=4)
    split = dict(num_accumulation_steps=2, train_batch_size=4)
    shown = dict(save_checkpoint_steps=7, display_loss_steps=9, xla_scope="step")
    assert base.identity() == dataclasses.replace(base, **split, **shown).identity()
    changes = dict(seed=1, num_train_epochs=2.0, train_batch_size=3, precision="bf16", learning_rate=0.02)
    for name, value in {**changes, "warmup_proportion": 0.2}.items():
        assert dataclasses.replace(base, **{name: value}).identity() != base.identity()
    # A run that began before there was a choice goes on where it is not asked for.
    assert settings(adam_bias_correction=False).identity()["adam_bias_correction"] is None


def test_rows_are_on_the_host_which_adds_up_their_weights(monkeypatch):
    """Wherever the program computes: here on a device that does not exist, as if it were a GPU."""
    places, constant = [], tf.constant

    def make(value):
        places.append(context.context().device_name)
        return constant(value)

    monkeypatch.setattr(tf, "constant", make)
    with tf.device("/CPU:7"):
        batch = next(TaskData(Numbers(8), settings(), 0).batches(0))
    assert batch.features["example_weights"].shape == [2, 2]
    assert len(places) == 2 and all(place.endswith("CPU:0") for place in places)
