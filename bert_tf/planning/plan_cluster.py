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
from bert_tf.planning.gpus import KNOWN_CARDS, SENSIBLE_RANGE, find_gpu
from bert_tf.planning.recipe_time import Cluster, PhaseTime, plan_recipe
from bert_tf.run.gpus import flops_per_row
from bert_tf.settings.declaration import Setting, argument_type
from bert_tf.settings.training import MAX_GLOBAL_BATCH, MAX_RANKS, PRECISIONS


def _pair(declared: Setting) -> Callable[[str], list[Any]]:
    """A parser of texts VALUE1,VALUE2, a value for each phase; `auto` becomes None."""
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
    parser.add_argument("--gpu", required=True, help=f"{', '.join(KNOWN_CARDS)}, or five numbers of a data sheet")
    parser.add_argument("--nodes", type=ranks, default=1)
    parser.add_argument("--gpus_per_node", type=ranks, default=8)
    parser.add_argument("--network_gbit", type=argument_type(SENSIBLE_RANGE), default=100.0, help=network)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp16")
    parser.add_argument("--model", choices=list(PRESETS), default="large")
    parser.add_argument("--micro_batch", type=_pair(size), help="default: what fits", **pair)
    parser.add_argument("--global_batch", type=_pair(size), help="default: the recipe's", **pair)
    parser.add_argument("--measured_seqs_per_sec", type=_pair(SENSIBLE_RANGE), help="of one GPU, if measured", **pair)
    parser.add_argument("--price_per_gpu_hour", type=argument_type(SENSIBLE_RANGE))
    return parser


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv[1:])
    gpu = find_gpu(options.gpu, options.precision)
    plan = plan_recipe(
        Cluster(gpu, options.nodes, options.gpus_per_node, options.network_gbit / 8 * 1e9),
        options.model,
        micro_batches=options.micro_batch,
        global_batches=options.global_batch,
        rates=options.measured_seqs_per_sec,
    )
    columns = [_column(number, time, plan.cluster) for number, time in enumerate(plan.phases, 1)]
    price = options.price_per_gpu_hour
    for name in columns[0]:
        print(f"{name:<34}" + "".join(f"{column[name]:>20}" for column in columns))
    cost = f", {price * plan.gpu_hours:,.0f} at {price:g} a GPU-hour" if price else ""
    print(
        f"\nin all {plan.hours:.2f} hours ({plan.hours / 24:.2f} days), {plan.gpu_hours:,.0f} GPU-hours{cost}\n\n"
        f"bash scripts/run_pretraining_lamb.sh {' '.join(plan.argument_texts)}\n\n"
        "A prediction: docs/clusters.md says how far it is from what was published."
    )


def _column(number: int, time: PhaseTime, cluster: Cluster) -> dict[str, str]:
    """The texts in the table's column of a phase, by the names of the rows."""
    work, phase, secs = time.work, time.phase, time.update.total
    parts = dataclasses.asdict(time.update)
    reached = time.sequences_per_sec * flops_per_row(work) / (cluster.num_gpus * cluster.gpu.tflops * 1e12)
    return {
        "phase": f"{number}",
        "sequence length": f"{work.sequence_length}",
        "micro-batch x accumulation x GPUs": (
            f"{work.micro_batch_size} x {phase.num_accumulation_steps} x {cluster.num_gpus}"
        ),
        "sequences in an update": f"{phase.global_batch_size:,}",
        "updates": f"{phase.num_updates:,}",
        "seconds of an update": f"{secs:.3f}",
        **{f"  {name.replace('_', '-')}": f"{part:.3f} ({part / secs:4.0%})" for name, part in parts.items()},
        "sequences/s": f"{time.sequences_per_sec:,.0f}",
        "share of the GPUs' peak": f"{reached:.0%}",
        "hours": f"{time.hours:.2f}",
    }


if __name__ == "__main__":
    main(sys.argv)
