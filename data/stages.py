"""The stages of data preparation: the input, output files and manifest of each.

File names below the working directory are part of the interface, because users glob them:
``download/<corpus>/``, ``formatted_one_article_per_line/<corpus>_one_<...>_per_line.txt``,
``sharded/<dataset>/{training,test}/<dataset>_<split>_<i>.txt`` and
``tfrecord/<parameters>/<dataset>/{training,test}/<dataset>_<split>_<i>.tfrecord``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file
from bert_tf.text.tokenizer import open_tokenizer
from bert_tf.text.vocabulary import check_casing
from data.corpora import formatting, registry, sample
from data.fetching import download
from data.instances import pretraining_examples as examples
from data.instances import vocabulary
from data.running.entries import FileEntry, InputFile, Manifest, VocabEntry, describe_input, read_manifest
from data.running.manifest import Stage
from data.running.workers import ProcessPool, Workers, make_files
from data.sharding import sharding

DEFAULT_SHARDS = (1472, 1472)
SAMPLE_SHARDS = (8, 2)
GOOGLE_VOCABULARIES = {True: "uncased_L-24_H-1024_A-16/vocab.txt", False: "cased_L-24_H-1024_A-16/vocab.txt"}
GOOGLE_CHINESE_VOCABULARY = "chinese_L-12_H-768_A-12/vocab.txt"


class Layout:
    """The folders below a working directory."""

    def __init__(self, working_dir: Path):
        self.root = working_dir
        self.download = working_dir / "download"
        self.formatted = working_dir / "formatted_one_article_per_line"
        self.sharded = working_dir / "sharded"
        self.tfrecord = working_dir / "tfrecord"
        self.vocab = working_dir / "vocab"

    def download_folder(self, dataset: str) -> Path:
        source = registry.DATASETS[dataset].source
        return self.download / (source.folder if source else dataset)

    def formatted_file(self, corpus: str) -> Path:
        return self.formatted / registry.FORMATTED_FILES[corpus]

    def formatted_manifest(self, corpus: str) -> Path:
        return self.formatted_file(corpus).with_suffix(".manifest.json")

    def drop_report(self, corpus: str) -> Path:
        return self.formatted_file(corpus).with_suffix(".dropped.tsv")


def workers_of(options: argparse.Namespace, layout: Layout) -> Workers:
    if options.dask_scheduler is None:
        return ProcessPool(options.n_processes)
    # Imported here, because it needs a package that only Dask's users install.
    from data.running.dask_cluster import DaskCluster

    return DaskCluster(options.dask_scheduler, layout.root)


def counts_in_words(counts: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {count:,}" if isinstance(count, int) else f"{name} {count:.4g}" for name, count in counts.items()
    )


def _print_done(what: str, counts: Mapping[str, float], where: Path) -> None:
    print(f"{what}: {counts_in_words(counts)}\n{where}", flush=True)


def _already_done(stage: Stage) -> bool:
    if stage.is_done:
        print(
            f"nothing to do: {stage.manifest_path} lists all files, made with the same arguments from the same input",
            flush=True,
        )
    return stage.is_done


def run_download(options: argparse.Namespace, layout: Layout) -> None:
    if options.dataset in ("sample", "all"):
        _make_sample(layout.download / "sample")
    if options.dataset != "sample":
        download.download(options.dataset, layout.download)


def _make_sample(folder: Path) -> None:
    names = (sample.ARTICLES_FILE, *sample.QUESTION_FILES)
    temporary = [f"{name}*" for name in names]
    with Stage(
        "download", "sample", folder / "manifest.json", {"seed": sample.SEED}, [], temporary_files=temporary
    ) as stage:
        if not _already_done(stage):
            _print_done("sample", sample.write_sample(stage, folder, sample.SEED), folder)


def run_text_formatting(options: argparse.Namespace, layout: Layout) -> None:
    parts = registry.corpora_of(options.dataset)
    if len(parts) > 1:
        raise UserError(
            f"dataset={options.dataset} consists of others: format each of {', '.join(parts)}, then run sharding"
        )
    corpus = registry.open_corpus(options, layout.root)
    if options.dataset == "custom":
        print(f"{len(corpus.paths):,} input files; input_format={corpus.arguments['input_format']}", flush=True)
    output = layout.formatted_file(options.dataset)
    manifest_path = layout.formatted_manifest(options.dataset)
    inputs = [describe_input(path, layout.root) for path in corpus.paths]
    outputs = f"{output} and {manifest_path}"
    with Stage(
        "text_formatting", options.dataset, manifest_path, corpus.arguments, inputs, outputs_to_delete=outputs
    ) as stage:
        if not _already_done(stage):
            report = layout.drop_report(options.dataset) if options.keep_report else None
            writer = formatting.Writer(stage, output, options.keep_duplicates, options.max_bad_records, report)
            counts = formatting.format_corpus(writer, corpus, workers_of(options, layout))
            _print_done("formatted", counts, output)


def _formatted_inputs(dataset: str, layout: Layout) -> tuple[list[Path], list[InputFile]]:
    paths: list[Path] = []
    inputs: list[InputFile] = []
    for corpus in registry.corpora_of(dataset):
        path = layout.formatted_file(corpus)
        if dataset == "books_wiki_en_corpus" and corpus == "bookscorpus" and not path.is_file():
            raise UserError(
                f"books_wiki_en_corpus needs books, and {path} does not exist; BookCorpus is no "
                f"longer distributed. Put a folder of .txt books into {layout.download / corpus} "
                "and run --action=text_formatting --dataset=bookscorpus, or continue with Wikipedia "
                "alone: --dataset=wikicorpus_en"
            )
        if not path.is_file():
            raise UserError(f"{path} does not exist: run bertPrep.py --action=text_formatting --dataset={corpus} first")
        manifest = read_manifest(layout.formatted_manifest(corpus))
        made = {entry.file: entry for entry in manifest.entries} if manifest else {}
        entry = made.get(path.name)
        if entry is not None and entry.num_bytes != path.stat().st_size:
            raise UserError(
                f"{path} has {path.stat().st_size:,} bytes, its manifest says {entry.num_bytes:,}: "
                f"run bertPrep.py --action=text_formatting --dataset={corpus} again"
            )
        paths.append(path)
        inputs.append(describe_input(path, layout.root, entry.sha256 if entry else None))
    return paths, inputs


def run_sharding(options: argparse.Namespace, layout: Layout) -> None:
    dataset = options.dataset
    defaults = SAMPLE_SHARDS if dataset == "sample" else DEFAULT_SHARDS
    num_training, num_test = (
        default if given is None else given
        for given, default in zip((options.n_training_shards, options.n_test_shards), defaults)
    )
    settings = sharding.ShardingSettings(
        num_training, num_test, options.fraction_test_set, options.segmentation_method, options.random_seed
    ).validated()
    paths, inputs = _formatted_inputs(dataset, layout)
    folder = layout.sharded / dataset
    with Stage(
        "sharding",
        dataset,
        folder / "manifest.json",
        settings._asdict(),
        inputs,
        temporary_files=[*_shard_globs(dataset), sharding.piece_names(dataset)],
    ) as stage:
        if not _already_done(stage):
            counts = sharding.shard_corpus(stage, dataset, paths, settings, workers_of(options, layout))
            _print_done("sharded", counts, folder)


def _shard_globs(dataset: str) -> list[str]:
    return [f"{split}/{dataset}_{split}_*" for split in sharding.SPLITS]


def run_create_vocab(options: argparse.Namespace, layout: Layout) -> None:
    paths, inputs = _formatted_inputs(options.dataset, layout)
    output = Path(options.vocab_file or layout.vocab / options.dataset / "vocab.txt").absolute()
    manifest_path = output.with_name(output.name + ".manifest.json")
    if output.exists() and not manifest_path.exists():
        raise UserError(
            f"vocab_file={output} exists and was not made by --action=create_vocab: name another "
            "file, or use this one as it is"
        )
    arguments = {"vocab_size": options.vocab_size, "do_lower_case": bool(options.do_lower_case)}
    with Stage(
        "create_vocab",
        options.dataset,
        manifest_path,
        arguments,
        inputs,
        outputs_to_delete=f"{output} and {manifest_path}",
        temporary_files=[f"{output.name}*"],
    ) as stage:
        if not _already_done(stage):
            counts = vocabulary.create_vocab(stage, output, paths, options.vocab_size, bool(options.do_lower_case))
            _print_done("vocabulary", counts, output)


def _vocab_file(options: argparse.Namespace, layout: Layout) -> Path:
    if options.vocab_file:
        return Path(options.vocab_file)
    of_google = GOOGLE_VOCABULARIES[bool(options.do_lower_case)]
    if options.dataset == "wikicorpus_zh":
        of_google = GOOGLE_CHINESE_VOCABULARY
    candidates = [
        layout.vocab / options.dataset / "vocab.txt",
        layout.download / "google_pretrained_weights" / of_google,
    ]
    for candidate in candidates:
        if candidate.is_file():
            print(f"vocab_file={candidate}", flush=True)
            return candidate
    raise UserError(
        f"vocab_file is not given and none of {', '.join(map(str, candidates))} exists: name one, "
        f"or make one from the text by --action=create_vocab --dataset={options.dataset}"
    )


def _sharded_inputs(dataset: str, layout: Layout) -> tuple[Manifest, list[InputFile]]:
    registry.corpora_of(dataset)
    folder = layout.sharded / dataset
    manifest = read_manifest(folder / "manifest.json")
    if manifest is None:
        raise UserError(
            f"{folder} holds no finished shards: run bertPrep.py --action=sharding --dataset={dataset} first"
        )
    for name in ("num_training_shards", "fraction_test_set"):
        if not isinstance(manifest.arguments.get(name), (int, float)):
            raise UserError(f"{folder}/manifest.json names no {name}: delete {folder} and make it again")
    inputs = []
    for entry in manifest.entries:
        path = folder / entry.file
        if not entry.is_in(folder):
            raise UserError(
                f"{path} is missing or was changed: run bertPrep.py --action=sharding "
                f"--dataset={dataset} again with the same arguments"
            )
        inputs.append(describe_input(path, layout.root, entry.sha256))
    return manifest, inputs


def tfrecord_folder(settings: examples.ExampleSettings, sharded: Manifest) -> str:
    """The folder's name: NVIDIA's format, followed by the parameters that only this project has."""
    made = sharded.arguments
    own = "_whole_word_masking" if settings.whole_word_masking else ""
    own += f"_max_ngram_size_{settings.max_ngram_size}" if settings.max_ngram_size > 1 else ""
    own += "_masking_dynamic" if settings.masking == "dynamic" else ""
    return (
        f"lower_case_{int(settings.do_lower_case)}_seq_len_{settings.max_seq_length}"
        f"_max_pred_{settings.max_predictions_per_seq}"
        f"_masked_lm_prob_{settings.masked_lm_prob}_random_seed_{settings.random_seed}"
        f"_dupe_factor_{settings.dupe_factor}_shard_{made['num_training_shards']}"
        f"_test_split_{100 * made['fraction_test_set']:g}{own}"
    )


def _make_records(task: tuple[Path, Path, str, int], settings: examples.ExampleSettings) -> FileEntry:
    """Makes a record file; `task` is the text file, the record file, its split and its number in the split."""
    text, output, split, number = task
    counts = examples.make_shard(text, output, settings, split, number)
    details = {"num_instances": counts["num_instances"], "counts": counts}
    return FileEntry(f"{split}/{output.name}", output.stat().st_size, sha256_of_file(output), details)


def run_create_tfrecord_files(options: argparse.Namespace, layout: Layout) -> None:
    dataset = options.dataset
    sharded, inputs = _sharded_inputs(dataset, layout)
    vocab_file = _vocab_file(options, layout)
    tokenizer = open_tokenizer(vocab_file)
    check_casing(tokenizer.inv_vocab, bool(options.do_lower_case), vocab_file)
    vocab = VocabEntry(tokenizer.vocab_size, sha256_of_file(vocab_file))
    names = [field.name for field in dataclasses.fields(examples.ExampleSettings)]
    given = {name: value for name, value in vars(options).items() if name in names and value is not None}
    if options.masking == "dynamic":
        given.setdefault("dupe_factor", 1)
    given.update(vocab_file=str(vocab_file.resolve()), do_lower_case=bool(options.do_lower_case))
    settings = examples.ExampleSettings(**given)
    own = ("vocab_file", "short_seq_prob")
    arguments = {name: value for name, value in dataclasses.asdict(settings).items() if name not in own}
    folder = layout.tfrecord / tfrecord_folder(settings, sharded) / dataset
    with Stage(
        "create_tfrecord_files",
        dataset,
        folder / "manifest.json",
        arguments,
        inputs,
        vocab=vocab,
        temporary_files=[*_shard_globs(dataset), "vocab.*"],
    ) as stage:
        if _already_done(stage):
            return
        # A copy in the working directory, which workers on other machines see; they may not see the original.
        settings = dataclasses.replace(settings, vocab_file=str(vocabulary.copy_vocab(vocab_file, folder)))
        shards = _make_all_records(stage, sharded, layout.sharded / dataset, settings, workers_of(options, layout))
        counts = examples.total_counts(entry.details["counts"] for entries in shards.values() for entry in entries)
        for split, entries in shards.items():
            counts[f"num_instances_{split}"] = sum(entry.counts["num_instances"] for entry in entries)
        stage.complete(counts, shards)
        _print_done("records", counts, folder)


def _make_all_records(
    stage: Stage, sharded: Manifest, sharded_folder: Path, settings: examples.ExampleSettings, workers: Workers
) -> dict[str, list[FileEntry]]:
    names = {
        split: [Path(entry.file).with_suffix(".tfrecord").as_posix() for entry in entries]
        for split, entries in sharded.shards.items()
    }
    for split in names:
        (stage.folder / split).mkdir(exist_ok=True)
    tasks = [
        ((sharded_folder / name).with_suffix(".txt"), stage.folder / name, split, number)
        for split, of_split in names.items()
        for number, name in enumerate(of_split)
        if name not in stage.finished
    ]
    make = functools.partial(_make_records, settings=settings)
    total = sum(map(len, names.values()))
    make_files(stage, workers, make, tasks, total, f"records of length {settings.max_seq_length}")
    return {split: [stage.finished[name] for name in of_split] for split, of_split in names.items()}


STAGES = {
    "download": run_download,
    "text_formatting": run_text_formatting,
    "sharding": run_sharding,
    "create_vocab": run_create_vocab,
    "create_tfrecord_files": run_create_tfrecord_files,
}
