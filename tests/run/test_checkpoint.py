import errno
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.initialise import find_weights
from bert_tf.model.heads import PretrainingModel
from bert_tf.run.checkpoint import PREFIX, CheckpointFolder, find_damage, load_weights, open_checkpoint, read_state
from bert_tf.run.evaluations import EVALUATIONS, Evaluations, read_evaluations
from bert_tf.run.variables import save_tensors
from tests.jobs import changed_json
from tests.refusals import refused
from tests.small_models import small_config

CONFIG = small_config(hidden_size=16, positions=8)


def folder(path, keep=3):
    companions = {"bert_config.json": CONFIG.to_json(), "vocab.txt": "a\nb\n"}
    return CheckpointFolder(path / "checkpoints", keep=keep, vocab_size=CONFIG.vocab_size, companions=companions)


def save(checkpoints, *contents):
    return checkpoints.write(checkpoints.copy(*contents))


def test_round_trip_is_bitwise_and_files_hold_the_true_vocabulary(tmp_path):
    model = PretrainingModel(CONFIG, seed=1)
    checkpoints = folder(tmp_path)
    path = save(checkpoints, 7, model.variables, {"batches_consumed": 9})
    other = PretrainingModel(CONFIG, seed=2)
    state = checkpoints.restore(path, other.variables)
    assert state == {"batches_consumed": 9, "updates_applied": 7} == read_state(path)
    for mine, theirs in zip(model.variables, other.variables):
        np.testing.assert_array_equal(mine, theirs)
    reader = tf.train.load_checkpoint(str(path / PREFIX))  # without any code of ours
    assert reader.get_variable_to_shape_map()["bert/embeddings/word_embeddings"] == [101, 16]
    assert reader.get_variable_to_shape_map()["cls/predictions/output_bias"] == [101]
    assert BertConfig.from_json_file(path / "bert_config.json") == CONFIG


@pytest.mark.parametrize("name", ["a[1]", "a\\b", "a*", "a?", "a]", "[a", "{a,b}"])
def test_a_path_that_tensorflow_takes_for_a_pattern(tmp_path, name):
    """What is refused is what it cannot read."""
    prefix = tmp_path / name / "bert_model.ckpt"
    prefix.parent.mkdir()
    save_tensors(prefix, {"x": tf.constant(1.0)})
    try:
        is_read = tf.train.load_checkpoint(str(prefix)).has_tensor("x")
    except (tf.errors.OpError, RuntimeError):
        is_read = False
    if is_read:
        assert open_checkpoint(prefix).read("x") == 1
    else:
        refused("checkpoint .*bert_model.ckpt: TensorFlow cannot read .* name a link to it", open_checkpoint, prefix)


def test_newest_are_kept_and_a_save_that_fails_leaves_them(tmp_path, monkeypatch):
    model, checkpoints, kept = PretrainingModel(CONFIG), folder(tmp_path, keep=2), ["ckpt-00000010", "ckpt-00000015"]
    for update in (5, 10, 15):
        save(checkpoints, update, model.variables, {})
    full = tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    for place, name, error in ((os, "fsync", OSError(28, "No space left on device")), (tf.raw_ops, "SaveV2", full)):
        monkeypatch.setattr(place, name, mock.Mock(side_effect=error))
        refused("ckpt-00000020 could not be written .*No space left", save, checkpoints, 20, model.variables, {})
        monkeypatch.undo()
    assert [path.name for path in checkpoints.finished()] == kept == sorted(os.listdir(tmp_path / "checkpoints"))
    assert not find_damage(checkpoints.finished()[-1])


def test_an_old_one_that_cannot_be_deleted_is_deleted_later(tmp_path, monkeypatch):
    """As while another program of Windows looks into the folder."""
    model, checkpoints, rename = PretrainingModel(CONFIG), folder(tmp_path, keep=1), os.rename
    old = save(checkpoints, 5, model.variables, {})

    def refuse_old(source, target):
        if source == old:
            raise PermissionError(errno.EACCES, "Permission denied", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_old)
    new = save(checkpoints, 10, model.variables, {})
    assert checkpoints.finished() == [old, new] and not find_damage(old)
    monkeypatch.undo()
    assert [save(checkpoints, 15, model.variables, {})] == checkpoints.finished()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "cut manifest", "other manifest"])
def test_damaged_newest_is_named_and_the_one_before_used(tmp_path, damage):
    model, checkpoints = PretrainingModel(CONFIG), folder(tmp_path)
    good, bad = save(checkpoints, 1, model.variables, {}), save(checkpoints, 2, model.variables, {})
    victim = bad / ("manifest.json" if "manifest" in damage else f"{PREFIX}.data-00000-of-00001")
    data = bytearray(victim.read_bytes())
    data[100] ^= 1
    new = {"flip": data, "other manifest": b'{"sha256": []}'}.get(damage, data[:-10])
    victim.unlink()
    if damage != "remove":
        victim.write_bytes(new)
    assert find_damage(bad) and "Errno" not in find_damage(bad) and not find_damage(good)
    newest, (complaint,) = checkpoints.newest_undamaged()
    assert newest == good and str(bad) in complaint
    refused("damaged", find_weights, bad)
    assert find_weights(tmp_path).folder == good


def test_what_is_saved_stays_beside_a_damaged_newer_one(tmp_path):
    """And the best one, which was scored before."""
    model, checkpoints = PretrainingModel(CONFIG), folder(tmp_path, keep=1)
    best = save(checkpoints, 2, model.variables, {})
    Evaluations("loss", True, "data", {2: 1.0}).write(checkpoints.folder)
    (save(checkpoints, 20, model.variables, {}) / "manifest.json").unlink()
    for update in (11, 12):
        saved = save(checkpoints, update, model.variables, {})
        assert checkpoints.newest_undamaged()[0] == saved
        assert best.is_dir()


def test_saving_again_replaces_only_what_is_damaged(tmp_path):
    model, checkpoints = PretrainingModel(CONFIG), folder(tmp_path)
    path = save(checkpoints, 1, model.variables, {"batches_consumed": 1})
    assert save(checkpoints, 1, model.variables, {"batches_consumed": 2}) == path
    assert read_state(path)["batches_consumed"] == 1
    (path / "vocab.txt").unlink()
    assert save(checkpoints, 1, model.variables, {"batches_consumed": 2}) == path
    assert read_state(path)["batches_consumed"] == 2 and not find_damage(path)
    assert os.listdir(tmp_path / "checkpoints") == ["ckpt-00000001"]


@pytest.mark.parametrize("change, words", [(dict(vocab_size=90), "vocabulary"), (dict(hidden_size=32), "model size")])
def test_another_models_checkpoint_is_refused_and_nothing_assigned(tmp_path, change, words):
    path = save(folder(tmp_path), 1, PretrainingModel(CONFIG, seed=1).variables, {})
    other = PretrainingModel(BertConfig(**{**CONFIG.to_dict(), **change}), seed=2)
    before = [variable.numpy() for variable in other.variables]
    refused(words, load_weights, open_checkpoint(path / PREFIX), other.variables, other.config.vocab_size)
    for old, variable in zip(before, other.variables):
        np.testing.assert_array_equal(old, variable)


@pytest.mark.parametrize(
    "changes", [{"lower_is_better": 0}, {"lower_is_better": "no"}, {"by_update": {"2": 10**400}}, {"by_update": []}]
)
def test_scores_that_a_run_has_not_written_are_refused(tmp_path, changes):
    """Without the direction of the score another checkpoint would be the best."""
    Evaluations("loss", True, "data", {2: 1.0, 4: 2.0}).write(tmp_path)
    changed_json(tmp_path / EVALUATIONS, **changes)
    refused(f"{EVALUATIONS} is not as a run has written it.*; remove it", read_evaluations, tmp_path)
