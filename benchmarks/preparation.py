"""Data preparation on one core, compared with the tools that others use.

- Instances, from sharded text to TFRecords: against tf-models-official's create_pretraining_data.py on
  the same text, in a new process each time, so that no cache is warm; imports are not counted.
  Lengths 128 and 512, dupe_factor 5, and other settings of ours.
- Text to what both phases can train from: token files with five passes of pairs of both lengths, against both runs of
  create_pretraining_data.py; in a new process, and in one that has tokenised other text of that size before, as most
  shards of a corpus are made.
- Formatting a dump of Wikipedia (--dump): against wikiextractor, as whole commands, on unpacked XML.
- Sharding: against copying the same bytes to the same disk, with fsync.
- create_tfrecord_files: in one process and in two, on two cores.

Variants take turns within each round, so that a busy machine slows all of them alike. The tools to
compare with need a separate environment:

    python3.11 -m venv peers
    peers/bin/pip install tf-models-official==2.15.0 wikiextractor==3.1.0 tensorflow-cpu==2.15.1 \\
        tensorflow-text==2.15.0 "numpy<2" "scipy>=1.11" "matplotlib>=3.8" "pandas>=2"
    python benchmarks/preparation.py --text data/formatted_one_article_per_line/*.txt --vocab_file vocab.txt \\
        --dump data/download/wikicorpus_en/wikicorpus_en.xml.bz2 --peer_python peers/bin/python

--text is the output of text_formatting: one document per line. It is repeated or cut to the wanted sizes.
"""

from __future__ import annotations

import argparse
import bz2
import itertools
import json
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

from bert_tf.base.progress import Progress  # noqa: E402
from bert_tf.records.pair_file import make_pairs  # noqa: E402
from bert_tf.records.pairs import PairSettings  # noqa: E402
from bert_tf.records.token_file import Shard  # noqa: E402
from bert_tf.run.run_folder import provenance  # noqa: E402
from data.instances.pretraining_examples import ExampleSettings, make_shard  # noqa: E402
from data.instances.tokens import TokenSettings, make_token_file  # noqa: E402
from data.sharding.sentences import split_by_rules  # noqa: E402

DUPE_FACTOR = 5
NUM_SHARDS = 8
LENGTHS = ((128, 20), (512, 80))
OTHER_SETTINGS = {
    "whole words": {"whole_word_masking": True},
    "up to 3 words": {"whole_word_masking": True, "max_ngram_size": 3},
    "case kept": {"do_lower_case": False},
}
PEER = """
import json, random, resource, sys, time
from absl import logging
from official.nlp.data import create_pretraining_data as peer
from official.nlp.tools import tokenization
logging.set_verbosity(logging.ERROR)
text, output, vocab_file, length, predictions, dupe_factor = sys.argv[1:]
length, predictions = int(length), int(predictions)
wall, cpu = time.perf_counter(), time.process_time()
tokenizer = tokenization.FullTokenizer(vocab_file=vocab_file, do_lower_case=True)
instances = peer.create_training_instances(
    [text], tokenizer, length, int(dupe_factor), 0.1, 0.15, predictions, random.Random(12345), False, None)
peer.write_instance_to_example_files(instances, tokenizer, length, predictions, [output], False, False)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps({"wall": wall, "cpu": cpu, "num": len(instances),
                  "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


class Sample(NamedTuple):
    """One measurement."""

    wall_secs: float
    cpu_secs: float
    num_instances: int = 0
    peak_mib: float = 0.0


Variant = Callable[[], Sample]


def make_instances(text: str, output: str, settings: str) -> None:
    """Makes one shard as a process of create_tfrecord_files does, and measures itself."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = make_shard(Path(text), Path(output), ExampleSettings(**json.loads(settings)), Shard(0, 0))
    print_sample(wall, cpu, made.counts["num_instances"])


def make_tokens_and_pairs(output: str, vocab_file: str, text: str, *texts_before: str) -> None:
    """Makes a token file and its pairs of both lengths as bertPrep.py does, and measures itself.

    `texts_before` are tokenised first, which is not measured.
    """
    settings = TokenSettings(vocab_file, True)
    for before in texts_before:
        make_token_file(Path(before), Path(output), settings, Shard(0, 0))
    wall, cpu = time.perf_counter(), time.process_time()
    make_token_file(Path(text), Path(output), settings, Shard(0, 0))
    pairs = [make_pairs(output, PairSettings(length, DUPE_FACTOR)) for length, _ in LENGTHS]
    print_sample(wall, cpu, sum(counts["num_instances"] for counts in pairs))


def print_sample(wall: float, cpu: float, num_instances: int) -> None:
    """Prints what was used since the two times were taken, for `run`."""
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"wall": wall, "cpu": cpu, "num": num_instances, "peak": peak}))


def run(command: list[str], cores: list[int], **environment: str) -> Sample:
    """Runs a command on the given cores; returns the time that it prints, or else the whole process's."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        ["taskset", "--cpu-list", ",".join(map(str, cores)), *command],
        text=True,
        capture_output=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )
    wall_secs = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode} of {command}:\n{done.stdout}\n{done.stderr}")
    last = done.stdout.rstrip().rpartition("\n")[2]
    if last.startswith("{"):
        said = json.loads(last)
        return Sample(said["wall"], said["cpu"], said["num"], said["peak"] / 1024)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Sample(wall_secs, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def bert_prep(folder: Path, arguments: list[str], cores: list[int]) -> Sample:
    return run(
        [sys.executable, str(CHECKOUT / "data/bertPrep.py"), *arguments], cores, BERT_PREP_WORKING_DIR=str(folder)
    )


def afresh(folder: Path, links: dict[str, Path]) -> Path:
    """A new working directory with links into others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, target in links.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)
    return folder


def write_text(texts: list[Path], num_bytes: int, path: Path, *, is_split: bool, skip_bytes: float = 0) -> None:
    """Writes whole documents until there are enough bytes, repeating them if they do not suffice.

    One document per line; with `is_split` one sentence per line and a blank line after each document. Leaves out the
    documents that a call for `skip_bytes` has written.
    """

    def documents():
        for text in texts:
            with open(text, encoding="utf-8", newline="\n") as file:
                yield from (line.rstrip("\n") for line in file if not line.isspace())

    if next(documents(), None) is None:
        raise SystemExit(f"--text: no document in {', '.join(map(str, texts))}")
    with open(path, "wb") as file:
        for document in itertools.chain.from_iterable(documents() for _ in itertools.count()):
            lines = [*split_by_rules(document), ""] if is_split else [document]
            content = "".join(line + "\n" for line in lines).encode()
            if skip_bytes > 0:
                skip_bytes -= len(content)
                continue
            file.write(content)
            if file.tell() >= num_bytes:
                return


def instance_variants(args: argparse.Namespace, folder: Path) -> dict[tuple[str, str], Variant]:
    """Variants by (length, name); for each length the other tool comes first."""
    text, output = folder / "sentences.txt", folder / "x.tfrecord"
    write_text(args.text, args.megabytes * 10**6, text, is_split=True)
    variants: dict[tuple[str, str], Variant] = {}
    for length, predictions in LENGTHS:
        sizes = {"max_seq_length": length, "max_predictions_per_seq": predictions}
        if args.peer_python:
            command = [args.peer_python, "-c", PEER, text, output, args.vocab_file, length, predictions, DUPE_FACTOR]
            variants[f"{length} / {predictions}", "tf-models-official"] = lambda command=command: run(
                list(map(str, command)), [args.core]
            )
        others = OTHER_SETTINGS if length == 128 else {}
        for name, changes in {"this project": {}, **others}.items():
            settings = {"vocab_file": args.vocab_file, "dupe_factor": DUPE_FACTOR, **sizes, **changes}
            variants[f"{length} / {predictions}", name] = lambda settings=settings: run(
                [sys.executable, __file__, "instances", str(text), str(output), json.dumps(settings)], [args.core]
            )
    other_text = folder / "other_sentences.txt"
    write_text(args.text, args.megabytes * 10**6, other_text, is_split=True, skip_bytes=args.megabytes * 10**6)
    tokens = [sys.executable, __file__, "tokens", str(folder / "x.tokens"), args.vocab_file, str(text)]
    variants["both", "token files"] = lambda: run(tokens, [args.core])
    variants["both", "token files, second shard"] = lambda: run([*tokens, str(other_text)], [args.core])
    return variants


def repeat_pages(dump: Path, num_bytes: int, path: Path) -> float:
    """Writes a dump of at least `num_bytes` of XML; returns the bytes per second of decompressing bz2."""
    packed, started = dump.read_bytes(), time.process_time()
    xml = bz2.decompress(packed) if dump.suffix == ".bz2" else packed
    secs = time.process_time() - started
    first, end = xml.index(b"<page>"), xml.rindex(b"</page>") + len(b"</page>\n")
    pages = xml[first:end]
    path.write_bytes(xml[:first] + pages * max(1, -(-num_bytes // len(pages))) + xml[end:])
    return len(xml) / secs


def formatting_variants(args: argparse.Namespace, folder: Path, xml: Path) -> dict[str, Variant]:
    def ours() -> Sample:
        return bert_prep(
            afresh(folder / "formatting", {"download/wikicorpus_en/wikicorpus_en.xml": xml}),
            ["--action=text_formatting", "--dataset=wikicorpus_en", "--n_processes=1", "--keep_duplicates"],
            [args.core],
        )

    def theirs() -> Sample:
        output = afresh(folder / "extracted", {})
        return run(
            [
                args.peer_python,
                "-m",
                "wikiextractor.WikiExtractor",
                str(xml),
                "--output",
                str(output),
                "--processes",
                "1",
                "--quiet",
            ],
            [args.core],
        )

    return {**({"wikiextractor": theirs} if args.peer_python else {}), "this project": ours}


def copy(source: Path, target: Path) -> Sample:
    wall, cpu = time.perf_counter(), time.process_time()
    with open(source, "rb") as reader, open(target, "wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())
    sample = Sample(time.perf_counter() - wall, time.process_time() - cpu)
    target.unlink()
    return sample


def stage_variants(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Variant], dict[str, Variant]]:
    """Sharding, and create_tfrecord_files in one and in two processes."""
    name = "formatted_one_article_per_line/custom_one_document_per_line.txt"
    text = folder / "documents.txt"
    write_text(args.text, args.stage_megabytes * 10**6, text, is_split=False)
    shard = [
        "--action=sharding",
        "--dataset=custom",
        f"--n_training_shards={NUM_SHARDS}",
        "--n_test_shards=0",
        "--fraction_test_set=0",
    ]
    made = afresh(folder / "made", {name: text})
    bert_prep(made, shard, args.cores)

    def sharding(num_processes: int) -> Sample:
        return bert_prep(
            afresh(folder / "sharding", {name: text}),
            [*shard, f"--n_processes={num_processes}"],
            args.cores[:num_processes],
        )

    def records(num_processes: int) -> Sample:
        links = {name: text, "sharded": made / "sharded"}
        return bert_prep(
            afresh(folder / "records", links),
            [
                "--action=create_tfrecord_files",
                "--dataset=custom",
                f"--vocab_file={args.vocab_file}",
                "--max_seq_length=128",
                "--max_predictions_per_seq=20",
                f"--n_processes={num_processes}",
            ],
            args.cores[:num_processes],
        )

    names = {1: "one process", 2: "two processes"}
    return (
        {
            "copy, fsync'd": lambda: copy(text, folder / "copy"),
            **{label: lambda number=number: sharding(number) for number, label in names.items()},
        },
        {label: lambda number=number: records(number) for number, label in names.items()},
    )


def measure(variants: dict, rounds: int, description: str) -> dict:
    """The median time of each variant; variants take turns."""
    samples: dict = {name: [] for name in variants}
    with Progress(total=rounds * len(variants), unit="measurements", description=description) as bar:
        for _ in range(rounds):
            for name, variant in variants.items():
                samples[name].append(variant())
                bar.update(1)
    return {name: Sample(*map(statistics.median, zip(*found))) for name, found in samples.items()}


def times(peer: Sample | None, sample: Sample, field: str) -> str:
    return f"{getattr(peer, field) / getattr(sample, field):.3g}" if peer else ""


def print_rates(title: str, megabytes: float, found: dict[str, Sample]) -> None:
    first = next(iter(found.values()))
    print(
        f"\n## {title}\n\n| | seconds | MB/s | times the first's rate | MB/s of processor time |\n|---|---|---|---|---|"
    )
    for name, sample in found.items():
        print(
            f"| {name} | {sample.wall_secs:.2f} | {megabytes / sample.wall_secs:.2f} | "
            f"{times(first, sample, 'wall_secs')} | {megabytes / sample.cpu_secs:.2f} |"
        )


def print_instances(megabytes: float, found: dict[tuple[str, str], Sample]) -> None:
    print(
        "\n## Instances, one core\n\n| length / predictions | | MB/s | times the peer's rate | "
        "MB/s of processor time | times the peer's | instances/s | peak MiB |\n|---|---|---|---|---|---|---|---|"
    )
    peers = {lengths: sample for (lengths, name), sample in found.items() if name == "tf-models-official"}
    if peers:
        # Text to both lengths takes them both runs.
        peers["both"] = Sample(*(sum(values) for values in zip(*peers.values())))
    for (lengths, name), sample in found.items():
        peer = peers.get(lengths)
        print(
            f"| {lengths} | {name} | {megabytes / sample.wall_secs:.2f} | {times(peer, sample, 'wall_secs')} | "
            f"{megabytes / sample.cpu_secs:.2f} | {times(peer, sample, 'cpu_secs')} | "
            f"{sample.num_instances / sample.wall_secs:,.0f} | {sample.peak_mib:.0f} |"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files with a document a line")
    parser.add_argument("--vocab_file", type=os.path.abspath, required=True)
    parser.add_argument("--dump", type=Path, help="of Wikipedia, .xml or .xml.bz2; without it formatting is left out")
    parser.add_argument("--peer_python", help="the Python of the peers' environment; without it they are left out")
    parser.add_argument("--megabytes", type=float, default=12, help="of text to make instances of; %(default)s")
    parser.add_argument(
        "--stage_megabytes",
        type=float,
        default=96,
        help="of text for the other parts, and twice as many as of XML; %(default)s",
    )
    parser.add_argument("--rounds", type=int, default=3, help="%(default)s")
    args = parser.parse_args()
    # The last cores, because programs without CPU affinity tend to run on the first ones.
    args.cores = sorted(os.sched_getaffinity(0), reverse=True)[:2]
    args.core = args.cores[0]
    return args


def main() -> None:
    args = parse()
    facts = provenance()
    print("# Preparing data: rates on one core\n")
    print(
        f"{args.rounds} interleaved rounds, medians; {facts['processor']}, {facts['num_cores']} cores, Python "
        f"{facts['versions']['python']}, NumPy {facts['versions']['numpy']}; text "
        f"{', '.join(path.name for path in args.text)}; dupe_factor {DUPE_FACTOR}, vocabulary "
        f"{Path(args.vocab_file).name}."
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = measure(instance_variants(args, folder), args.rounds, "instances")
        print_instances((folder / "sentences.txt").stat().st_size / 1e6, found)
        if args.dump:
            xml = folder / "dump.xml"
            unpacked = repeat_pages(args.dump, int(args.stage_megabytes / 2 * 1e6), xml)
            found = measure(formatting_variants(args, folder, xml), args.rounds, "formatting")
            megabytes = xml.stat().st_size / 1e6
            print_rates(f"Formatting {megabytes:.0f} MB of XML, one core, whole commands", megabytes, found)
            print(f"\nUnpacking bz2 alone: {unpacked / 1e6:.1f} MB/s of XML.")
        sharding, records = stage_variants(args, folder)
        megabytes = (folder / "documents.txt").stat().st_size / 1e6
        print_rates(
            f"Sharding {megabytes:.0f} MB, whole commands", megabytes, measure(sharding, args.rounds, "sharding")
        )
        print_rates(
            f"Records of length 128 from {megabytes:.0f} MB in {NUM_SHARDS} shards, whole commands",
            megabytes,
            measure(records, args.rounds, "records"),
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["instances"]:
        make_instances(*sys.argv[2:])
    elif sys.argv[1:2] == ["tokens"]:
        make_tokens_and_pairs(*sys.argv[2:])
    else:
        main()
