"""Memory, time and rate of every stage of data preparation, on generated corpora of any size.

Four corpora: `documents`, short documents, one per line; `dump`, Wikipedia's XML (with the markup of a real dump if one
is given, else generated); `large`, a single huge document among small ones, in each format that text_formatting reads;
`index`, only the assignment of documents to shards, with lengths like an encyclopedia's. No document occurs twice.
Each stage runs as the user's command, and ten times a second its memory is read: the peak of each process (VmHWM, kept
by the kernel) and the largest total at any time (PSS, which counts shared pages once).

    python -m benchmarks preparation_memory
    python -m benchmarks preparation_memory --documents_mb 3000 --dump_mb 1100 --large_mb 30 --index 6500000 \\
        --dump wikicorpus_en.xml.bz2 --vocab_file vocab.txt
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import psutil

from benchmarks.frame import CHECKOUT, Bench, Variant, existing
from bert_tf.base.errors import UserError
from bert_tf.base.machine import memory_peak_mib
from bert_tf.prepare.sharding import sharding

NEEDS = "nothing; --dump for real markup"
CORES = 0
INTERVAL_SECS = 0.1
FORMS = ("line", "file", "paragraph", "jsonl", "page")
_SYLLABLES = "ba be bi ca co da de do fa fi ga go ha he jo ka ki la le lo ma mi na no pa pe ra re sa so ta te".split()


def _memory_of(pid: int) -> dict[str, int]:
    """KiB by field name; empty if the process has ended."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for name in ("status", "smaps_rollup"):
            for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
                if line.startswith(("VmHWM:", "Pss:")):
                    found[line.split(":")[0]] = int(line.split()[1])
    return found


def _tree(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return [pid]


def watch(command: list[str], environment: dict[str, str], is_enough: Callable[[], bool]) -> tuple:
    """Runs a command to its end, or until it `is_enough`; (secs, peak KiB by process, largest sum, stopped)."""
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr
    # The output is read as it arrives; its last lines tell why a command failed.
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115
    subprocess.Popen(["cat"], stdin=process.stderr, stdout=log)
    peaks: dict[int, int] = {}
    largest_sum, stopped = 0, False
    while process.poll() is None:
        memory = {pid: _memory_of(pid) for pid in _tree(process.pid)}
        largest_sum = max(largest_sum, sum(of.get("Pss", 0) for of in memory.values()))
        for pid, of in memory.items():
            peaks[pid] = max(peaks.get(pid, 0), of.get("VmHWM", 0))
        if not stopped and is_enough():
            stopped = True
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(INTERVAL_SECS)
    secs = time.monotonic() - start
    if process.returncode and not stopped:
        log.seek(0)
        print(log.read()[-2000:], file=sys.stderr, flush=True)
        raise UserError(f"{' '.join(command)} ended with code {process.returncode}; see above why")
    return secs, peaks, largest_sum, stopped


class Stages:
    """Runs stages in one working directory and collects the rows of the table."""

    def __init__(self, root: Path, num_processes: int):
        self.root = root
        self.num_processes = num_processes
        self.rows: list[tuple] = []

    def run(
        self,
        corpus: str,
        stage: str,
        *arguments: object,
        megabytes: float,
        dataset: str = "custom",
        most_records_mb: float = 0,
    ) -> None:
        """`most_records_mb`: the stage is stopped once it has written so many MB; 0: never."""
        command = [sys.executable, str(CHECKOUT / "data/bertPrep.py"), "--action", stage, "--dataset", dataset]
        command += ["--n_processes", str(self.num_processes), *map(str, arguments)]
        print(f"{corpus}: {stage} ...", file=sys.stderr, flush=True)
        secs, peaks, largest, stopped = watch(
            command,
            {"BERT_PREP_WORKING_DIR": str(self.root)},
            lambda: most_records_mb > 0 and self._records_mb() > most_records_mb,
        )
        rate = "" if stage == "status" else f"{megabytes / secs:,.1f} MB/s"
        note = f"stopped after {self._records_mb():,.0f} MB of records" if stopped else rate
        # multiprocessing's resource tracker is not a worker.
        num_workers = sum(kib > 15_000 for kib in peaks.values())
        self.rows.append((corpus, stage, megabytes, secs, note, max(peaks.values()) >> 10, largest >> 10, num_workers))

    def _records_mb(self) -> float:
        return sum(path.stat().st_size for path in self.root.glob("tfrecord/*/*/*/*.tfrecord*")) / 1e6

    def counts(self, pattern: str) -> dict[str, int]:
        (path,) = self.root.glob(pattern)
        return json.loads(path.read_text())["counts"]


@functools.cache
def sentences(count: int, seed: int) -> list[str]:
    """Sentences whose word frequencies are like a language's, with rare words."""
    rng = random.Random(seed)
    words = list(dict.fromkeys("".join(rng.choices(_SYLLABLES, k=rng.randint(1, 5))) for _ in range(300_000)))
    ranks = np.arange(1, len(words) + 1)
    shares = 1 / (ranks + 2.7)
    chosen = np.random.default_rng(seed).choice(len(words), [count, 14], p=shares / shares.sum())
    return [
        " ".join(words[n] for n in row[:size]).capitalize() + "."
        for row, size in zip(chosen.tolist(), rng.choices(range(5, 15), k=count))
    ]


def texts(num_bytes: float, seed: int = 0) -> Iterator[str]:
    """Distinct documents of 300 bytes on average, `num_bytes` in all."""
    rng = random.Random(seed)
    pool = sentences(100_000, 0)
    number = 0
    while num_bytes > 0:
        # A unique word, because real text has new words on every page.
        own = "".join(rng.choices(_SYLLABLES, k=5))
        text = " ".join([*rng.choices(pool, k=rng.randint(1, 8)), f"Number {number} is {own}."])
        yield text
        number += 1
        num_bytes -= len(text) + 1


def markup(dump: Path | None) -> list[str]:
    """The texts of a dump's pages, escaped as in its XML."""
    if dump is None:
        return [
            f"'''{text.split()[0]}''' is [[a|b]].&lt;ref&gt;x&lt;/ref&gt; {{{{box|{text}}}}}\n\n== More ==\n{text}"
            for text in texts(3e6, seed=1)
        ]
    with bz2.open(dump, "rt", encoding="utf-8") if dump.suffix == ".bz2" else open(dump, encoding="utf-8") as file:
        found = re.findall(r"<ns>0</ns>.*?<text[^>/]*>(.*?)</text>", file.read(), re.DOTALL)
    return [text for text in found if not text.lower().startswith("#redirect")]


def write_dump(path: Path, dump: Path | None, num_bytes: float) -> int:
    """Writes the pages in turn, each with a sentence that makes it unique; returns their number."""
    pages = markup(dump)
    path.parent.mkdir(parents=True)
    number = 0
    with open(path, "w", encoding="utf-8") as file:
        file.write("<mediawiki>")
        while num_bytes > 0:
            text = f"{pages[number % len(pages)]}\n\nThis is number {number} of its kind.\n"
            page = (
                f"<page><title>Page {number}</title><ns>0</ns><id>{number}</id><revision><id>1</id>"
                f'<text xml:space="preserve">{text}</text></revision></page>\n'
            )
            file.write(page)
            num_bytes -= len(page)
            number += 1
        file.write("</mediawiki>")
    return number


def write_large(folder: Path, form: str, num_bytes: float) -> Path:
    """Writes one document of `num_bytes`, then a thousand small ones if the format can hold several."""
    folder.mkdir(parents=True, exist_ok=True)
    small = list(texts(3e5, seed=2))[:1000]
    if form == "page":
        path = folder / "download/wikicorpus_en/wikicorpus_en.xml"
        path.parent.mkdir(parents=True)
    else:
        path = folder / f"large.{'jsonl' if form == 'jsonl' else 'txt'}"
    separator = {"line": " ", "file": "\n\n", "paragraph": "\n", "jsonl": "\\n\\n", "page": "\n\n"}[form]
    begin, end, between = {
        "jsonl": ('{"text": "', '"}\n', '{"text": "%s"}\n'),
        "line": ("", "\n", "%s\n"),
        "paragraph": ("", "\n\n", "%s\n\n"),
        "file": ("", "\n", ""),
        "page": (
            "<mediawiki><page><title>L</title><ns>0</ns><revision><text>",
            "</text></revision></page>",
            "<page><title>S</title><ns>0</ns><revision><text>%s</text></revision></page>",
        ),
    }[form]
    with open(path, "w", encoding="utf-8") as file:
        file.write(begin)
        pool = [separator.join(texts(1e5, seed=seed)) + separator for seed in range(3, 63)]
        rng = random.Random(0)
        while file.tell() < num_bytes:
            file.write(rng.choice(pool))
        file.write(end + "".join(between % text for text in small if between))
        file.write("</mediawiki>" if form == "page" else "")
    return path


def measure_documents(stages: Stages, options: argparse.Namespace) -> None:
    source = stages.root / "documents.txt"
    with open(source, "w", encoding="utf-8") as file:
        for text in texts(options.documents_mb * 1e6):
            file.write(text + "\n")
    measure_all_stages(stages, "documents", source, "line", options)


def measure_all_stages(stages: Stages, corpus: str, source: Path, form: str, options: argparse.Namespace) -> None:
    megabytes = source.stat().st_size / 1e6
    stages.run(corpus, "text_formatting", "--input_files", source, "--input_format", form, megabytes=megabytes)
    if corpus == "documents":
        corpus = f"{stages.counts('formatted*/*.manifest.json')['num_documents']:,} documents"
        source.unlink()
    shards = 2 if corpus.startswith("one") else options.shards
    stages.run(
        corpus, "sharding", "--n_training_shards", shards, "--n_test_shards", max(1, shards // 16), megabytes=megabytes
    )
    stages.run(corpus, "create_vocab", "--vocab_size", 30522, "--do_lower_case", 1, megabytes=megabytes)
    vocab = options.vocab_file or stages.root / "vocab/custom/vocab.txt"
    stages.run(corpus, "create_token_files", "--vocab_file", vocab, megabytes=megabytes)
    stages.run(corpus, "create_pairs", "--max_seq_length", 128, megabytes=megabytes)
    records, limit = ("create_tfrecord_files", "--max_seq_length", 128, "--vocab_file", vocab), options.records_mb
    stages.run(corpus, *records, megabytes=megabytes, most_records_mb=limit)
    if options.records_mb:
        shutil.rmtree(stages.root / "tfrecord")
    for stage in ("verify", "status", "inspect"):
        stages.run(corpus, stage, *(["--vocab_file", vocab] if stage == "inspect" else []), megabytes=megabytes)


def measure_dump(stages: Stages, options: argparse.Namespace) -> None:
    path = stages.root / "download/wikicorpus_en/wikicorpus_en.xml"
    num_pages = write_dump(path, options.dump, options.dump_mb * 1e6)
    megabytes = path.stat().st_size / 1e6
    stages.run("dump", "text_formatting", megabytes=megabytes, dataset="wikicorpus_en")
    counts = stages.counts("formatted*/*.manifest.json")
    assert counts["num_read"] == num_pages
    path.unlink()


def measure_large(stages: Stages, options: argparse.Namespace) -> None:
    for form in options.forms.split(","):
        path = write_large(stages.root, form, options.large_mb * 1e6)
        dataset = "wikicorpus_en" if form == "page" else "custom"
        corpus, megabytes = f"one {form}", path.stat().st_size / 1e6
        if form == "line":
            measure_all_stages(stages, corpus, path, form, options)
        elif form == "page":
            stages.run(corpus, "text_formatting", dataset=dataset, megabytes=megabytes)
        else:
            stages.run(corpus, "text_formatting", "--input_files", path, "--input_format", form, megabytes=megabytes)
        for left in stages.root.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def assignment(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Assigns documents with made-up lengths as sharding does, which is measured; runs in a separate process."""
    num_documents = settings["num_documents"]

    def run() -> dict[str, float]:
        lengths = np.random.default_rng(0).lognormal(7.2, 1.1, num_documents).clip(20, 3e6).astype(np.uint32)
        start = time.monotonic()
        assigned = sharding.assign_documents(lengths, sharding.ShardingSettings(256, 256, 0.1, "rules", 12345))
        assert sum(map(len, sharding.lengths_by_shard(lengths, assigned, 512))) == num_documents
        return {"wall_secs": time.monotonic() - start, "bytes": int(lengths.sum()), "peak": memory_peak_mib()}

    return run


CORPORA = {"documents": measure_documents, "dump": measure_dump, "large": measure_large}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default=",".join([*CORPORA, "index"]), help="corpora, separated by commas")
    parser.add_argument("--documents_mb", type=float, default=20)
    parser.add_argument("--dump_mb", type=float, default=20)
    parser.add_argument("--large_mb", type=float, default=20)
    parser.add_argument("--forms", default=",".join(FORMS), help="of the large document, separated by commas")
    parser.add_argument("--index", type=int, default=100_000, help="documents")
    parser.add_argument("--dump", type=existing, help="a dump whose markup is used")
    parser.add_argument("--vocab_file", type=existing, help="for the records; else the one made from the text")
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument("--records_mb", type=float, default=0, help="of records, ten times their text, to stop at")
    parser.add_argument("--n_processes", type=int, default=2)


def run(bench: Bench) -> None:
    options, rows = bench.options, []
    for name in options.only.split(","):
        if name == "index":
            what = Variant("benchmarks.preparation_memory:assignment", {"num_documents": options.index})
            found, title = bench.once(what), f"assignment of {options.index:,}"
            peak = round(found.figures["peak"])
            rows.append(("index", title, found.figures["bytes"] / 1e6, found.wall_secs, "", peak, peak, 1))
            continue
        with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
            stages = Stages(Path(folder), options.n_processes)
            CORPORA[name](stages, options)
            rows += stages.rows
    columns = "corpus|stage|MB in|seconds|rate|peak MiB, largest process|all at a time|processes"
    bench.table("Stages", columns.split("|"), rows)
