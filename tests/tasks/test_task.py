"""A task that nobody has heard of, with a head of its own: the shared code trains, predicts, scores and exports it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.tensorflow import keras
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import Head
from bert_tf.launch import environment as launch_environment
from bert_tf.memory.split import show_plan
from bert_tf.model.backends.plain import Plain
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.losses import Objective
from bert_tf.programs.settings_page import render
from bert_tf.settings.declaration import setting
from bert_tf.settings.programs import FinetuningOptions
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks import task
from bert_tf.tasks.finetuning import Conclusion, FinetuningTask
from bert_tf.tasks.predict import NO_LOGIT
from tests.jobs import exported, small_job
from tests.refusals import refused
from tests.squad_data import GOLDEN, write_squad

LENGTH = 40


class OddModel(keras.Model):
    """Two logits for each token: call(features, dropout=None) -> [B, S, 2]."""

    def __init__(self, config: BertConfig, backend: Plain, seed: int):
        super().__init__(name="odd", autocast=False)
        self.config, self.backend = config, backend
        self.bert = BertEncoder(config, backend, seed)
        self.bert.pooler.trainable = False
        self.kernel = tf.Variable(tf.zeros([config.hidden_size, 2]), name="cls/odd/output_weights")

    def call(self, features, dropout=None):
        return tf.matmul(tf.cast(self.bert.hidden_states(features, dropout)[-1], tf.float32), self.kernel)


class OddObjective(Objective):
    denominator_names = ("tokens",)

    def local_denominators(self, features):
        return np.array([features["input_mask"].numpy().sum()], np.float32)

    def __call__(self, model, features, dropout):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(features["is_odd"], model(features, dropout=dropout))
        loss = tf.reduce_sum(losses * tf.cast(features["input_mask"], tf.float32))[tf.newaxis]
        return loss, loss


class OddRows:
    """Rows of 3 to 40 tokens, made from a seed."""

    def __init__(self, seed: int, num_rows: int = 24):
        rng = np.random.default_rng(seed)
        self.num_tokens = rng.integers(3, LENGTH + 1, num_rows)
        self.ids = rng.integers(5, len(GOLDEN["vocab"]), [num_rows, LENGTH]).astype(np.int32)
        self.tokens = self.ids.ravel()

    def batch(self, rows):
        mask = (np.arange(LENGTH) < self.num_tokens[rows][..., None]).astype(np.int32)
        ids = self.ids[rows] * mask
        return {"input_ids": ids, "input_mask": mask, "segment_ids": 0 * ids, "is_odd": ids % 2}


@dataclasses.dataclass(frozen=True)
class OddOptions(FinetuningOptions):
    """Has a setting of its own."""

    oddity: int = setting(1, "How odd.", at_least=1, variable="ODDITY")


@dataclasses.dataclass
class Odd(FinetuningTask):
    """Which tokens have odd numbers. Its files hold seeds."""

    settings, main_score = (FinetuningConfig, OddOptions), "accuracy"
    name, head = "odd", Head("oddity", "cls/odd/", outputs=["logits"], uses_pooler=False)

    def read(self, use, paths):
        return int(paths[0].read_text()), ""

    def rows_of(self, content, *, show_progress=False):
        return OddRows(content)

    def make_model(self, config, backend, seed):
        return OddModel(config, backend, seed)

    def make_objective(self):
        return OddObjective()

    def conclude(self, use, outputs):
        [logits], rows = outputs, self.rows[use]
        batch = rows.batch(np.arange(len(logits)))
        is_token = batch["input_mask"] > 0
        assert logits.shape == (24, LENGTH, 2) and (logits[is_token] != NO_LOGIT).all()
        guesses = logits.argmax(axis=2)
        files = {"guesses.json": json.dumps(guesses.tolist())}
        return Conclusion(files, "guesses", scores={"accuracy": float((guesses == batch["is_odd"])[is_token].mean())})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_squad(tmp_path_factory.mktemp("odd"), hidden_size=32)
    for name, seed in (("train", 1), ("test", 2)):
        (folder / name).write_text(str(seed))
    return folder


def register(monkeypatch):
    """The task's folder, and the one line."""
    for name, content in {"": {}, ".task": {"Odd": Odd}, ".settings": {"SETTINGS": (OddOptions,)}}.items():
        module = types.ModuleType(f"bert_tf.tasks.odd{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(task.TASKS, "odd", "bert_tf.tasks.odd.task:Odd")


def job(folder, model_dir, monkeypatch, **files):
    register(monkeypatch)
    training = FinetuningConfig(0.003, 4, 1, 1, num_train_epochs=20.0, display_loss_steps=40, save_checkpoint_steps=60)
    settings = dict(training=training, predict_batch_size=8, max_seq_length=LENGTH)
    return small_job(task.find_task_class("odd"), folder, model_dir, **settings, **files)


def test_it_is_trained_predicted_scored_and_exported(folder, tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert job(folder, run, monkeypatch, train_file=folder / "train", predict_file=folder / "test").run()
    assert float((run / "eval_results.txt").read_text().split()[2]) > 0.9
    assert json.loads((run / "config.json").read_text())["identity"]["task"] == "odd"
    later = job(folder, tmp_path / "later", monkeypatch, predict_file=folder / "test", init_checkpoint=str(run))
    assert later.run()
    assert (tmp_path / "later/guesses.json").read_text() == (run / "guesses.json").read_text()
    settings = exported(job(folder, run, monkeypatch), tmp_path / "export", "odd").settings
    assert settings["outputs"] == ["logits"] and settings["updates_applied"] == 120
    none = job(folder, tmp_path / "none", monkeypatch, predict_file=folder / "test")
    refused("has no oddity head|holds no checkpoint to predict with", none.run)


def test_its_settings_are_known_to_the_launchers(monkeypatch):
    register(monkeypatch)
    environment = importlib.reload(launch_environment)
    try:
        assert environment.LaunchEnvironment({"ODDITY": "3"}).given("oddity") == 3
        refused("ODDITY=0: must be a whole number of at least 1", environment.LaunchEnvironment, {"ODDITY": "0"})
    finally:
        monkeypatch.undo()
        importlib.reload(launch_environment)


def test_it_is_planned_and_documented_by_its_folder_and_entry_alone(folder, monkeypatch):
    register(monkeypatch)
    options = OddOptions(bert_config_file=str(folder / "bert_config.json"), gpu_memory_gib=1.0)
    odd = task.find_task_class("odd")
    model = odd.plan_config(options)
    shown = show_plan(FinetuningConfig(), options, lambda config: odd.workload(config, options, model))
    assert shown.startswith("model: ") and "sequences of 128" in shown
    assert "| `--oddity` | How odd. | 1 |" in "\n".join(render({"Odd": task.settings_classes("odd")}))
