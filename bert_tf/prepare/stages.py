"""The stages of data preparation: the input, output files and manifest of each.

File names below the working directory are part of the interface, because users glob them:
``download/<corpus>/``, ``formatted_one_article_per_line/<corpus>_one_<...>_per_line.txt``,
``sharded/<dataset>/{training,test}/<dataset>_<split>_<i>.txt``,
``tokens/<parameters>/<dataset>/{training,test}/<dataset>_<split>_<i>.tokens`` and
``tfrecord/<parameters>/<dataset>/{training,test}/<dataset>_<split>_<i>.tfrecord``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.files import check_folder
from bert_tf.prepare.corpora import formatting, registry, sample, tables
from bert_tf.prepare.fetching import download
from bert_tf.prepare.instances import stages as instance_stages
from bert_tf.prepare.instances import vocabulary
from bert_tf.prepare.layout import Layout, already_done, print_done, task_pool_of
from bert_tf.prepare.running.stage import Stage
from bert_tf.prepare.sharding import sharding
from bert_tf.records.manifest import FileEntry, describe_input, read_manifest
from bert_tf.text.tokenizer import is_pipeline

DEFAULT_SHARDS = (1472, 1472)
SAMPLE_SHARDS = (8, 2)


def run_download(options: argparse.Namespace, layout: Layout) -> None:
    if options.dataset in ("sample", "all"):
        _make_sample(layout.download / "sample")
    if options.dataset != "sample":
        download.download(options.dataset, layout.download, license_groups=options.license_groups)


def _make_sample(folder: Path) -> None:
    with Stage("download", "sample", folder / "manifest.json", {"seed": sample.SEED}, []) as stage:
        if not already_done(stage):
            print_done("sample", sample.write_sample(stage, folder, sample.SEED), folder)


def run_text_formatting(options: argparse.Namespace, layout: Layout) -> None:
    if dataset := registry.dataset_named(options.dataset).tables:
        _make_tables(dataset, options, layout)
        return
    parts = registry.corpora_of(options.dataset)
    if len(parts) > 1:
        raise UserError(
            f"dataset={options.dataset} consists of others: format each of {', '.join(parts)}, then run sharding"
        )
    corpus = registry.open_corpus(options, layout.root)
    if options.dataset == "custom":
        files = "1 input file" if len(corpus.paths) == 1 else f"{len(corpus.paths):,} input files"
        print(f"{files}; input_format={corpus.arguments['input_format']}", flush=True)
    output = layout.formatted_file(options.dataset)
    manifest_path = layout.formatted_manifest(options.dataset)
    inputs = [describe_input(path, layout.root) for path in corpus.paths]
    with Stage("text_formatting", options.dataset, manifest_path, corpus.arguments, inputs) as stage:
        if not already_done(stage):
            writer = formatting.Writer(
                stage, output, keep_duplicates=options.keep_duplicates, max_bad_records=options.max_bad_records
            )
            counts = formatting.format_corpus(writer, corpus, task_pool_of(options, layout))
            print_done("formatted", counts, output)


def _make_tables(dataset: tables.TableDataset, options: argparse.Namespace, layout: Layout) -> None:
    paths = dataset.find(layout.download_folder(options.dataset))
    inputs = [describe_input(path, layout.root) for path in paths]
    with Stage("text_formatting", options.dataset, layout.formatted_manifest(options.dataset), {}, inputs) as stage:
        if not already_done(stage):
            bad = BadRecords(options.max_bad_records, "line")
            print_done("formatted", tables.write_tables(stage, dataset.read(paths, bad), bad), stage.folder)


def _formatted_inputs(dataset: str, layout: Layout) -> tuple[list[Path], list[FileEntry]]:
    paths = [layout.formatted_file(corpus) for corpus in registry.corpora_of(dataset)]
    inputs: list[FileEntry] = []
    for corpus, path in zip(registry.corpora_of(dataset), paths):
        format_again = f"python3 data/bertPrep.py --action text_formatting --dataset {corpus}"
        if not path.is_file():
            ways_out = f"run {format_again} first"
            if corpus == "bookscorpus":
                ways_out = (
                    f"BookCorpus is no longer distributed; put a folder of .txt books into {layout.download / corpus} "
                    f"and run {format_again}, or continue with Wikipedia alone: --dataset=wikicorpus_en"
                )
            raise UserError(f"{path} does not exist: {ways_out}")
        manifest = read_manifest(layout.formatted_manifest(corpus))
        if manifest:
            manifest.require_whole(layout.formatted, f"{format_again} again")
        made = {entry.file: entry.sha256 for entry in manifest.entries} if manifest else {}
        inputs.append(describe_input(path, layout.root, made.get(path.name, "")))
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
    if dataset == "custom" and settings.segmentation_method != "rules":
        formatted = read_manifest(layout.formatted_manifest(dataset))
        if formatted and formatted.arguments.get("input_format") == "sentences":
            raise UserError(
                f"segmentation_method={settings.segmentation_method}: has no effect on text that was formatted with "
                "--input_format=sentences, whose sentences are kept: leave it out"
            )
    folder = layout.sharded / dataset
    with Stage("sharding", dataset, folder / "manifest.json", settings._asdict(), inputs) as stage:
        if not already_done(stage):
            counts = sharding.shard_corpus(stage, dataset, paths, settings, task_pool_of(options, layout))
            print_done("sharded", counts, folder)
            training = [folder / name for name in stage.finished if name.startswith("training/")]
            for warning in sharding.judge_ends(sharding.sample_sentences(training)):
                print(f"warning: {warning}", file=sys.stderr, flush=True)


def run_create_vocab(options: argparse.Namespace, layout: Layout) -> None:
    paths, inputs = _formatted_inputs(options.dataset, layout)
    output = Path(options.vocab_file or layout.vocab / options.dataset / "vocab.txt").absolute()
    manifest_path = Path(f"{output}.manifest.json")
    check_folder(output.parent, f"vocab_file={output}")
    if is_pipeline(output):
        raise UserError(
            f"vocab_file={output}: create_vocab makes no tokenizer.json, but a vocab.txt or a .model; name one"
        )
    if output.exists() and not manifest_path.exists():
        raise UserError(
            f"vocab_file={output} exists and was not made by --action=create_vocab: name another "
            "file, or use this one as it is"
        )
    casing = instance_stages.casing_of(options)
    arguments = {"vocab_size": options.vocab_size, **casing.flags()}
    with Stage("create_vocab", options.dataset, manifest_path, arguments, inputs) as stage:
        if not already_done(stage):
            counts = vocabulary.create_vocab(stage, output, paths, options.vocab_size, casing)
            print_done("vocabulary", counts, output)


STAGES = {
    "download": run_download,
    "text_formatting": run_text_formatting,
    "sharding": run_sharding,
    "create_vocab": run_create_vocab,
    "create_token_files": instance_stages.run_create_token_files,
    "create_tfrecord_files": instance_stages.run_create_tfrecord_files,
}
# Actions that add to a stage's output, or make the same output from another source.
FROM_TOKEN_FILES = {
    "create_pairs": instance_stages.run_create_pairs,
    "export_tfrecord": instance_stages.run_export_tfrecord,
}
