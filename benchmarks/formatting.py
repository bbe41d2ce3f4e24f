"""Formatting a dump of Wikipedia, beside wikiextractor; and in two processes.

Complete commands are measured, each in a new folder. The comparison with wikiextractor uses a quarter of the dump; two
processes, which take a second to start, get all of it.

    python -m benchmarks formatting --dump wikicorpus_en.xml.bz2 --copies 96
"""

from __future__ import annotations

import argparse
import bz2
from pathlib import Path

from benchmarks import peers
from benchmarks.frame import Bench, existing_path, run_command

NEEDS = "peer wikiextractor; --dump of Wikipedia, .xml.bz2"
COMMAND = "--action=text_formatting --dataset=wikicorpus_en --keep_duplicates"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dump", type=existing_path, required=True, help="an .xml.bz2")
    parser.add_argument("--copies", type=int, default=96, help="of its pages; %(default)s")


def write_dump(source: Path, num_copies: int, packed: Path, plain: Path) -> None:
    """The pages of a dump several times over, compressed in streams of a hundred pages and uncompressed."""
    content = bz2.decompress(source.read_bytes())
    first, end = content.index(b"<page>"), content.rindex(b"</page>") + len(b"</page>\n")
    pages = content[first:end].split(b"</page>\n")[:-1]
    streams = [b"".join(page + b"</page>\n" for page in pages[at : at + 100]) for at in range(0, len(pages), 100)]
    with open(packed, "wb") as to_packed, open(plain, "wb") as to_plain:
        for part in (content[:first], *streams * num_copies, content[end:]):
            to_packed.write(bz2.compress(part))
            to_plain.write(part)


def run(bench: Bench) -> None:
    packed, plain = bench.folder / "dump.xml.bz2", bench.folder / "dump.xml"
    write_dump(bench.options.dump, max(1, bench.options.copies // 4), packed, plain)

    def ours(dump: Path, num_processes: int) -> None:
        name = f"download/wikicorpus_en/wikicorpus_en.{dump.name.partition('.')[2]}"
        bench.stage(COMMAND, name, dump, num_processes)

    def theirs() -> None:
        extract = [peers.find_python("wikiextractor"), "-m", "wikiextractor.WikiExtractor", plain, "--output"]
        run_command([*extract, bench.folder / "extracted", "--processes", "1", "--quiet"])

    work = {"amount": plain.stat().st_size / 1e6, "unit": "MB of XML"}
    variants = {} if bench.options.no_peers else {"wikiextractor, .xml": theirs}
    variants["this project, .xml"] = lambda: ours(plain, 1)
    bench.compare(f"Formatting {work['amount']:.0f} MB of XML, whole commands, one core", variants, **work)
    write_dump(bench.options.dump, bench.options.copies, packed, plain)
    work = {"amount": plain.stat().st_size / 1e6, "unit": "MB of XML"}
    variants = {"one process, one core": lambda: ours(packed, 1), "two processes, two cores": lambda: ours(packed, 2)}
    bench.compare(
        f"Formatting {work['amount']:.0f} MB of XML from .xml.bz2, whole commands", variants, **work, clock="wall"
    )
