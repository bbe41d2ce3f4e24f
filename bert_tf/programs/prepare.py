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

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.command_line import expand_home, suggestion
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.files import check_folder, split_paths, work_folder
from bert_tf.base.machine.hardware import count_cores
from bert_tf.base.registration import deferred_function
from bert_tf.prepare import stages
from bert_tf.prepare.checking import status, verification
from bert_tf.prepare.corpora import registry
from bert_tf.prepare.fetching.sources import wikipedia_of
from bert_tf.programs.flags import parse_options
from bert_tf.settings.declaration import Setting, settings_of
from bert_tf.settings.preparation import PreparationOptions, options_of_action

ACTIONS = {
    **stages.STAGES,
    **stages.FROM_TOKEN_FILES,
    "status": status.run_status,
    "verify": verification.run_verify,
    "inspect": deferred_function("bert_tf.contrib.inspection.inspection:run_inspect"),
}
DATASETS = (*registry.DATASETS, "wikicorpus_<code>", "all")
# Without --dataset these actions read all datasets.
ACTIONS_ON_ALL_DATASETS = ("status", "verify")


def _refuse_unused(given: Sequence[str], options: PreparationOptions) -> None:
    """Raises: UserError if an option was given that the action or dataset does not read."""
    selective = [name for name in given if name not in ("action", "dataset", *options_of_action("all"))]
    readers = [("action", {action: options_of_action(action) for action in ACTIONS})]
    if options.action in ("download", "text_formatting"):
        datasets = dict.fromkeys((*registry.DATASETS, options.dataset))
        readers.append(("dataset", {name: registry.formatting_options(name) for name in datasets}))
    for kind, read_by in readers:
        chosen = getattr(options, kind)
        for name in selective:
            if name not in read_by[chosen]:
                possible = ", ".join(value for value, names in read_by.items() if name in names)
                raise UserError(f"--{name} has no effect on --{kind}={chosen}, only on {possible}")
    if options.action == "verify" and "vocab_file" in given and not options.repair:
        raise UserError("--vocab_file has no effect on --action=verify without --repair")


def parse(arguments: Sequence[str]) -> PreparationOptions:
    """Raises: UserError if an argument is invalid, unknown, missing or without effect."""
    about = f"{', '.join(DATASETS)}, in upper or lower case; status and verify: without it, all that exist."
    declared = [
        Setting("action", "str", None, "What is done.", choices=tuple(ACTIONS)),
        Setting("dataset", "str", None, about),
        *settings_of(PreparationOptions),
    ]
    given = {"n_processes": count_cores(), **parse_options("bertPrep.py", __doc__, declared, arguments)}
    dataset, files = given.get("dataset", "").lower(), given.get("input_files")
    if dataset and dataset not in DATASETS and not wikipedia_of(dataset):
        raise UserError(f"--dataset={dataset}: must be one of {', '.join(DATASETS)}{suggestion(dataset, DATASETS)}")
    paths = tuple(split_paths(files)) if files else ()
    options = PreparationOptions(**{**given, "dataset": dataset, "input_paths": paths})
    # Checked here and not by argparse, which would report this instead of a mistyped option.
    if not options.action:
        raise UserError(f"--action is missing: one of {', '.join(ACTIONS)}; see --help")
    if not options.dataset and options.action not in ACTIONS_ON_ALL_DATASETS:
        raise UserError(f"--action={options.action} needs --dataset; see --help")
    if options.dataset == "all" and options.action != "download":
        raise UserError(f"--dataset=all is for --action=download, not for {options.action}; see --help")
    is_formatted = options.action == "text_formatting" and registry.dataset_named(options.dataset).is_formatted
    if options.dataset and options.action in stages.STAGES and options.action != "download" and not is_formatted:
        registry.require_corpora(options.dataset)  # refuses datasets that are not for pre-training
    _refuse_unused(list(given), options)
    return options


def _working_dir() -> Path:
    """The working directory. Raises: UserError if a part of its path is not a folder."""
    path = expand_home(os.environ.get("BERT_PREP_WORKING_DIR", ""))
    folder = Path(path or work_folder() / "data").absolute()
    check_folder(folder, f"BERT_PREP_WORKING_DIR={folder}", writes=False)
    return folder


@exit_on_user_error
def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    ACTIONS[options.action](options, stages.Layout(_working_dir()))


if __name__ == "__main__":
    main(sys.argv[1:])
