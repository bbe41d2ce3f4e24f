"""Prepares pre-training data in stages; a stage that is killed continues when it is run again.

    python3 data/bertPrep.py --action download --dataset sample
    python3 data/bertPrep.py --action text_formatting --dataset sample
    python3 data/bertPrep.py --action sharding --dataset sample
    python3 data/bertPrep.py --action create_vocab --dataset sample --vocab_size 4000
    python3 data/bertPrep.py --action create_token_files --dataset sample

Training reads token files at any length. The published recipe's TFRecords have one length each:

    python3 data/bertPrep.py --action create_tfrecord_files --dataset sample --max_seq_length 128

--action status lists what exists, --action verify [--repair] finds (and repairs) damaged files,
--action inspect shows samples and warns of what looks wrong.

All files are below BERT_PREP_WORKING_DIR, by default the checkout's data/, or ./data if the
package was installed without a checkout.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Callable, NoReturn

from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.files import check_folder, checkout, split_paths
from bert_tf.base.machine import count_cores
from bert_tf.prepare import stages
from bert_tf.prepare.checking import inspection, status, verification
from bert_tf.prepare.corpora import custom, registry, text_files
from bert_tf.prepare.instances import vocabulary
from bert_tf.prepare.sharding import sentences

ACTIONS = {
    **stages.STAGES,
    **stages.FROM_TOKEN_FILES,
    "status": status.run_status,
    "verify": verification.run_verify,
    "inspect": inspection.run_inspect,
}
# Without --dataset these actions read all datasets.
OF_ALL_DATASETS = ("status", "verify")
# The options that each action reads, besides `_OF_ALL_ACTIONS`.
_INSTANCE_OPTIONS = "max_seq_length max_predictions_per_seq dupe_factor masked_lm_prob whole_word_masking"
_OPTIONS_READ = {
    "download": "",
    "text_formatting": """
        input_files input_format text_column skip_wikiextractor fallback_encoding encoding_errors max_bad_records
        keep_duplicates keep_report""",
    "sharding": "n_training_shards n_test_shards fraction_test_set segmentation_method random_seed",
    "create_vocab": "vocab_file vocab_size do_lower_case strip_accents",
    "create_token_files": "vocab_file do_lower_case strip_accents",
    "create_pairs": "do_lower_case strip_accents max_seq_length dupe_factor random_seed",
    "create_tfrecord_files": f"{_INSTANCE_OPTIONS} vocab_file do_lower_case strip_accents random_seed",
    "export_tfrecord": f"{_INSTANCE_OPTIONS} do_lower_case strip_accents random_seed",
    "status": "",
    "verify": "vocab_file repair",
    "inspect": "",
}
OPTIONS_OF = {action: tuple(names.split()) for action, names in _OPTIONS_READ.items()}
_OF_ALL_ACTIONS = ("help", "action", "dataset", "n_processes", "dask_scheduler")
_LARGEST_SEED = (1 << 64) - 1
_INVALID_CHOICE = re.compile(r"argument (--\w+): invalid choice: '?(.*?)'? \(choose from (.*)\)", re.DOTALL)


def _nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most similar to `word`, as the end of an error message."""
    found = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        if match := _INVALID_CHOICE.match(message):
            name, value, listed = match.groups()
            known = [word.strip(" '") for word in listed.split(",")]
            message = f"{name}={value}: must be one of {', '.join(known)}{_nearest(value, known)}"
        raise UserError(message + ("" if "--help" in message else " (--help lists all options)"))


def _whole_number(text: str) -> int:
    # Checked, because int() accepts "1_0".
    if not re.fullmatch("[+-]?[0-9]{1,20}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _number(text: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", text, re.IGNORECASE):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return float(text)


def _add_common_options(add: Callable[..., Any]) -> None:
    add("--action", choices=ACTIONS)
    help_text = "upper or lower case; status and verify: without it, all that exist"
    names = registry.Names((*registry.DATASETS, "wikicorpus_<code>", "all"))
    add("--dataset", type=str.lower, choices=names, help=help_text)
    add(
        "--n_processes",
        type=_whole_number,
        default=count_cores(),
        help="worker processes; default: all cores, %(default)s here",
    )
    add(
        "--dask_scheduler",
        metavar="ADDRESS",
        help="use the workers of this Dask scheduler instead: tcp://HOST:PORT, or the file that dask "
        "scheduler --scheduler-file writes",
    )
    add("--random_seed", type=_whole_number, default=12345, help="decides all that is drawn; default: %(default)s")


def _add_formatting_options(add: Callable[..., Any]) -> None:
    files = (
        "dataset custom: files and folders of .txt, .jsonl (also .gz, .zst) or .parquet files, separated by commas; "
        "or one that holds a comma"
    )
    add("--input_files", type=split_paths, default=[], help=files)
    add(
        "--input_format",
        choices=custom.INPUT_FORMATS,
        default="auto",
        help="dataset custom: a document is a file, a line, between blank lines (paragraph; "
        "sentences: with a sentence on each line, which is kept), the text of a JSON object "
        "on its line (jsonl) or of a row (parquet); auto: jsonl and parquet by the suffix, of others a file if there "
        "are several, else paragraph if there are blank lines, else a line; kinds may be mixed",
    )
    column = "the text's column in Parquet files, or field of JSON lines; default: %(default)s"
    add("--text_column", default="text", help=column)
    extracted = "Wikipedia: read the output of wikiextractor below extracted/ instead of the dump"
    add("--skip_wikiextractor", type=_whole_number, nargs="?", const=1, default=0, choices=(0, 1), help=extracted)
    add("--fallback_encoding", help="encoding of files that are not UTF-8 and do not state one")
    replace = "replace: U+FFFD for bytes that cannot be decoded, instead of an error"
    add("--encoding_errors", choices=("strict", "replace"), default="strict", help=replace)
    add(
        "--max_bad_records",
        type=_whole_number,
        default=0,
        help="skip up to this many JSON lines, rows, PubMed citations or pages of Wikipedia that cannot be read; they "
        "are named and counted; default: %(default)s, the first one ends the run, and the same command with a larger "
        "number continues from there",
    )
    add("--keep_duplicates", action="store_true", help="keep repeated documents")
    report = "Wikipedia: write all dropped text, with the reasons, to a .dropped.tsv beside the output"
    add("--keep_report", action="store_true", help=report)


def _add_sharding_options(add: Callable[..., Any]) -> None:
    default_training, default_test = stages.DEFAULT_SHARDS
    of_sample = stages.SAMPLE_SHARDS
    training = f"default: {default_training}; of the sample: {of_sample[0]}"
    test = f"shards of held-out text; default: {default_test}; of the sample: {of_sample[1]}"
    add("--n_training_shards", type=_whole_number, help=training)
    add("--n_test_shards", type=_whole_number, help=test)
    add("--fraction_test_set", type=_number, default=0.1, help="share of the text to hold out; default: %(default)s")
    method = "finds the sentences: rules of our own, or NLTK's Punkt; default: %(default)s"
    add("--segmentation_method", choices=sentences.METHODS, default="rules", help=method)


def _add_record_options(add: Callable[..., Any]) -> None:
    vocab = (
        "create_vocab writes it, the others read it; a name in .model: SentencePiece, a tokenizer.json: Hugging "
        "Face's, else WordPiece"
    )
    add("--vocab_file", help=vocab)
    add("--vocab_size", type=_whole_number, default=vocabulary.DEFAULT_VOCAB_SIZE, help="pieces; default: %(default)s")
    case = "1: lower-case the text and drop accents; default: as stands beside the vocabulary, else 1"
    add("--do_lower_case", type=_whole_number, choices=(0, 1), help=case)
    accents = "1: drop accents and other marks, 0: keep them; default: as --do_lower_case"
    add("--strip_accents", type=_whole_number, choices=(0, 1), help=accents)
    add("--max_seq_length", type=_whole_number, default=512, help="tokens of an instance; default: %(default)s")
    predictions = (
        "tokens of an instance to be predicted, at most; the recipe has 20 at 128, 80 at 512; default: %(default)s"
    )
    add("--max_predictions_per_seq", type=_whole_number, default=20, help=predictions)
    add(
        "--dupe_factor",
        type=_whole_number,
        help="passes over the text, each with pairs (records: and masks) of its own; default: 5",
    )
    share = "share of the tokens to be predicted; default: %(default)s"
    add("--masked_lm_prob", type=_number, default=0.15, help=share)
    add("--whole_word_masking", action="store_true", help="mask all pieces of a word or none")


def _refuse_unused(given: Sequence[str], options: argparse.Namespace) -> None:
    """Raises: UserError if an option was given that the action or dataset does not read."""
    readers = [("action", OPTIONS_OF)]
    if options.action == "text_formatting":
        every = dict.fromkeys((*registry.DATASETS, options.dataset))
        of_dataset = {name: (*registry.dataset_named(name).options, "keep_duplicates") for name in every}
        readers.append(("dataset", of_dataset))
    for kind, read_by in readers:
        chosen = getattr(options, kind)
        for name in given:
            if name not in (*_OF_ALL_ACTIONS, *read_by[chosen]):
                others = [other for other, names in read_by.items() if name in names]
                raise UserError(f"--{name} has no effect on --{kind}={chosen}, only on {', '.join(others)}")
    if options.action == "verify" and "vocab_file" in given and not options.repair:
        raise UserError("--vocab_file has no effect on --action=verify without --repair")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Raises: UserError if an argument is invalid, unknown, missing or without effect."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="bertPrep.py", description=__doc__, allow_abbrev=False, formatter_class=formatter)
    _add_common_options(parser.add_argument)
    _add_formatting_options(parser.add_argument_group("text_formatting").add_argument)
    _add_sharding_options(parser.add_argument_group("sharding").add_argument)
    group = "create_vocab, create_token_files, create_pairs, create_tfrecord_files and export_tfrecord"
    _add_record_options(parser.add_argument_group(group).add_argument)
    parser.add_argument_group("verify").add_argument("--repair", action="store_true", help="make damaged files again")
    # argparse sets no default for an attribute that already exists, so this marker shows which options were given.
    names = [action.dest for action in parser._actions]
    for argument in arguments:
        if argument.endswith("=--"):  # argparse would take -- as the end of the options
            parser.error(f"{argument}: -- is not a value")
    not_given = object()
    options, unknown = parser.parse_known_args(arguments, argparse.Namespace(**dict.fromkeys(names, not_given)))
    if unknown:
        word = unknown[0].partition("=")[0]
        if word == "--masking":
            parser.error(
                "--masking: records are masked when they are made; training masks token files anew in each "
                "epoch: --action create_token_files"
            )
        parser.error(f"unknown argument {word}{_nearest(word, [f'--{name}' for name in names])}")
    given = [name for name in names if getattr(options, name) is not not_given]
    for name in set(names) - set(given):
        setattr(options, name, parser.get_default(name))
    if options.action is None:  # not required by argparse, which would report this instead of a mistyped option
        parser.error(f"--action is missing: one of {', '.join(ACTIONS)}")
    if options.dataset is None and options.action not in OF_ALL_DATASETS:
        parser.error(f"--action={options.action} needs --dataset")
    if options.dataset == "all" and options.action != "download":
        parser.error(f"--dataset=all is for --action=download, not for {options.action}")
    if options.dataset and options.action in stages.STAGES and options.action != "download":
        registry.corpora_of(options.dataset)
    _refuse_unused(given, options)
    return options


def _check(options: argparse.Namespace) -> None:
    """Raises: UserError if a value is out of range."""
    for name, smallest in (("n_processes", 1), ("random_seed", 0), ("max_bad_records", 0)):
        if getattr(options, name) < smallest:
            raise UserError(f"{name}={getattr(options, name)}: must be at least {smallest}")
    if options.random_seed > _LARGEST_SEED:
        raise UserError(f"random_seed={options.random_seed}: must be at most {_LARGEST_SEED} (64 bits)")
    if not 0 < options.masked_lm_prob <= 1:
        raise UserError(f"masked_lm_prob={options.masked_lm_prob}: must be over 0 and at most 1")
    try:
        Path(options.vocab_file or "").exists()
    except OSError as error:
        raise UserError(f"vocab_file={options.vocab_file[:40]}...: {error.strerror}") from None
    if options.fallback_encoding:
        text_files.known_encoding(options.fallback_encoding)


def _working_dir() -> Path:
    """The working directory. Raises: UserError if a part of its path is not a folder."""
    folder = Path(os.environ.get("BERT_PREP_WORKING_DIR") or (checkout() or Path()) / "data").absolute()
    check_folder(folder, f"BERT_PREP_WORKING_DIR={folder}", writes=False)
    return folder


@exit_on_user_error
def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    _check(options)
    ACTIONS[options.action](options, stages.Layout(_working_dir()))


if __name__ == "__main__":
    main(sys.argv[1:])
