"""The commands that ``pip install`` adds: each runs its program like ``python PROGRAM`` in a checkout."""

from __future__ import annotations

import functools
import runpy


def _run(module: str) -> None:
    # As __main__, because absl's --help shows the flags and docstring of the main program.
    runpy.run_module(module, run_name="__main__", alter_sys=True)


bertprep = functools.partial(_run, "bert_tf.programs.prepare")
bert_pretrain = functools.partial(_run, "bert_tf.programs.pretraining")
bert_squad = functools.partial(_run, "bert_tf.programs.squad")
bert_classify = functools.partial(_run, "bert_tf.programs.classifier")
bert_report = functools.partial(_run, "bert_tf.report")
bert_doctor = functools.partial(_run, "bert_tf.doctor")
