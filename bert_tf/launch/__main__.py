"""``python -m bert_tf.launch <recipe> [value ...]``: called by the shell launchers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

from bert_tf.base.errors import UserError, exit_on_user_error, require_modules

require_modules("tqdm")
from bert_tf.base.registration import load  # noqa: E402
from bert_tf.base.signals import leave_on_stop_signals  # noqa: E402
from bert_tf.launch import finetune_benchmark as benchmark  # noqa: E402
from bert_tf.launch import glue, recipes, run_sub, squad  # noqa: E402
from bert_tf.launch.environment import LaunchEnvironment, Launcher, show  # noqa: E402

_BIOBERT = "bert_tf.contrib.biomedical.biobert:LAUNCHERS"
# The launchers, or the tables in which they stand.
LAUNCHERS: dict[str, Launcher | str] = {
    "pretraining_lamb": (recipes.LAMB, recipes.launch_lamb),
    "pretraining_lamb_phase1": (recipes.LAMB, partial(recipes.launch_lamb, only="phase_1")),
    "pretraining_lamb_phase2": (recipes.LAMB, partial(recipes.launch_lamb, only="phase_2")),
    "pretraining_adam": (recipes.ADAM, recipes.launch_adam),
    "run_sub": ((), run_sub.launch),  # variables only
    "squad": (squad.ARGUMENTS, squad.launch),
    "squad_inference": (squad.INFERENCE_ARGUMENTS, squad.launch_inference),
    "glue": (glue.ARGUMENTS, glue.launch),
    "glue_inference": (glue.INFERENCE_ARGUMENTS, glue.launch_inference),
    "biobert/ner_bc5cdr-chem": _BIOBERT,
    "biobert/ner_bc5cdr-disease": _BIOBERT,
    "biobert/rel_chemprot": _BIOBERT,
    "biobert/run_pretraining-pubmed_base_phase_1": _BIOBERT,
    "biobert/run_pretraining-pubmed_base_phase_2": _BIOBERT,
    "finetune_train_benchmark": (benchmark.ARGUMENTS["train"], partial(benchmark.launch, "train")),
    "finetune_inference_benchmark": (benchmark.ARGUMENTS["predict"], partial(benchmark.launch, "predict")),
    "biobert/biobert_finetune_train_benchmark": _BIOBERT,
    "biobert/biobert_finetune_inference_benchmark": _BIOBERT,
}


def find_launcher(name: str) -> Launcher:
    """The launcher with this name, one of `LAUNCHERS`."""
    found = LAUNCHERS[name]
    return load(found)[name] if isinstance(found, str) else found


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    leave_on_stop_signals()
    name, typed = (argv[1:2] or [""])[0], argv[2:]
    if name in ("-h", "--help"):
        show(["usage: python -m bert_tf.launch LAUNCHER [value ...], where LAUNCHER is one of", *LAUNCHERS])
        return 0
    if name not in LAUNCHERS:
        raise UserError(f"there is no launcher {name!r}; there are {', '.join(LAUNCHERS)}")
    arguments, launch = find_launcher(name)
    if arguments and typed[:1] in (["-h"], ["--help"]):
        script = name if name.endswith("_benchmark") or "/" in name else f"run_{name}"
        show([f"usage: bash scripts/{script}.sh [value ...], by position:"])
        for number, argument in enumerate(arguments, 1):
            default = f"; default {argument.default}" if argument.default else ""
            show([f"  {number:2} {argument.name}: {argument.rule}{default}"])
        return 0
    return launch(typed, LaunchEnvironment(os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
