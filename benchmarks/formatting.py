"""Formatting a dump of Wikipedia from .xml.bz2: in one process and in two, and the reader without the cleaning.

Whole commands, each in a new folder; variants take turns within each round. `--reader` measures in this process how
fast batches of articles come, which is what the cleaning of many processes would be given: from .xml, where
nothing is unpacked, and from .xml.bz2 with one thread and with several.

    python benchmarks/formatting.py --dump wikicorpus_en.xml.bz2 --copies 24 --rounds 5
"""

from __future__ import annotations

import argparse
import bz2
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from data.corpora import wiki  # noqa: E402


class Sample(NamedTuple):
    """One measurement."""

    wall_secs: float
    cpu_secs: float


def write_dump(source: Path, num_copies: int, packed: Path, plain: Path) -> None:
    """The pages of a dump several times over, packed and not."""
    content = bz2.decompress(source.read_bytes())
    first, end = content.index(b"<page>"), content.rindex(b"</page>") + len(b"</page>\n")
    compressor = bz2.BZ2Compressor()
    with open(packed, "wb") as to_packed, open(plain, "wb") as to_plain:
        for part in (content[:first], *[content[first:end]] * num_copies, content[end:]):
            to_packed.write(compressor.compress(part))
            to_plain.write(part)
        to_packed.write(compressor.flush())


def cpu_secs() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def timed(work: Callable[[], object]) -> Sample:
    wall, cpu = time.perf_counter(), cpu_secs()
    work()
    return Sample(time.perf_counter() - wall, cpu_secs() - cpu)


def format_dump(packed: Path, num_processes: int, scratch: Path) -> None:
    folder = scratch / "work"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "download/wikicorpus_en").mkdir(parents=True)
    (folder / "download/wikicorpus_en/wikicorpus_en.xml.bz2").symlink_to(packed)
    command = [sys.executable, str(CHECKOUT / "data/bertPrep.py"), "--action", "text_formatting"]
    command += ["--dataset", "wikicorpus_en", "--keep_duplicates", "--n_processes", str(num_processes)]
    environment = {**os.environ, "BERT_PREP_WORKING_DIR": str(folder)}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def read_dump(path: Path, num_threads: int) -> None:
    for _ in wiki.read_batches([path], [], {}, num_threads=num_threads):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path, required=True, help="an .xml.bz2")
    parser.add_argument("--copies", type=int, default=24, help="of its pages; %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="%(default)s")
    parser.add_argument("--threads", type=int, default=2, help="of the reader; %(default)s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        packed, plain = scratch / "dump.xml.bz2", scratch / "dump.xml"
        write_dump(options.dump, options.copies, packed, plain)
        variants: dict[str, Callable[[], None]] = {
            "formatting, one process": lambda: format_dump(packed, 1, scratch),
            "formatting, two processes": lambda: format_dump(packed, 2, scratch),
            "reader, .xml": lambda: read_dump(plain, 1),
            "reader, .xml.bz2, one thread": lambda: read_dump(packed, 1),
            f"reader, .xml.bz2, {options.threads} threads": lambda: read_dump(packed, options.threads),
        }
        samples: dict[str, list[Sample]] = {name: [] for name in variants}
        for number in range(options.rounds):
            for name, work in variants.items():
                samples[name].append(timed(work))
                load = " ".join(f"{value:.1f}" for value in os.getloadavg())
                print(f"round {number + 1}: {name}: {samples[name][-1]}, load {load}", file=sys.stderr, flush=True)
        megabytes = plain.stat().st_size / 1e6
    print(f"{megabytes:.0f} MB of XML, medians of {options.rounds} rounds\n")
    print("| | seconds | MB/s of XML | processor seconds | MB/s of processor time |\n|---|---|---|---|---|")
    for name, found in samples.items():
        wall, cpu = (statistics.median(values) for values in zip(*found))
        print(f"| {name} | {wall:.2f} | {megabytes / wall:.1f} | {cpu:.2f} | {megabytes / cpu:.1f} |")


if __name__ == "__main__":
    main()
