"""Reads commands (JSON: lists of [words, environment]) from standard input, and tries each as far as a test can.

A plan (--plan, launchers under DRY_RUN=1) is really made; of any other call the arguments are parsed by its program.
The first one that is refused ends this process with its message. One process for all, because TensorFlow is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

from bert_tf.programs import prepare
from bert_tf.programs.flags import parse_flags
from bert_tf.tasks.task import settings_classes

ROOT = Path(__file__).resolve().parent.parent


class Parsed(Exception):
    """Raised in place of what a program would do with its arguments."""


TASKS = {"pretraining": "pretraining", "squad": "squad", "classifier": "glue", "ner": "entities", "swag": "choices"}


def run_training(program: str, arguments: list[str]) -> None:
    """run_pretraining.py and the like."""
    name = program[len("run_") : -len(".py")]
    if parse_flags([program, *arguments], "", *settings_classes(TASKS[name])).plan:
        runpy.run_module(f"bert_tf.programs.{name}")["main"]([program, *arguments])


def run_argparse(run, *place: str) -> None:
    """A module or file with an argparse parser, up to its arguments; launchers, which have none, to their end."""
    try:
        run(*place, run_name="__main__")
    except Parsed:
        pass
    except SystemExit as ended:
        if ended.code not in (0, None):
            raise


def stop_after_parsing(parse):
    def parse_args(*arguments, **named):
        raise Parsed(parse(*arguments, **named))

    return parse_args


def main() -> None:
    argparse.ArgumentParser.parse_args = stop_after_parsing(argparse.ArgumentParser.parse_args)
    clean = dict(os.environ)
    for words, environment in json.load(sys.stdin):
        os.environ.clear()
        os.environ.update({**clean, **environment})
        print("+", *words, file=sys.stderr, flush=True)
        sys.argv = words
        if words[0] == "-m":
            sys.argv = words[1:]
            run_argparse(runpy.run_module, words[1])
        elif words[0].startswith("run_"):
            run_training(words[0], words[1:])
        elif words[0] == "data/bertPrep.py":
            prepare.parse(words[1:])
        else:
            sys.path.insert(0, str((ROOT / words[0]).parent))
            run_argparse(runpy.run_path, str(ROOT / words[0]))


if __name__ == "__main__":
    main()
