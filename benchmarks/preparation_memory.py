"""Memory, time and rate of every stage of data preparation, on generated corpora of any size.

Four corpora: `documents`, short documents, one per line; `dump`, Wikipedia's XML (with the markup of a
real dump if one is given, else generated); `large`, a single huge document among small ones, in each
format that text_formatting reads; `index`, only the index and the assignment of documents, with
lengths like an encyclopedia's. No document occurs twice. Each stage runs as the user's command, and
ten times a second its memory is read: the peak of each process (VmHWM, kept by the kernel) and the
largest total at any time (PSS, which counts shared pages once).

    python benchmarks/preparation_memory.py
    python benchmarks/preparation_memory.py --documents_mb 3000 --dump_mb 1100 --large_mb 30 --index 6500000 \
        --dump wikicorpus_en.xml.bz2 --vocab_file vocab.txt
"""

from __future__ import annotations

import argparse
import bz2
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
from typing import Callable, NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402

from bert_tf.base.progress import Progress  # noqa: E402
from data.sharding import sharding  # noqa: E402

INTERVAL_SECS = 0.1
FORMS = ("line", "file", "paragraph", "jsonl", "page")
_SYLLABLES = "ba be bi ca co da de do fa fi ga go ha he jo ka ki la le lo ma mi na no pa pe ra re sa so ta te".split()


class Measured(NamedTuple):
    corpus: str
    stage: str
    megabytes: float  # of its input
    secs: float
    peak_mib: int  # of the largest process
    sum_mib: int  # of all at a time
    num_processes: int
    note: str


def _memory_of(pid: int) -> dict[str, int]:
    """KiB by field name; empty if the process has ended."""
    found: dict[str, int] = {}
    try:
        for name in ("status", "smaps_rollup"):
            for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
                if line.startswith(("VmHWM:", "Pss:")):
                    found[line.split(":")[0]] = int(line.split()[1])
    except (OSError, ValueError):
        pass
    return found


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(process for child in children for process in _tree(int(child)))]


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
    # Emptied as it comes; the last lines tell why a command failed.
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
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{log.read()[-2000:]}")
    return secs, peaks, largest_sum, stopped


class Bench:
    """Runs stages in one working directory and collects the measurements."""

    def __init__(self, root: Path, num_processes: int):
        self.root = root
        self.num_processes = num_processes
        self.rows: list[Measured] = []

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
        print(f"{corpus}: {stage} ...", flush=True)
        secs, peaks, largest, stopped = watch(
            command,
            {"BERT_PREP_WORKING_DIR": str(self.root)},
            lambda: most_records_mb > 0 and self._records_mb() > most_records_mb,
        )
        note = f"stopped after {self._records_mb():,.0f} MB of records" if stopped else f"{megabytes / secs:,.1f} MB/s"
        # multiprocessing's resource tracker is not a worker.
        workers = [kib for kib in peaks.values() if kib > 15_000]
        peak, note = max(peaks.values()) >> 10, "" if stage == "status" else note
        self._add(Measured(corpus, stage, megabytes, secs, peak, largest >> 10, len(workers), note))

    def _records_mb(self) -> float:
        return sum(path.stat().st_size for path in self.root.glob("tfrecord/*/*/*/*.tfrecord*")) / 1e6

    def _add(self, row: Measured) -> None:
        self.rows.append(row)
        print(describe(row), flush=True)

    def counts(self, pattern: str) -> dict[str, int]:
        (path,) = self.root.glob(pattern)
        return json.loads(path.read_text())["counts"]


def describe(row: Measured) -> str:
    return (
        f"| {row.corpus} | {row.stage} | {row.megabytes:,.0f} | {row.secs:,.0f} | {row.note} | {row.peak_mib:,} | "
        f"{row.sum_mib:,} | {row.num_processes} |"
    )


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
    with Progress(total=int(num_bytes), unit="B", description="generating", disable=num_bytes < 1e7) as bar:
        while num_bytes > 0:
            # A unique word, because real text has new words on every page.
            own = "".join(rng.choices(_SYLLABLES, k=5))
            text = " ".join([*rng.choices(pool, k=rng.randint(1, 8)), f"Number {number} is {own}."])
            yield text
            number += 1
            num_bytes -= len(text) + 1
            bar.update(len(text) + 1)


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
    with (
        open(path, "w", encoding="utf-8") as file,
        Progress(total=int(num_bytes), unit="B", description="generating") as bar,
    ):
        file.write("<mediawiki>")
        while num_bytes > 0:
            text = f"{pages[number % len(pages)]}\n\nThis is number {number} of its kind.\n"
            page = (
                f"<page><title>Page {number}</title><ns>0</ns><id>{number}</id><revision><id>1</id>"
                f'<text xml:space="preserve">{text}</text></revision></page>\n'
            )
            file.write(page)
            num_bytes -= len(page)
            bar.update(len(page))
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


def measure_documents(bench: Bench, options: argparse.Namespace) -> None:
    source = bench.root / "documents.txt"
    with open(source, "w", encoding="utf-8") as file:
        for text in texts(options.documents_mb * 1e6):
            file.write(text + "\n")
    measure_all_stages(bench, "documents", source, "line", options)


def measure_all_stages(bench: Bench, corpus: str, source: Path, form: str, options: argparse.Namespace) -> None:
    megabytes = source.stat().st_size / 1e6
    bench.run(corpus, "text_formatting", "--input_files", source, "--input_format", form, megabytes=megabytes)
    if corpus == "documents":
        num = bench.counts("formatted*/*.manifest.json")["num_documents"]
        print(f"{num:,} documents")
        source.unlink()
    shards = options.shards if corpus == "documents" else 2
    bench.run(
        corpus, "sharding", "--n_training_shards", shards, "--n_test_shards", max(1, shards // 16), megabytes=megabytes
    )
    bench.run(corpus, "create_vocab", "--vocab_size", 30522, "--do_lower_case", 1, megabytes=megabytes)
    vocab = options.vocab_file or bench.root / "vocab/custom/vocab.txt"
    bench.run(
        corpus,
        "create_tfrecord_files",
        "--max_seq_length",
        128,
        "--vocab_file",
        vocab,
        megabytes=megabytes,
        most_records_mb=options.records_mb,
    )
    if options.records_mb:
        shutil.rmtree(bench.root / "tfrecord")
    for stage in ("verify", "status", "inspect"):
        bench.run(corpus, stage, *(["--vocab_file", vocab] if stage == "inspect" else []), megabytes=megabytes)


def measure_dump(bench: Bench, options: argparse.Namespace) -> None:
    path = bench.root / "download/wikicorpus_en/wikicorpus_en.xml"
    num_pages = write_dump(path, options.dump, options.dump_mb * 1e6)
    megabytes = path.stat().st_size / 1e6
    bench.run("dump", "text_formatting", megabytes=megabytes, dataset="wikicorpus_en")
    counts = bench.counts("formatted*/*.manifest.json")
    print(f"{num_pages:,} pages: {counts}")
    assert counts["num_read"] == num_pages
    path.unlink()


def measure_large(bench: Bench, options: argparse.Namespace) -> None:
    for form in options.forms.split(","):
        path = write_large(bench.root, form, options.large_mb * 1e6)
        dataset = "wikicorpus_en" if form == "page" else "custom"
        corpus, megabytes = f"one {form}", path.stat().st_size / 1e6
        if form == "line":
            measure_all_stages(bench, corpus, path, form, options)
        elif form == "page":
            bench.run(corpus, "text_formatting", dataset=dataset, megabytes=megabytes)
        else:
            bench.run(corpus, "text_formatting", "--input_files", path, "--input_format", form, megabytes=megabytes)
        for left in bench.root.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def assign_index(num_documents: int) -> None:
    """Makes the arrays of an index and assigns documents as sharding does; runs in a separate process."""
    lengths = np.random.default_rng(0).lognormal(7.2, 1.1, num_documents).clip(20, 3e6).astype(np.uint32)
    offsets = np.cumsum(lengths, dtype=np.uint64)
    index = sharding.DocumentIndex(np.zeros(num_documents, np.uint16), offsets, lengths)
    settings = sharding.ShardingSettings(256, 256, 0.1, "rules", 12345)
    start = time.monotonic()
    assignment = sharding.assign_documents(index.lengths, settings)
    assert sum(own.num_documents for own in sharding.documents_by_shard(index, assignment, 512)) == num_documents
    secs = time.monotonic() - start
    print(json.dumps([int(lengths.sum()), secs, _memory_of(os.getpid())["VmHWM"]]))


def measure_index(bench: Bench, options: argparse.Namespace) -> None:
    output = subprocess.run(
        [sys.executable, __file__, "--only", "assign", "--index", str(options.index)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    num_bytes, secs, peak = json.loads(output.splitlines()[-1])
    bench._add(
        Measured("index", f"assignment of {options.index:,}", num_bytes / 1e6, secs, peak >> 10, peak >> 10, 1, "")
    )


MEASURES = {"documents": measure_documents, "dump": measure_dump, "large": measure_large, "index": measure_index}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MEASURES), help="corpora, separated by commas")
    parser.add_argument("--documents_mb", type=float, default=20)
    parser.add_argument("--dump_mb", type=float, default=20)
    parser.add_argument("--large_mb", type=float, default=20)
    parser.add_argument("--forms", default=",".join(FORMS), help="of the large document, separated by commas")
    parser.add_argument("--index", type=int, default=100_000, help="documents")
    parser.add_argument("--dump", type=Path, help="a dump whose markup is used")
    parser.add_argument("--vocab_file", type=Path, help="for the records; else the one made from the text")
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument(
        "--records_mb",
        type=float,
        default=0,
        help="records take ten times the disk of their text: stop when there are so many; 0: never",
    )
    parser.add_argument("--n_processes", type=int, default=2)
    options = parser.parse_args()
    if options.only == "assign":
        assign_index(options.index)
        return
    rows: list[Measured] = []
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory(prefix="preparation_memory_") as folder:
            bench = Bench(Path(folder), options.n_processes)
            MEASURES[name](bench, options)
            rows += bench.rows
    print("\n| corpus | stage | MB in | s | rate | peak MiB, largest process | all at a time | processes |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(describe(row))


if __name__ == "__main__":
    main()
