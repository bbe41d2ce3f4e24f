"""One update made again from a run folder: the bits of what the run logged, and why it failed."""

import dataclasses
import json
import re

import numpy as np
import pytest

from bert_tf.base.errors import UserError
from bert_tf.contrib.replay import replay as module
from bert_tf.contrib.replay.replay import replay
from bert_tf.settings.training import PretrainingConfig
from tests.jobs import events
from tests.pretraining_data import ROOMY, TINY, instances, pretrain, write_dataset, write_records
from tests.refusals import refused
from tests.training.test_training import SETTINGS


def train(dataset, model_dir, bert_config=TINY, **changes):
    usual = dict(num_train_steps=8, save_checkpoint_steps=3, display_loss_steps=1, keep_checkpoints=2)
    file = dataset / "model.json"
    file.write_text(bert_config.to_json())
    config = PretrainingConfig(**{**SETTINGS, **usual, "num_accumulation_steps": 2, **changes})
    pretrain(config, model_dir, input_files=str(dataset / "training"), bert_config_file=str(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Eight updates on token files (of records: below); the checkpoints 6 and 8 are left."""
    dataset = write_dataset(tmp_path_factory.mktemp("dataset"), data_format="tokens")
    model_dir = tmp_path_factory.mktemp("run")
    train(dataset, model_dir)
    return model_dir


def files(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def assert_as_logged(attempts, run, update):
    """And returns the attempt."""
    (attempt,) = attempts
    assert {"total_loss", "mlm_loss", "nsp_loss", "gradient_norm", "learning_rate"} <= set(attempt.figures)
    (line,) = (line for line in events(run, "train") if line["update"] == update)
    assert attempt.figures == {name: line[name] for name in attempt.figures}
    return attempt


def test_it_gives_the_bits_that_were_logged_and_changes_nothing(run):
    before = files(run)
    started_from, attempts = replay(run, 8)
    assert files(run) == before and started_from.endswith("ckpt-00000006")
    assert_as_logged(attempts, run, 8)


def test_a_run_of_two_ranks_is_made_again_by_one_process(run, tmp_path):
    """Its micro-batches are the same ones, so that here even the bits are."""
    record = json.loads((run / "config.json").read_text())
    record["settings"].update(num_ranks=2, num_accumulation_steps=1, learning_rate=0.005)
    (tmp_path / "config.json").write_text(json.dumps(record))
    started_from, attempts = replay(tmp_path, 3)
    attempt = assert_as_logged(attempts, run, 3)
    assert "start of the run" in started_from and sum(map(num_records, attempt.records)) == 8
    assert "first tensor that is not finite: none" in attempt.describe()
    rate = attempt.figures["learning_rate"]
    for name, gradient, weight, change, trust_ratio in attempt.norms:
        assert gradient > 0 and trust_ratio > 0, name
        if weight:  # LAMB changes a variable by the rate times its norm
            assert change == pytest.approx(rate * weight, rel=1e-4), name


def test_a_packed_update_gives_the_bits_that_were_logged(tmp_path):
    """In fewer micro-batches than an unpacked one, whose number varies."""
    records, run, length = write_dataset(tmp_path / "records", schema=ROOMY), tmp_path / "run", ROOMY.sequence_length
    split = dict(max_seq_length=length, train_batch_size=2, num_accumulation_steps=8)
    train(records, run, dataclasses.replace(TINY, max_position_embeddings=length), packing=True, **split)
    assert sum(map(num_records, assert_as_logged(replay(run, 8)[1], run, 8).records)) == 16


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
    assert "first that of bert/embeddings/word_embeddings (" in message
    assert f"{poisoned / 'training' / 'x_training_0.tfrecord'} " in message
    update = int(message.split("--replay_update=")[1].split()[0])
    _, attempts = replay(tmp_path, update)
    assert [attempt.batch_number for attempt in attempts] == list(range(update - 1, update + 2))
    for attempt in attempts:
        assert attempt.non_finite.startswith("gradient of bert/embeddings/word_embeddings")
        assert all(int(name.split()[1]) >= 64 for name in attempt.records)
        assert "so this batch was skipped and changed nothing" in attempt.describe()

    def attempt(training, state, *others, attempt=module._attempt):
        if state.batches_consumed == update - 1:  # as a checkpoint written between skipped batches has it
            state.loss_scale.consecutive_skips.assign(2)
        return attempt(training, state, *others)

    monkeypatch.setattr(module, "_attempt", attempt)
    assert len(replay(tmp_path, update)[1]) == 3, "no error that recommends this very replay"


def test_updates_folders_and_records_that_are_not_the_run_s(run, tmp_path):
    for update in (0, 9):
        refused("has the updates 1 to 8", replay, run, update)
    refused("cannot be read", replay, tmp_path, 1)
    other = write_dataset(tmp_path / "other", shards=(5, 6), data_format="tokens")
    refused(r"\(data differ\); name the run's own records with --input_files", replay, run, 1, str(other / "training"))
    (tmp_path / "config.json").write_text("{}")
    refused("is not what this version writes", replay, tmp_path, 1)
