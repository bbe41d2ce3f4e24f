"""One update made again from a run folder: the bits of what the run logged, and why it failed."""

import dataclasses
import json
import re

import numpy as np
import pytest

from bert_tf.base.errors import UserError
from bert_tf.ranks.workers import Workers
from bert_tf.records.schema import RecordSchema
from bert_tf.settings.training import PretrainingConfig
from bert_tf.training.pretraining import PretrainingInputs, pretrain
from bert_tf.training.replay import Replay
from tests.pretraining_data import ROOMY, TINY, instances, open_dataset, write_dataset, write_records
from tests.refusals import refused
from tests.training.test_training import lines


def train(dataset, model_dir, bert_config=TINY, **changes):
    config = PretrainingConfig(
        **{
            **dict(
                num_train_steps=8,
                warmup_steps=2,
                learning_rate=0.01,
                train_batch_size=4,
                num_accumulation_steps=2,
                num_ranks=1,
                max_seq_length=16,
                max_predictions_per_seq=3,
                save_checkpoint_steps=3,
                display_loss_steps=1,
                keep_checkpoints=2,
            ),
            **changes,
        }
    )
    inputs = PretrainingInputs(
        bert_config, {}, open_dataset(dataset, schema=RecordSchema(config.max_seq_length, 3)), None, None
    )
    pretrain(config, inputs, model_dir, Workers())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Eight updates on token files (of records: below); the checkpoints 6 and 8 are left."""
    dataset = write_dataset(tmp_path_factory.mktemp("dataset"), data_format="tokens")
    model_dir = tmp_path_factory.mktemp("run")
    train(dataset, model_dir)
    return model_dir


def files(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def logged(run, update):
    """The line of an update."""
    return next(line for line in lines(run, "train") if line["update"] == update)


def assert_as_logged(replay, run):
    (attempt,) = replay.attempts
    assert {"total_loss", "mlm_loss", "nsp_loss", "gradient_norm", "learning_rate"} <= set(attempt.figures)
    line = logged(run, replay.update)
    assert attempt.figures == {name: line[name] for name in attempt.figures}


def test_it_gives_the_bits_that_were_logged_and_changes_nothing(run):
    before = files(run)
    again = Replay(run, 8)
    assert files(run) == before
    assert again.started_from.endswith("ckpt-00000006")
    assert_as_logged(again, run)


def test_a_run_of_two_ranks_is_made_again_by_one_process(run, tmp_path):
    """Its micro-batches are the same ones, so that here even the bits are."""
    record = json.loads((run / "config.json").read_text())
    record["settings"].update(num_ranks=2, num_accumulation_steps=1, learning_rate=0.005)
    (tmp_path / "config.json").write_text(json.dumps(record))
    again = Replay(tmp_path, 3)
    assert "start of the run" in again.started_from
    assert_as_logged(again, run)
    (attempt,) = again.attempts
    assert sum(map(num_records, attempt.records)) == 8
    assert "first tensor that is not finite: none" in "\n".join(again.describe())
    rate = attempt.figures["learning_rate"]
    for name, gradient, weight, change, trust_ratio in attempt.norms:
        assert gradient > 0 and trust_ratio > 0, name
        if weight:  # LAMB changes a variable by the rate times its norm
            assert change == pytest.approx(rate * weight, rel=1e-4), name


def test_a_packed_update_gives_the_bits_that_were_logged(tmp_path):
    """In fewer micro-batches than an unpacked one, whose number varies."""
    records = write_dataset(tmp_path / "records", schema=ROOMY)
    train(
        records,
        tmp_path / "run",
        dataclasses.replace(TINY, max_position_embeddings=ROOMY.sequence_length),
        packing=True,
        max_seq_length=ROOMY.sequence_length,
        train_batch_size=2,
        num_accumulation_steps=8,
    )
    again = Replay(tmp_path / "run", 8)
    assert_as_logged(again, tmp_path / "run")
    assert sum(map(num_records, again.attempts[0].records)) == 16


def num_records(name):
    first, last = re.search(r" (\d+)(?: to (\d+))?( of copy [01])?$", name).groups()[:2]
    return int(last or first) - int(first) + 1


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """Records of which those from number 64 on give a loss that is no number."""
    folder = write_dataset(tmp_path_factory.mktemp("poisoned"), shards=(1,))
    rows = instances(192)
    rows["masked_lm_weights"][64:] = np.nan
    write_records(folder / "training" / "x_training_0.tfrecord", rows)
    return folder


def test_three_skips_stop_the_run_and_are_explained(poisoned, tmp_path, monkeypatch):
    with pytest.raises(UserError) as error:
        train(poisoned, tmp_path, num_train_steps=100, seed=3)
    message = str(error.value)
    assert "3 updates in a row had a non-finite gradient" in message
    assert "there is no sound checkpoint" in message
    assert "first in bert/embeddings/word_embeddings (" in message
    assert f"{poisoned / 'training' / 'x_training_0.tfrecord'} " in message
    update = int(message.split("--replay_update=")[1].split()[0])
    again = Replay(tmp_path, update)
    assert [attempt.batch_number for attempt in again.attempts] == list(range(update - 1, update + 2))
    for attempt in again.attempts:
        assert attempt.non_finite.startswith("gradient of bert/embeddings/word_embeddings")
        assert all(int(name.split()[1]) >= 64 for name in attempt.records)
    assert "this batch was skipped" in "\n".join(again.describe())

    def attempt(replay, attempt=Replay._attempt):
        if not replay.attempts:  # as a checkpoint written between skipped batches has it
            replay._state.loss_scale.consecutive_skips.assign(2)
        return attempt(replay)

    monkeypatch.setattr(Replay, "_attempt", attempt)
    assert len(Replay(tmp_path, update).attempts) == 3, "no error that recommends this very replay"


@pytest.mark.parametrize("update", [0, 9])
def test_updates_that_are_none(run, update):
    refused("has the updates 1 to 8", Replay, run, update)


def test_folders_and_records_that_are_not_the_run_s(run, tmp_path):
    refused("cannot be read", Replay, tmp_path, 1)
    other = write_dataset(tmp_path / "other", shards=(5, 6), data_format="tokens")
    refused(r"\(data differ\); name the run's own records with --input_files", Replay, run, 1, str(other / "training"))
    (tmp_path / "config.json").write_text("{}")
    refused("is not what this version writes", Replay, tmp_path, 1)
