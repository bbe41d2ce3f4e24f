"""The tables of gpu_program.py, from its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, with_tables
from bert_tf.run.run_folder import write_whole

RESULTS, PAGE = FOLDER / "gpu_program.json", FOLDER.parents[1] / "docs" / "gpu.md"
GIB, MIB = 1 << 30, 1 << 20
# NVIDIA's published sequences/s (BERT-Large, TF2, one GPU: V100 32 GB and A100 80 GB, TensorFlow 21.02 container).
PUBLISHED = {
    ("V100", "fp16", 128): 206.5,
    ("V100", "fp16", 512): 40.95,
    ("V100", "fp32", 128): 49.97,
    ("V100", "fp32", 512): 11.06,
    ("A100", "fp16", 128): 485.6,
    ("A100", "fp16", 512): 96.5,
    ("A100", "tf32", 128): 283.0,
    ("A100", "tf32", 512): 54.9,
}
# The best published of other code in fp16, one GPU: DeepSpeed's on a V100, and NVIDIA's PaddlePaddle code's on an A100,
# which bins sequences by length.
BEST = {("V100", 128): 272.0, ("V100", 512): 52.0, ("A100", 128): 694.0, ("A100", 512): 264.0}
# How many instances a packed row holds by length: whole articles of Wikipedia (results/records/packing.md), which leave
# 8 and 20 % of unpacked rows to padding.
INSTANCES_IN_A_ROW = {128: 1.076, 512: 1.247}
Line = dict[str, Any]
INTRODUCTION = """# What XLA makes of a step for a V100, an A100 and an H100

By `python -m benchmarks gpu_program`: the compiler of TensorFlow 2.15.1's wheel for GPUs, on a machine without a GPU.
**Nothing here was measured on a GPU.** Memory, launches, matmuls and bytes are what the compiler says; sequences/s are
predictions of the roofline in `benchmarks/gpu_roofline.py`. Programs of 2 and 4 layers were compiled, and what the
other layers add is their difference. Vocabulary 30,522, 20 predictions at 128 and 80 at 512, dropout 0.1, scope `step`.
"""
PACKING = """NVIDIA's rates count rows with their padding. With `--packing` a row holds more than one instance, and all
of them are counted here. How many it holds depends on the text: these are whole articles of Wikipedia; a row of
512 holds two short documents.
"""


def name(line: Line) -> str:
    row = line["row"]
    model = row["bert_model"] + (", packed" if row["packing"] else "")
    return " | ".join(map(str, (row["gpu"], model, row["precision"], row["length"], row["micro_batch_size"])))


def case(line: Line) -> tuple[str, str, int]:
    return line["row"]["gpu"], line["row"]["precision"], line["row"]["length"]


def published(line: Line) -> float | None:
    return PUBLISHED.get(case(line)) if line["row"]["bert_model"] == "large" else None


def table(heads: str, rows: Iterable[str]) -> list[str]:
    columns = "GPU | model | type | length | micro-batch | " + heads
    return [f"| {columns} |", "|---" * columns.count("|") + "|---|", *(f"| {row} |" for row in rows), ""]


def total(figures: dict[str, float], word: str) -> float:
    return sum(value for key, value in figures.items() if key.startswith("each ") and word in key)


def program(line: Line, peers: dict[tuple[str, str, int], float]) -> str:
    """`peers`: from `peer_rates`."""
    found, row = line["figures"], line["row"]
    others = (published(line), peers.get(case(line)) if row["bert_model"] == "large" else None)
    on_cores = found.get("each FLOPs on tensor cores", 0.0)
    columns = [
        f"{found['each launches']:.0f} + {found['once launches']:.0f}",
        f"{100 * on_cores / total(found, 'FLOPs on'):.2f} %",
        f"{found['each other bytes'] / 1e9:.1f}",
        f"{100 * found['each matmul secs'] / found['each secs']:.0f} %",
        f"{found.get('each copy to the host', 0):.0f}",
        f"{line['sequences_per_sec']:.1f}",
        *(f"{line['sequences_per_sec'] / other:.2f}" if other and not row["packing"] else "-" for other in others),
    ]
    return " | ".join([name(line), *columns])


def memory(line: Line) -> str:
    temporary = line["figures"]["bytes temporary"] / MIB
    error = 100 * (line["planned"] / line["memory"] - 1)
    return (
        f"{name(line)} | {temporary:,.0f} | {line['memory'] / GIB:.2f} | {line['planned'] / GIB:.2f} | {error:+.0f} %"
    )


def peer(line: Line) -> str:
    error = 100 * (line["sequences_per_sec"] / published(line) - 1)
    return f"{name(line)} | {line['sequences_per_sec']:.1f} | {published(line):g} | {error:+.0f} %"


def instances_per_sec(line: Line) -> float:
    """Of packed rows."""
    return line["sequences_per_sec"] * INSTANCES_IN_A_ROW[line["row"]["length"]]


def packed(line: Line) -> str:
    rate, in_a_row = instances_per_sec(line), INSTANCES_IN_A_ROW[line["row"]["length"]]
    return f"{name(line)} | {line['sequences_per_sec']:.1f} | {in_a_row} | {rate:.1f} | {rate / published(line):.2f}"


def peer_rates(lines: Iterable[Line]) -> dict[tuple[str, str, int], float]:
    """Predicted sequences/s of tf-models-official."""
    return {case(line): line["sequences_per_sec"] for line in lines if line["row"]["part"] == "peer"}


def parts(line: Line) -> str:
    found, kinds = line["figures"], ("feed-forward", "hidden", "scores", "logits", "table", "weights")
    secs = [f"{1000 * found.get(f'each {kind} secs', 0):.1f}" for kind in kinds]
    return " | ".join([name(line), f"{1000 * found['each matmul secs']:.1f}", *secs])


def matmuls(line: Line) -> list[str]:
    shapes = [(key.split(" ", 3)[1:], count) for key, count in line["figures"].items() if key.startswith("matmul ")]
    title = name(line).replace(" | ", " ")
    rows = [f"| {kind} | {shape} | {count:.0f} | {where} |" for (kind, shape, where), count in shapes]
    return [
        f"Of a micro-batch of {title}:",
        "",
        "| type | batch x m x n x k | times | on |",
        "|---|---|---|---|",
        *rows,
    ]


def check(line: Line) -> list[str]:
    found, whole = line["figures"], line["compiled_whole"]
    shown = ("bytes temporary", "each launches", "each other bytes", "each FLOPs on tensor cores", "each secs")
    rows = [
        f"| {key} | {found[key]:.5g} | {whole[key]:.5g} | {100 * (found[key] / whole[key] - 1):+.1f} % |"
        for key in shown
    ]
    title = name(line).replace(" | ", " ")
    return [f"{title}:", "", "| | from 2 and 4 layers | all compiled | error |", "|---|---|---|---|", *rows, ""]


def optimizer(line: Line) -> str:
    found, row = line["figures"], line["row"]
    return (
        f"{row['gpu']}, {row['bert_model']}: {found['calls']:.0f} calls of compiled functions, "
        f"{found['launches']:.0f} launches, {found['bytes'] / 1e9:.1f} GB, {1000 * found['secs']:.0f} ms "
        "predicted. On top come TensorFlow's own operations, such as three norms a variable."
    )


def renewed_page(page: str) -> str:
    """The text of docs/gpu.md with the table of today's results: BERT-Large in fp16, plain and packed."""
    lines = [line for line in read_lines(RESULTS) if published(line)]
    peers = peer_rates(lines)
    programs = {
        (*case(line), line["row"]["micro_batch_size"], line["row"]["packing"]): line
        for line in lines
        if line["row"]["part"] == "program"
    }
    rows = []
    for (gpu, length), best in BEST.items():
        of_nvidia, of_peer = PUBLISHED[gpu, "fp16", length], peers[gpu, "fp16", length]
        for size in sorted(key[3] for key in programs if key[:3] == (gpu, "fp16", length) and not key[4]):
            line, packed_line = (programs[gpu, "fp16", length, size, packing] for packing in (False, True))
            rate = line["sequences_per_sec"]
            instances = instances_per_sec(packed_line)
            columns = [
                f"{gpu}, {length} x {size}",
                f"{line['memory'] / GIB:.1f}",
                f"{rate:.3g}",
                f"{rate / of_nvidia:.2f}",
                f"{rate / of_peer:.2f}",
                f"{instances:.3g}",
                f"{instances / of_nvidia:.2f}",
                f"{best:g}",
            ]
            rows.append(f"| {' | '.join(columns)} |")
    heads = (
        "| GPU, length x micro-batch | GiB | sequences/s | times NVIDIA TF2's published | "
        "times tf-models-official's by the same roofline | packed: instances/s | times NVIDIA TF2's published | "
        "best published of others |"
    )
    return with_tables(page, "python -m benchmarks tables", "\n".join([heads, "|---" * 8 + "|", *rows]) + "\n")


def render(lines: list[Line]) -> str:
    good = [line for line in lines if "failed" not in line]

    def of(*which: str) -> list[Line]:
        return [line for line in good if line["row"]["part"] in which]

    programs, plain = of("program"), [line for line in of("program", "memory") if not line["row"]["packing"]]
    peers = peer_rates(good)
    text = [INTRODUCTION, "## The program", ""]
    text += table(
        "launches a micro-batch + an update | FLOPs on tensor cores | GB outside matmuls | matmuls' share of time | "
        "copies to the host a micro-batch | predicted sequences/s | times NVIDIA TF2's published | "
        "times tf-models-official's predicted",
        (program(line, peers) for line in programs),
    )
    text += ["Packed: rows/s; a row holds up to three instances.", "", "## Packing", ""]
    text += [PACKING]
    text += table(
        "predicted rows/s | instances in a row | instances/s | times NVIDIA TF2's published",
        (packed(line) for line in programs if line["row"]["packing"] and published(line)),
    )
    text += ["## Memory", ""]
    text += table("temporary MiB | GiB with moments | planned GiB | error", map(memory, plain))
    text += ["## The roofline, checked", "", "tf-models-official's step, compiled in the same way, beside what NVIDIA"]
    text += ["published for the code that descends from it:", ""]
    text += table("predicted | published | error", map(peer, of("peer")))
    text += ["## Where the time of a micro-batch goes (predicted ms)", ""]
    text += table(
        "matmuls | feed-forward | hidden | scores | logits | table | weights, random bits", map(parts, programs)
    )
    text += ["By the largest array that a kernel touches. The same of tf-models-official:", ""]
    text += table(
        "matmuls | feed-forward | hidden | scores | logits | table | weights, random bits", map(parts, of("peer"))
    )
    text += ["## Matmuls", "", *(matmuls(programs[0]) if programs else []), "", "## LAMB", ""]
    text += [*map(optimizer, of("optimizer")), "", "## Extrapolated and compiled whole", ""]
    text += [row for line in of("check") for row in check(line)]
    failed = [f"- {name(line).replace(' | ', ' ')}: {line['failed']}" for line in lines if "failed" in line]
    return "\n".join([*text, "## Not compiled", "", *(failed or ["Nothing that was tried."])]) + "\n"


def read_lines(results: Path) -> list[Line]:
    return list(json.loads(results.read_text(encoding="utf-8"))["rows"].values())


def write_report(results: Path) -> None:
    write_whole(results.with_suffix(".md"), render(read_lines(results)))


def write_page() -> None:
    PAGE.write_text(renewed_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
