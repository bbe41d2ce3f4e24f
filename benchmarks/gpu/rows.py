"""The rows, in groups; each group is finished before the next one begins."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

from benchmarks.gpu.checks import TELLING_TESTS, Check
from benchmarks.gpu.row import Row
from bert_tf.memory.plan import largest_micro_batch

# By the plan a micro-batch may take this fraction of the GPU's memory. Measured on an H200 the plan is up to 1 % high.
PLANNED_SHARE = 0.7
Group = list[Union[Check, Row]]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Settings that differ between a GPU and a rehearsal."""

    models: tuple[str, ...] = ("large", "base")  # rows with fewer layers are of the first one
    lengths: tuple[tuple[int, int], ...] = ((512, 80), (128, 20))
    largest_micro_batches: tuple[tuple[int, ...], ...] = ((32, 128), (64, 256))  # micro-batches, by model and length
    num_layers: int = 4  # where a row needs not all of them
    num_accumulation_steps: int = 16  # the recipe has 64 and more, of which LAMB is a smaller share
    num_updates: int = 4
    memory_sizes: tuple[tuple[int, ...], ...] = ((1, 8, 32), (1, 16, 64, 128))
    precision_of_blocks: str = "fp16"  # in which CPUs are very slow
    marks: tuple[str, ...] = ("gpu", "computes and not gpu and not slow")


# Without the tests of what is computed, which the test suite runs on a CPU in the same way.
REHEARSAL = Sizes(("tiny",), ((64, 8), (32, 4)), ((2, 4),), 1, 3, 2, ((2,), (1, 4)), "tf32", ("gpu and not slow",))


def plan_rows(sizes: Sizes, memory: float, has_bf16: bool, has_peer: bool) -> list[Group]:
    """All rows: first the group that answers the questions, then further measurements, then the other tests.

    Within a group, rows that take longest to compile come first. `has_bf16`: the GPU has bfloat16 and TF32.
    """

    def row(part: str, at: int, precision: str, size: int | None = None, model: int = 0, **changes: Any) -> Row:
        settings = {"num_accumulation_steps": sizes.num_accumulation_steps, "num_updates": sizes.num_updates, **changes}
        row_of_one = Row(part, sizes.models[model], *sizes.lengths[at], precision, **settings)
        best = largest_micro_batch(row_of_one.workload, PLANNED_SHARE * memory, sizes.largest_micro_batches[model][at])
        return dataclasses.replace(row_of_one, micro_batch_size=size or best)

    half = "bf16" if has_bf16 else "fp16"
    short = {"num_accumulation_steps": 2, "num_layers": sizes.num_layers}
    sizes_and_models = [(at, model) for model in range(len(sizes.models)) for at in range(len(sizes.lengths))]
    first: Group = [Check("doctor", "the doctor")]
    first += [
        row("start", 0, half, min(8, sizes.largest_micro_batches[0][0]), start=start, **short) for start in (1, 2)
    ]
    first += [Check("tests", "the most telling tests that compare the GPU with the CPU", sizes.marks[0], TELLING_TESTS)]
    first += [
        row(part, at, half, model=model) for part in ("speed", *["peer"] * has_peer) for at, model in sizes_and_models
    ]
    first += [row("speed", 0, half, packing=True)]
    few = {"num_layers": sizes.num_layers}
    second: Group = [
        row("speed", at, precision, **few)
        for precision in (half, *(("fp16", "tf32") if has_bf16 else ("fp32",)))
        for at in range(len(sizes.lengths))
    ]
    second += [row("speed", at, half, packing=True, **few) for at in range(len(sizes.lengths))]
    second += [row("speed", 1, sizes.precision_of_blocks, scope="blocks", **few)]
    second += [row("memory", at, half, size, **short) for at in (0, 1) for size in sizes.memory_sizes[at]]
    second += [
        row("memory", 0, precision, sizes.memory_sizes[0][-1], scope=scope, **short)
        for precision, scope in (("tf32" if has_bf16 else "fp32", "step"), (sizes.precision_of_blocks, "blocks"))
    ]
    last: Group = [
        Check("tests", "the other tests that compare the GPU with the CPU", sizes.marks[0], f"not ({TELLING_TESTS})")
    ]
    last += [Check("tests", "the other tests of what is computed", marks) for marks in sizes.marks[1:]]
    return [first, second, last]
