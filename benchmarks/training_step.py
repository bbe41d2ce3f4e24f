"""One pre-training update compared with other implementations, as ratios of medians.

Every variant is a separate process (`updates/`) in its own environment. They take turns, so that a
busy machine slows all of them alike. All get the same random batch of full rows, accumulate the same
micro-batches, clip and apply.

    python benchmarks/training_step.py --bert_model mini --rounds 15 \\
      --tf_models_python ENV/bin/python --pytorch_python ENV/bin/python

The first environment needs tf-models-official 2.15.0, the second one torch and transformers. Without
the first one a plain Keras model takes its place. --cores limits all variants to so many cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bert_tf.config import BertConfig
from bert_tf.run.run_folder import provenance

UPDATES = Path(__file__).resolve().parent / "updates"


class Variant(NamedTuple):
    name: str
    python: str
    script: str
    settings: dict[str, Any]


def variants(args: argparse.Namespace) -> list[Variant]:
    """All variants; the others are compared with the first one."""
    if args.tf_models_python:
        found = [Variant("tf-models-official, its LAMB, fp32", args.tf_models_python, "tf_models.py", {})]
    else:
        found = [Variant("plain Keras, tensorflow-addons' LAMB, fp32", sys.executable, "plain_keras.py", {})]
    if args.pytorch_python:
        found += [
            Variant(
                f"Hugging Face on PyTorch, fused AdamW, {precision}",
                args.pytorch_python,
                "hugging_face.py",
                {"precision": precision},
            )
            for precision in ("fp32", "bf16")
        ]
    found += [
        Variant(
            f"this project, {precision}, scope {scope}",
            sys.executable,
            "this_project.py",
            {"precision": precision, "scope": scope},
        )
        for scope, precision in (part.split("/") for part in args.ours.split(","))
    ]
    return found


class Worker:
    """The process of a variant."""

    def __init__(self, variant: Variant, settings: dict[str, Any], cores: list[int]):
        self.name = variant.name
        threads = str(len(cores))
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            **dict.fromkeys(
                ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), threads
            ),
        }
        self._process = subprocess.Popen(
            [variant.python, str(UPDATES / variant.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self._write({**settings, **variant.settings, "num_threads": len(cores)})
        self.versions: dict[str, str] = json.loads(self._answer())

    def _write(self, content: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(content) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self.name}: its process ended with code {self._process.wait()}, see above")
        return line

    def update(self) -> float:
        self._write("update")
        return float(self._answer())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def started(args: argparse.Namespace, settings: dict[str, Any], cores: list[int]) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        for variant in variants(args):
            print(f"starting: {variant.name}", file=sys.stderr, flush=True)
            workers.append(Worker(variant, settings, cores))
        yield workers
    finally:
        for worker in workers:
            worker.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bert_model", default="mini")
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--seq_length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--micro_batch_size", type=int, default=16)
    parser.add_argument("--num_accumulation_steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--ours", default="blocks/fp32,blocks/bf16", help="scope/precision of our variants, by comma")
    parser.add_argument("--tf_models_python", help="interpreter with tf-models-official")
    parser.add_argument("--pytorch_python", help="interpreter with torch and transformers")
    args = parser.parse_args()
    config = BertConfig.preset(args.bert_model, args.vocab_size)
    settings = {
        name: getattr(args, name)
        for name in ("vocab_size", "seq_length", "predictions", "micro_batch_size", "num_accumulation_steps")
    }
    cores = sorted(os.sched_getaffinity(0))[-args.cores :]
    with started(args, {**settings, "bert_config": config.to_dict()}, cores) as workers:
        seconds: dict[str, list[float]] = {worker.name: [] for worker in workers}
        for number in range(args.rounds):
            for worker in workers:
                seconds[worker.name].append(worker.update())
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        versions = {name: version for worker in workers for name, version in worker.versions.items()}
    report(args, config, seconds, versions)


def report(
    args: argparse.Namespace, config: BertConfig, seconds: dict[str, list[float]], versions: dict[str, str]
) -> None:
    from bert_tf.run.flops import pretraining_flops_per_sequence

    flops = pretraining_flops_per_sequence(config, args.seq_length, args.predictions)
    flops *= args.micro_batch_size * args.num_accumulation_steps
    facts = provenance()
    peer, *_ = seconds.values()
    print(f"# One update of {args.bert_model}, length {args.seq_length}\n")
    print(
        f"{args.num_accumulation_steps} x {args.micro_batch_size} sequences, {args.predictions} predictions, "
        f"vocabulary {args.vocab_size}; {args.rounds} interleaved rounds on {args.cores} core(s); "
        f"{facts['processor']}; {', '.join(f'{name} {version}' for name, version in versions.items())}.\n"
    )
    print("| variant | median ms | fastest ms | times the first one's rate (median of rounds) | model GFLOP/s |")
    print("|---|---|---|---|---|")
    for name, values in seconds.items():
        ratio = statistics.median(theirs / ours for theirs, ours in zip(peer, values))
        median = statistics.median(values)
        print(f"| {name} | {1000 * median:.0f} | {1000 * min(values):.0f} | {ratio:.2f} | {flops / median / 1e9:.0f} |")


if __name__ == "__main__":
    main()
