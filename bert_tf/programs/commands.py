"""The commands that ``pip install`` adds, and what run_*.py and data/bertPrep.py call."""

from __future__ import annotations

import functools
import runpy
import sys

from bert_tf.base.errors import require_modules


def _run(module: str, *packages: str) -> None:
    """Runs a module as the main program; `packages` are those that it cannot start without."""
    require_modules(*packages)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _launch(recipe: str) -> None:
    """Runs a launcher with the command line's arguments."""
    sys.argv.insert(1, recipe)
    _run("bert_tf.launch")


_TRAINING = ("numpy", "tensorflow", "tqdm")
bertprep = functools.partial(_run, "bert_tf.programs.prepare", "numpy", "tokenizers", "tqdm")
bert_pretrain = functools.partial(_run, "bert_tf.programs.pretraining", *_TRAINING)
bert_squad = functools.partial(_run, "bert_tf.programs.squad", *_TRAINING)
bert_classify = functools.partial(_run, "bert_tf.programs.classifier", *_TRAINING)
bert_ner = functools.partial(_run, "bert_tf.programs.ner", *_TRAINING)
bert_swag = functools.partial(_run, "bert_tf.programs.swag", *_TRAINING)
bert_report = functools.partial(_run, "bert_tf.report")
bert_doctor = functools.partial(_run, "bert_tf.doctor")
bert_launch = functools.partial(_run, "bert_tf.launch")
bert_pretrain_lamb = functools.partial(_launch, "pretraining_lamb")
bert_pretrain_adam = functools.partial(_launch, "pretraining_adam")
