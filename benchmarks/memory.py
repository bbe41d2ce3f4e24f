"""Memory that updates take, compared with the prediction of `bert_tf.memory.plan`.

Each configuration runs in a separate process: two updates of one (or `--accumulation`) micro-batches
of generated rows. It measures the peak of TensorFlow's allocator, as on a GPU
(`tf.config.experimental.get_memory_info`): weights, moments, gradients, activations, workspace and
fragmentation, without code and libraries. So it is compared with the prediction without its allowance
for the program. Another column is the growth of the process's resident memory since before the model
was made.

    python benchmarks/memory.py                       # the table of docs/training.md
    python benchmarks/memory.py large,1,384,0,blocks,fp32,recompute --address_space_gib 12.5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bert_tf.config import BertConfig
from bert_tf.memory.plan import Workload, predict

MIB, VOCABULARY, NUM_UPDATES = 1 << 20, 30522, 2
# model, micro-batch, length, predictions (0: fine-tuning on spans), scope, precision, keep or recompute
CONFIGURATIONS = """
mini,8,128,20,blocks,fp32,keep
mini,8,128,20,blocks,fp32,recompute
mini,8,128,20,off,fp32,recompute
mini,8,128,20,step,fp32,keep
mini,2,512,80,blocks,bf16,keep
small,4,512,80,blocks,fp32,keep
small,4,512,80,blocks,fp32,recompute
base,2,128,20,blocks,fp32,keep
base,1,384,0,blocks,fp32,recompute
base,2,128,20,blocks,bf16,keep
"""


def describe(text: str) -> Workload:
    model, size, length, predictions, scope, precision, kept = text.split(",")
    return Workload(
        BertConfig.preset(model, VOCABULARY),
        int(length),
        int(predictions),
        scope,
        int(size),
        precision,
        kept == "recompute",
    )


def resident(kind: str) -> float:
    """MiB: VmRSS, VmHWM (its peak) or VmPeak (of the address space)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def run(work: Workload, num_steps: int) -> dict[str, float]:
    """Makes the updates and returns MiB and seconds; call it only once per process."""
    import tensorflow as tf
    from made_up import made_up_rows, make_step

    tf.function(lambda x: x @ x, jit_compile=True)(tf.ones([8, 8]))  # the compiler's own memory is not the model's
    before = resident("VmRSS")
    step = make_step(work, "lamb" if work.max_predictions_per_seq else "adamw")
    features = made_up_rows(work, num_steps)
    tf.config.experimental.reset_memory_stats("CPU:0")  # so that drawing the weights does not count
    for number in range(NUM_UPDATES):
        started = time.monotonic()
        norm = float(step(features, number).gradient_norm)
    return {
        "measured": tf.config.experimental.get_memory_info("CPU:0")["peak"] / MIB,
        "resident": resident("VmHWM") - before,
        "address_space": resident("VmPeak"),
        "secs": time.monotonic() - started,
        "gradient_norm": norm,
    }


def measure(text: str, num_steps: int, limit_gib: float) -> dict[str, float]:
    """`run` in a separate process, perhaps with limited address space."""

    def limit() -> None:
        if limit_gib:
            resource.setrlimit(resource.RLIMIT_AS, (int(limit_gib * 1024) * MIB,) * 2)

    done = subprocess.run(
        [sys.executable, __file__, "--here", text, "--accumulation", str(num_steps)],
        stdout=subprocess.PIPE,
        text=True,
        # Only oneDNN's allocator counts memory, and TensorFlow disables oneDNN on some CPUs.
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"},
        preexec_fn=limit,
    )
    if done.returncode:
        sys.exit(f"{text}: ended with code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def row(text: str, found: dict[str, float]) -> tuple[str, float]:
    work = describe(text)
    memory = predict(work)
    predicted = memory.total / MIB
    error = predicted / found["measured"] - 1
    parts = (f"{memory.weights / MIB:.0f}", f"{memory.activations / MIB:.0f}", f"{memory.workspace / MIB:.0f}")
    return (
        f"| {' | '.join(text.split(','))} | {' | '.join(parts)} | {predicted:.0f} | {found['measured']:.0f} | "
        f"{100 * error:+.0f} % | {found['resident']:.0f} |"
    ), error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configurations", nargs="*", default=CONFIGURATIONS.split())
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches in an update")
    parser.add_argument("--address_space_gib", type=float, default=0.0, help="limit of each process; 0: none")
    parser.add_argument("--here", action="store_true", help="measure one configuration in this process, as JSON")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(run(describe(args.configurations[0]), args.accumulation)))
        return
    print(
        "| model | micro-batch | length | predictions | scope | precision | layers | parameters | activations | "
        "workspace | predicted | measured | error | resident |\n" + "|---" * 14 + "|",
        flush=True,
    )
    errors = []
    for text in args.configurations:
        found = measure(text, args.accumulation, args.address_space_gib)
        line, error = row(text, found)
        errors.append(abs(error))
        print(line, flush=True)
        print(
            f"{text}: address space {found['address_space']:.0f} MiB, {found['secs']:.1f} s for the last update",
            file=sys.stderr,
            flush=True,
        )
    print(f"\nMiB. Largest error {100 * max(errors):.0f} %, mean {100 * sum(errors) / len(errors):.0f} %.")


if __name__ == "__main__":
    main()
