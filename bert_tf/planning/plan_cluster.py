"""``python -m bert_tf.planning.plan_cluster``: time, cost and best split of the recipe on a cluster of GPUs.

This is a prediction; docs/clusters.md says what it consists of, and how far it is from published results.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Callable

from bert_tf.base.command_line import CommandParser
from bert_tf.base.errors import exit_on_user_error
from bert_tf.bert_config import PRESETS
from bert_tf.planning.gpus import KNOWN, SENSIBLE, find_gpu
from bert_tf.planning.recipe_time import Cluster, PhaseTime, RecipeTime, UpdateTime, plan_recipe
from bert_tf.run.gpus import flops_per_row
from bert_tf.settings.declaration import Setting, argument_type
from bert_tf.settings.training import MAX_GLOBAL_BATCH, MAX_RANKS, PRECISIONS


def _pair(declared: Setting) -> Callable[[str], list[Any]]:
    """A parser for PHASE1,PHASE2; `auto` becomes None."""
    parse = argument_type(declared)

    def check(text: str) -> list[Any]:
        if text.count(",") != 1:
            raise argparse.ArgumentTypeError(f"{text!r} must have a value for each phase, such as auto,8")
        return [None if part == "auto" else parse(part) for part in text.split(",")]

    return check


def _parser() -> CommandParser:
    parser = CommandParser("plan_cluster", description=__doc__)
    ranks = argument_type(Setting("", "int", None, at_least=1, at_most=MAX_RANKS))
    size = Setting("", "int", None, at_least=1, at_most=MAX_GLOBAL_BATCH)
    pair: dict[str, Any] = dict(default=(None, None), metavar="N1,N2")
    network = "of a node, all its network cards; %(default)s"
    parser.add_argument("--gpu", required=True, help=f"{', '.join(KNOWN)}, or five numbers of a data sheet")
    parser.add_argument("--nodes", type=ranks, default=1)
    parser.add_argument("--gpus_per_node", type=ranks, default=8)
    parser.add_argument("--network_gbit", type=argument_type(SENSIBLE), default=100.0, help=network)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp16")
    parser.add_argument("--model", choices=list(PRESETS), default="large")
    parser.add_argument("--micro_batch", type=_pair(size), help="default: what fits", **pair)
    parser.add_argument("--global_batch", type=_pair(size), help="default: the recipe's", **pair)
    parser.add_argument("--measured_seqs_per_sec", type=_pair(SENSIBLE), help="of one GPU, if measured", **pair)
    parser.add_argument("--price_per_gpu_hour", type=argument_type(SENSIBLE))
    return parser


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv[1:])
    gpu, network = find_gpu(options.gpu, options.precision), options.network_gbit / 8 * 1e9
    plan = plan_recipe(
        Cluster(gpu, options.nodes, options.gpus_per_node, network),
        options.model,
        micro_batches=options.micro_batch,
        global_batches=options.global_batch,
        rates=options.measured_seqs_per_sec,
    )
    print("\n".join(as_table(plan, options.price_per_gpu_hour)))


def as_table(plan: RecipeTime, price: float | None) -> list[str]:
    """The lines to print."""
    cluster, phases = plan.cluster, plan.phases
    rows: dict[str, list[str]] = {
        "phase": ["1", "2"],
        "sequence length": [str(time.work.sequence_length) for time in phases],
        "micro-batch x accumulation x GPUs": [
            f"{time.work.micro_batch_size} x {time.phase.num_accumulation_steps} x {cluster.num_gpus}"
            for time in phases
        ],
        "sequences in an update": [f"{time.phase.global_batch_size:,}" for time in phases],
        "updates": [f"{time.phase.num_updates:,}" for time in phases],
        "seconds of an update": [f"{time.update.total:.3f}" for time in phases],
    }
    for part in dataclasses.fields(UpdateTime):
        values = [getattr(time.update, part.name) for time in phases]
        rows[f"  {part.name.replace('_', '-')}"] = [
            f"{value:.3f} ({value / time.update.total:4.0%})" for value, time in zip(values, phases)
        ]
    rows["sequences/s"] = [f"{time.sequences_per_sec:,.0f}" for time in phases]
    rows["share of the GPUs' peak"] = [f"{_mfu(time, cluster):.0%}" for time in phases]
    rows["hours"] = [f"{time.hours:.2f}" for time in phases]
    cost = f", {price * plan.gpu_hours:,.0f} at {price:g} a GPU-hour" if price else ""
    return [
        *(f"{name:<34}" + "".join(f"{cell:>20}" for cell in cells) for name, cells in rows.items()),
        "",
        f"in all {plan.hours:.2f} hours ({plan.hours / 24:.2f} days), {plan.gpu_hours:,.0f} GPU-hours{cost}",
        "",
        "bash scripts/run_pretraining_lamb.sh " + " ".join(plan.typed),
        "",
        "A prediction: docs/clusters.md says how far it is from what was published.",
    ]


def _mfu(time: PhaseTime, cluster: Cluster) -> float:
    return time.sequences_per_sec * flops_per_row(time.work) / (cluster.num_gpus * cluster.gpu.tflops * 1e12)


if __name__ == "__main__":
    main(sys.argv)
