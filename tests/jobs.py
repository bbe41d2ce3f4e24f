"""Jobs of fine-tuning tasks, from settings that name the job's and the task's; their models, and what they leave."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_tf.interchange.saved_model import load_exported
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import PREFIX
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks import job as jobs
from bert_tf.tasks.finetuning import PREDICT, TRAIN
from bert_tf.tasks.job import converse, export_task
from tests import processes
from tests.processes import ROOT


class Job(jobs.Job):
    def run(self) -> bool:
        return jobs.run_job(self, Workers())

    def starting_from(self, folder) -> Job:
        return dataclasses.replace(self, options=dataclasses.replace(self.options, init_checkpoint=str(folder)))


def from_checkpoint(start, **changes):
    """The settings of a job that takes the model and its files from a folder, and trains nothing."""
    return dict(bert_config_file=None, vocab_file=None, train_file=None, init_checkpoint=str(start), **changes)


# Of updates of four rows in two micro-batches.
_TRAINING = dict(learning_rate=1e-3, num_train_epochs=1.0, train_batch_size=2, num_accumulation_steps=2)
_TRAINING |= dict(save_checkpoint_steps=2, display_loss_steps=1)


def short_training(**changes):
    return FinetuningConfig(**{**_TRAINING, "num_ranks": 1, **changes})


def command_of(script, folder, model_dir, **flags):
    """The command of a fine-tuning program for the model in a folder."""
    model = dict(bert_config_file=folder / "bert_config.json", vocab_file=folder / "vocab.txt", model_dir=model_dir)
    flags = {**model, **_TRAINING, **flags}
    spelled = (f"--{name}={value}" for name, value in flags.items() if value is not None)
    return [sys.executable, str(ROOT / script), *spelled]


def small_job(task_class, folder, model_dir, **changes):
    """A job for the model in a folder, of short training and small batches of prediction.

    Its task has the files `files`, or `train_file` and `predict_file`.
    """
    model = dict(bert_config_file=str(folder / "bert_config.json"), vocab_file=str(folder / "vocab.txt"))
    settings = {**model, "model_dir": model_dir, "training": short_training(), "predict_batch_size": 3, **changes}
    training, of_task = settings.pop("training"), {field.name for field in dataclasses.fields(task_class)}
    names = {field.name for field in dataclasses.fields(task_class.settings[1])} & {*settings}
    options = task_class.settings[1](**{name: settings[name] for name in names})
    given = {use: settings.get(f"{use}_file") for use in (TRAIN, PREDICT)}
    files = {use: [Path(path)] for use, path in given.items() if path}
    assert {*settings} <= names | of_task | {"train_file", "predict_file"}
    task = task_class(settings.pop("files", files), **{name: settings[name] for name in of_task & {*settings}})
    return Job(training, options, task)


def exported(job, folder, task):
    """What the job exports to a folder, read again."""
    export_task(job, Workers(), folder, None)
    return load_exported(folder, task)


def changed_json(path, **changes):
    """The file's object with some values changed, or left out where they are None."""
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    return values


def typed(job, lines, monkeypatch, capsys):
    """What is printed at a prompt at which these lines are typed."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    capsys.readouterr()
    converse(job, Workers())
    return capsys.readouterr().out.splitlines()


def assert_split_does_not_matter(finished, job, folder):
    """`job`, called with a run folder and a training, learns with another split what a finished job has learned."""
    training = short_training(train_batch_size=4, num_accumulation_steps=1)
    assert job(folder, training=training, predict_file=None).run()
    paths = (str(run / "checkpoints/ckpt-00000004" / PREFIX) for run in (finished, folder))
    one, other = map(tf.train.load_checkpoint, paths)
    for name in one.get_variable_to_shape_map():
        np.testing.assert_allclose(one.get_tensor(name), other.get_tensor(name), atol=2e-6, err_msg=name)


def killed_and_finished(command, model_dir):
    """Kills the command at its first checkpoint, and runs it again; returns how that ended."""
    program = processes.Program(command)
    processes.wait_for(lambda: list(model_dir.glob("checkpoints/ckpt-*")))
    program.send_signal(signal.SIGKILL)
    program.wait(60)
    assert not (model_dir / "eval_results.txt").exists(), "it was killed too late"
    return processes.run(command)


def weights_in(model_dir, update):
    return (model_dir / f"checkpoints/ckpt-{update:08d}/{PREFIX}.data-00000-of-00001").read_bytes()


def scores_in(model_dir):
    lines = (model_dir / "eval_results.txt").read_text().splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


def events(model_dir, kind):
    """The events of a kind in a run's metrics.jsonl."""
    records = map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["event"] == kind]
