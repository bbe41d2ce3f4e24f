#!/usr/bin/env python3
"""Prepares pre-training data, stage by stage; each can be killed and run again.

    python3 data/bertPrep.py --action download --dataset sample
    python3 data/bertPrep.py --action text_formatting --dataset sample
    python3 data/bertPrep.py --action sharding --dataset sample
    python3 data/bertPrep.py --action create_vocab --dataset sample --vocab_size 4000
    python3 data/bertPrep.py --action create_tfrecord_files --dataset sample --max_seq_length 128

What is there: --action status; whether it is whole: --action verify [--repair]; whether it looks
right: --action inspect.

All files lie below BERT_PREP_WORKING_DIR, by default the checkout's data/.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

CHECKOUT = Path(os.path.realpath(__file__)).parent.parent
# Python puts the script's own folder here, where modules would be found under a second name.
sys.path[0] = str(CHECKOUT)

try:
    from bert_tf.base.errors import UserError, exit_on_user_error
    from bert_tf.base.machine import count_cores
    from data import stages
    from data.checking import inspection, status, verification
    from data.corpora import custom, text_files
    from data.instances import pretraining_examples, vocabulary
    from data.sharding import sentences
except ModuleNotFoundError as error:
    print(
        f"error: Python package {error.name} is missing in {sys.executable}: run bash "
        "scripts/setup.sh, then source .venv/bin/activate",
        file=sys.stderr,
    )
    sys.exit(2)

ACTIONS = {
    **stages.MAKERS,
    "status": status.run_status,
    "verify": verification.run_verify,
    "inspect": inspection.run_inspect,
}
# What these look at without --dataset.
OF_ALL_DATASETS = ("status", "verify")


def _comma_separated(value: str) -> list[str]:
    return [part for part in value.split(",") if part]


def _add_common_options(add: Callable[..., Any]) -> None:
    add("--action", required=True, choices=ACTIONS)
    add(
        "--dataset",
        type=str.lower,
        choices=stages.DATASETS,
        help="in any case; status and verify: all that are there where none is named",
    )
    add("--n_processes", type=int, default=count_cores(), help="worker processes; %(default)s")
    add(
        "--dask_scheduler",
        metavar="ADDRESS",
        help="hand the work to the workers of this Dask scheduler instead: tcp://HOST:PORT, or the file that dask "
        "scheduler --scheduler-file writes",
    )
    add("--random_seed", type=int, default=12345, help="%(default)s")


def _add_formatting_options(add: Callable[..., Any]) -> None:
    add(
        "--input_files",
        type=_comma_separated,
        default=[],
        help="dataset custom: files and folders of .txt or .jsonl files, separated by commas",
    )
    add(
        "--input_format",
        choices=custom.INPUT_FORMATS,
        default="auto",
        help="dataset custom: a document is a file, a line, between blank lines (paragraph), or the "
        "text of a JSON object on its line (jsonl); auto: jsonl by the suffix, else a file where "
        "there are several, else by blank lines where there are any",
    )
    add(
        "--skip_wikiextractor",
        type=int,
        nargs="?",
        const=1,
        default=0,
        choices=(0, 1),
        help="Wikipedia: read what wikiextractor has written below extracted/, not the dump",
    )
    add("--fallback_encoding", help="of files that are not UTF-8 and do not state another")
    add(
        "--encoding_errors",
        choices=("strict", "replace"),
        default="strict",
        help="replace: U+FFFD for what cannot be decoded, instead of an error",
    )
    add("--keep_duplicates", action="store_true", help="keep documents that occurred before")


def _add_sharding_options(add: Callable[..., Any]) -> None:
    default_training, default_test = stages.DEFAULT_SHARDS
    add("--n_training_shards", type=int, help=f"{default_training}; sample: {stages.SAMPLE_SHARDS[0]}")
    add("--n_test_shards", type=int, help=f"{default_test}; sample: {stages.SAMPLE_SHARDS[1]}")
    add("--fraction_test_set", type=float, default=0.1, help="%(default)s")
    add("--segmentation_method", choices=sentences.METHODS, default="rules", help="%(default)s")


def _add_record_options(add: Callable[..., Any]) -> None:
    add(
        "--vocab_file",
        help="create_vocab writes it, create_tfrecord_files reads it; "
        "SentencePiece's where the name ends in .model, else WordPiece's",
    )
    add("--vocab_size", type=int, default=vocabulary.DEFAULT_VOCAB_SIZE, help="%(default)s")
    add("--do_lower_case", type=int, choices=(0, 1), default=1, help="%(default)s")
    add("--max_seq_length", type=int, default=512, help="%(default)s")
    add("--max_predictions_per_seq", type=int, default=20, help="%(default)s")
    add("--dupe_factor", type=int, help="how often each document is masked; 5, with dynamic masks 1")
    add("--masked_lm_prob", type=float, default=0.15, help="%(default)s")
    add(
        "--masking",
        choices=pretraining_examples.MASKINGS,
        default="static",
        help="dynamic: one unmasked copy is written, and masks are drawn anew in each epoch",
    )
    add("--whole_word_masking", action="store_true", help="mask all pieces of a word or none")
    add(
        "--max_ngram_size",
        type=int,
        default=1,
        help="with --whole_word_masking: mask up to so many words together; %(default)s",
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bertPrep.py",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common_options(parser.add_argument)
    _add_formatting_options(parser.add_argument_group("text_formatting").add_argument)
    _add_sharding_options(parser.add_argument_group("sharding").add_argument)
    _add_record_options(parser.add_argument_group("create_vocab and create_tfrecord_files").add_argument)
    repair = parser.add_argument_group("verify")
    repair.add_argument("--repair", action="store_true", help="make what is broken again")
    options = parser.parse_args(arguments)
    if options.dataset is None and options.action not in OF_ALL_DATASETS:
        parser.error(f"the following arguments are required: --dataset (for {options.action})")
    return options


@exit_on_user_error
def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.n_processes < 1:
        raise UserError(f"n_processes={options.n_processes}: must be at least 1")
    if options.random_seed < 0:
        raise UserError(f"random_seed={options.random_seed}: must be 0 or more")
    if options.fallback_encoding:
        text_files.known_encoding(options.fallback_encoding)
    working_dir = Path(os.environ.get("BERT_PREP_WORKING_DIR") or CHECKOUT / "data").absolute()
    ACTIONS[options.action](options, stages.Layout(working_dir))


if __name__ == "__main__":
    main(sys.argv[1:])
