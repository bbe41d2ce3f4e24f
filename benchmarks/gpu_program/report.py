"""The page of the compiled programs and the table of docs/gpu.md, from gpu_program.jsonl."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from benchmarks.finished import Finished, Line
from benchmarks.gpu_program.rows import PUBLISHED, Row, plan_rows
from benchmarks.results import FOLDER, Columns, column_table
from benchmarks.results import table as markdown
from bert_tf.memory.plan import predict

RESULTS = FOLDER / "gpu_program.jsonl"
GIB, MIB = 1 << 30, 1 << 20
# The best published of other code in fp16, one GPU: DeepSpeed's on a V100, and NVIDIA's PaddlePaddle code's on an A100,
# which bins sequences by length.
BEST = {("V100", 128): 272.0, ("V100", 512): 52.0, ("A100", 128): 694.0, ("A100", 512): 264.0}
# How many instances a packed row holds by length: whole articles of Wikipedia (results/records/packing.md), which leave
# 8 and 20 % of unpacked rows to padding.
INSTANCES_IN_A_ROW = {128: 1.076, 512: 1.247}
INTRODUCTION = """# What XLA makes of a step for a V100, an A100 and an H100

By `python -m benchmarks gpu_program`: the compiler of TensorFlow 2.15.1's wheel for GPUs, on a machine without a GPU.
**Nothing here was measured on a GPU.** Memory, launches, matmuls and bytes are what the compiler says; sequences/s are
predictions of the roofline in `benchmarks/gpu_program/roofline.py`. Programs of 2 and 4 layers were compiled, and what
the other layers add is their difference. Vocabulary 30,522, 20 predictions at 128 and 80 at 512, dropout 0.1, scope
`step`.
"""
PACKING = """NVIDIA's rates count rows with their padding. With `--packing` a row holds more than one instance, and all
of them are counted here. How many it holds depends on the text: these are whole articles of Wikipedia; a row of
512 holds two short documents.
"""


def in_order(finished: Finished) -> list[Line]:
    """The finished rows, the most important ones first."""
    found = (finished.find(dataclasses.asdict(row)) for row in plan_rows())
    return [line for line in found if line]


def planned(line: Line) -> float:
    """What the memory plan says today, bytes."""
    row = Row(**line["row"])
    return predict(row.workload(row.num_layers)).total


def case(line: Line) -> tuple[str, str, int]:
    return line["row"]["gpu"], line["row"]["precision"], line["row"]["length"]


def published(line: Line) -> float | None:
    return PUBLISHED.get(case(line)) if line["row"]["bert_model"] == "large" else None


def cells(line: Line) -> list[str]:
    """What was compiled."""
    row = line["row"]
    model = row["bert_model"] + (", packed" if row["packing"] else "")
    return [row["gpu"], model, row["precision"], str(row["length"]), str(row["micro_batch_size"])]


def table(columns: Columns, lines: Iterable[Line]) -> list[str]:
    heads = ["GPU", "model", "type", "length", "micro-batch"]
    return column_table(heads, columns, ((cells(line), line) for line in lines))


def instances_in_a_row(line: Line) -> float:
    return INSTANCES_IN_A_ROW[line["row"]["length"]]


def peer_rates(lines: Iterable[Line]) -> dict[tuple[str, str, int], float]:
    """Predicted sequences/s of tf-models-official."""
    return {case(line): line["sequences_per_sec"] for line in lines if line["row"]["part"] == "peer"}


def program_columns(peers: dict[tuple[str, str, int], float]) -> Columns:
    """`peers`: from `peer_rates`."""

    def share_on_tensor_cores(line: Line) -> str:
        flops = [value for key, value in line["figures"].items() if key.startswith("each FLOPs on")]
        return f"{100 * line['figures'].get('each FLOPs on tensor cores', 0.0) / sum(flops):.2f} %"

    def times(line: Line, other: float | None) -> str:
        return f"{line['sequences_per_sec'] / other:.2f}" if other and not line["row"]["packing"] else "-"

    def of_peer(line: Line) -> float | None:
        return peers.get(case(line)) if line["row"]["bert_model"] == "large" else None

    return [
        (
            "launches a micro-batch + an update",
            lambda line: f"{line['figures']['each launches']:.0f} + {line['figures']['once launches']:.0f}",
        ),
        ("FLOPs on tensor cores", share_on_tensor_cores),
        ("GB outside matmuls", lambda line: f"{line['figures']['each other bytes'] / 1e9:.1f}"),
        (
            "matmuls' share of time",
            lambda line: f"{100 * line['figures']['each matmul secs'] / line['figures']['each secs']:.0f} %",
        ),
        ("copies to the host a micro-batch", lambda line: f"{line['figures'].get('each copy to the host', 0):.0f}"),
        ("predicted sequences/s", lambda line: f"{line['sequences_per_sec']:.1f}"),
        ("times NVIDIA TF2's published", lambda line: times(line, published(line))),
        ("times tf-models-official's predicted", lambda line: times(line, of_peer(line))),
    ]


PACKED: Columns = [
    ("predicted rows/s", lambda line: f"{line['sequences_per_sec']:.1f}"),
    ("instances in a row", lambda line: str(instances_in_a_row(line))),
    ("instances/s", lambda line: f"{line['sequences_per_sec'] * instances_in_a_row(line):.1f}"),
    (
        "times NVIDIA TF2's published",
        lambda line: f"{line['sequences_per_sec'] * instances_in_a_row(line) / (published(line) or 1):.2f}",
    ),
]
MEMORY: Columns = [
    ("temporary MiB", lambda line: f"{line['figures']['bytes temporary'] / MIB:,.0f}"),
    ("GiB with moments", lambda line: f"{line['memory'] / GIB:.2f}"),
    ("planned GiB", lambda line: f"{planned(line) / GIB:.2f}"),
    ("error", lambda line: f"{100 * (planned(line) / line['memory'] - 1):+.0f} %"),
]
PEER: Columns = [
    ("predicted", lambda line: f"{line['sequences_per_sec']:.1f}"),
    ("published", lambda line: f"{published(line):g}"),
    ("error", lambda line: f"{100 * (line['sequences_per_sec'] / (published(line) or 1) - 1):+.0f} %"),
]


def millis(line: Line, kind: str) -> str:
    return f"{1000 * line['figures'].get(f'each {kind} secs', 0):.1f}"


TIMES: Columns = [
    (head, lambda line, kind=kind: millis(line, kind))  # type: ignore[misc]
    for head, kind in (
        ("matmuls", "matmul"),
        *((kind, kind) for kind in ("feed-forward", "hidden", "scores", "logits", "table")),
        ("weights, random bits", "weights"),
    )
]


def matmuls(line: Line) -> list[str]:
    shapes = [(key.split(" ", 3)[1:], count) for key, count in line["figures"].items() if key.startswith("matmul ")]
    rows = [[kind, shape, f"{count:.0f}", where] for (kind, shape, where), count in shapes]
    return [
        f"Of a micro-batch of {' '.join(cells(line))}:",
        "",
        *markdown(["type", "batch x m x n x k", "times", "on"], rows),
    ]


def check(line: Line) -> list[str]:
    figures, whole = line["figures"], line["compiled_whole"]
    names = ("bytes temporary", "each launches", "each other bytes", "each FLOPs on tensor cores", "each secs")
    rows = [
        [name, f"{figures[name]:.5g}", f"{whole[name]:.5g}", f"{100 * (figures[name] / whole[name] - 1):+.1f} %"]
        for name in names
    ]
    heads = ["", "from 2 and 4 layers", "all compiled", "error"]
    return [f"{' '.join(cells(line))}:", "", *markdown(heads, rows), ""]


def optimizer(line: Line) -> str:
    figures, row = line["figures"], line["row"]
    return (
        f"{row['gpu']}, {row['bert_model']}: {figures['calls']:.0f} calls of compiled functions, "
        f"{figures['launches']:.0f} launches, {figures['bytes'] / 1e9:.1f} GB, {1000 * figures['secs']:.0f} ms "
        "predicted. On top come TensorFlow's own operations, such as three norms a variable."
    )


def render(lines: list[Line]) -> str:
    """The page benchmarks/results/gpu_program.md."""
    parts: dict[str, list[Line]] = {}
    for line in (line for line in lines if "failed" not in line):
        parts.setdefault(line["row"]["part"], []).append(line)
    programs, peers = parts.get("program", []), parts.get("peer", [])
    packed = [line for line in programs if line["row"]["packing"] and published(line)]
    plain = [line for line in lines if line in programs + parts.get("memory", []) and not line["row"]["packing"]]
    text = [INTRODUCTION, "## The program", "", *table(program_columns(peer_rates(peers)), programs)]
    text += ["Packed: rows/s; a row holds up to three instances.", "", "## Packing", ""]
    text += [PACKING, *table(PACKED, packed), "## Memory", "", *table(MEMORY, plain)]
    text += ["## The roofline, checked", "", "tf-models-official's step, compiled in the same way, beside what NVIDIA"]
    text += ["published for the code that descends from it:", "", *table(PEER, peers)]
    text += ["## Where the time of a micro-batch goes (predicted ms)", "", *table(TIMES, programs)]
    text += ["By the largest array that a kernel touches. The same of tf-models-official:", "", *table(TIMES, peers)]
    text += ["## Matmuls", "", *(matmuls(programs[0]) if programs else []), "", "## LAMB", ""]
    text += [*map(optimizer, parts.get("optimizer", [])), "", "## Extrapolated and compiled whole", ""]
    text += [row for line in parts.get("check", []) for row in check(line)]
    failed = [f"- {' '.join(cells(line))}: {line['failed']}" for line in lines if "failed" in line]
    return "\n".join([*text, "## Not compiled", "", *(failed or ["Nothing that was tried."])]) + "\n"


def tables() -> str:
    """The table of docs/gpu.md: BERT-Large in fp16, plain and packed."""
    lines = [line for line in in_order(Finished(RESULTS, {})) if published(line)]
    peers = peer_rates(lines)
    programs = {
        (*case(line), line["row"]["micro_batch_size"], line["row"]["packing"]): line
        for line in lines
        if line["row"]["part"] == "program"
    }
    cells_of = []
    for (gpu, length), best in BEST.items():
        key = (gpu, "fp16", length)
        for size in sorted(number for *what, number, packing in programs if tuple(what) == key and not packing):
            line, packed = (programs[(*key, size, packing)] for packing in (False, True))
            rate, instances = line["sequences_per_sec"], packed["sequences_per_sec"] * instances_in_a_row(packed)
            row = [f"{gpu}, {length} x {size}", f"{line['memory'] / GIB:.1f}", f"{rate:.3g}"]
            row += [f"{rate / other:.2f}" for other in (PUBLISHED[key], peers[key])]
            cells_of.append([*row, f"{instances:.3g}", f"{instances / PUBLISHED[key]:.2f}", f"{best:g}"])
    heads = (
        "GPU, length x micro-batch|GiB|sequences/s|times NVIDIA TF2's published|"
        "times tf-models-official's by the same roofline|packed: instances/s|times NVIDIA TF2's published|"
        "best published of others"
    )
    return "\n".join(markdown(heads.split("|"), cells_of)) + "\n"
