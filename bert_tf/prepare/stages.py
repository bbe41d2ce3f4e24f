"""The stages of data preparation: how each runs, and where it leaves its files and manifests.

File names below the working directory are part of the interface, because users glob them:
``download/<corpus>/``, ``formatted_one_article_per_line/<corpus>_one_<...>_per_line.txt``,
``sharded/<dataset>/{training,test}/<dataset>_<split>_<i>.txt``,
``tokens/<parameters>/<dataset>/{training,test}/<dataset>_<split>_<i>.tokens`` and
``tfrecord/<parameters>/<dataset>/{training,test}/<dataset>_<split>_<i>.tfrecord``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_folder
from bert_tf.base.progress import print_beside_bars
from bert_tf.prepare.corpora import formatting, registry, sample
from bert_tf.prepare.fetching import download
from bert_tf.prepare.instances import creating, vocabulary
from bert_tf.prepare.layout import Layout, make_task_pool
from bert_tf.prepare.running.stage import (
    PreparedStage,
    Stage,
    StageResult,
    has_begun,
    manifests_in,
    read_stage,
    run_stage,
)
from bert_tf.prepare.sharding import sharding
from bert_tf.records.manifest import MANIFEST_NAME, FileEntry, describe_input, read_manifest
from bert_tf.settings.preparation import PreparationOptions, command
from bert_tf.text.tokenizer import is_pipeline

DEFAULT_SHARDS = (1472, 1472)
SAMPLE_SHARDS = (8, 2)


def run_download(options: PreparationOptions, layout: Layout) -> None:
    if options.dataset in ("sample", "all"):
        folder = layout.download / "sample"
        stage = Stage("download", "sample", folder / MANIFEST_NAME, {"seed": sample.SEED}, [])
        run_stage(stage, "sample", folder, lambda _: sample.write_sample(folder, sample.SEED))
    if options.dataset != "sample":
        download.download(options.dataset, layout.download, license_groups=options.chosen_license_groups)


def run_text_formatting(options: PreparationOptions, layout: Layout) -> None:
    dataset = options.dataset
    if make_tables := registry.dataset_named(dataset).make_tables:
        make_tables(options, layout.root)
        return
    parts = registry.require_corpora(dataset)
    if len(parts) > 1:
        raise UserError(
            f"dataset={dataset} consists of other datasets: format each of {', '.join(parts)}, then run sharding"
        )
    corpus = registry.open_corpus(options, layout.root)
    if dataset == "custom":
        print(f"input files: {len(corpus.paths):,}; input_format={corpus.arguments['input_format']}", flush=True)
    inputs = [describe_input(path, layout.root) for path in corpus.paths]
    output = layout.formatted_file(dataset)
    stage = Stage("text_formatting", dataset, layout.formatted_manifest(dataset), corpus.arguments, inputs)

    def write(stage: Stage) -> StageResult:
        writer = formatting.Writer(
            stage, output, keep_duplicates=options.keep_duplicates, max_bad_records=options.max_bad_records
        )
        return formatting.format_corpus(writer, corpus, make_task_pool(options, layout))

    run_stage(stage, "formatted", output, write)


class _FormattedText(NamedTuple):
    """The formatted corpora of a dataset."""

    paths: list[Path]
    entries: list[FileEntry]
    has_sentences: bool  # whether the user has said where sentences end


def _formatted_text(dataset: str, layout: Layout) -> _FormattedText:
    """Raises: UserError where a corpus of the dataset has not been formatted, or its text was changed."""
    paths, entries, has_sentences = [], [], False
    for corpus in registry.require_corpora(dataset):
        path, format_again = layout.formatted_file(corpus), command("text_formatting", corpus)
        if not path.is_file():
            raise UserError(f"{path} does not exist: run {format_again} first")
        sha256 = ""  # unknown where the user provided the file
        if manifest := read_manifest(layout.formatted_manifest(corpus)):
            manifest.require_whole(layout.formatted, f"{format_again} again")
            sha256 = manifest.entries[0].sha256
            has_sentences |= manifest.arguments.get("input_format") == "sentences"
        paths.append(path)
        entries.append(describe_input(path, layout.root, sha256))
    return _FormattedText(paths, entries, has_sentences)


def run_sharding(options: PreparationOptions, layout: Layout) -> None:
    dataset = options.dataset
    num_training, num_test = SAMPLE_SHARDS if dataset == "sample" else DEFAULT_SHARDS
    settings = sharding.ShardingSettings(
        options.n_training_shards or num_training,
        num_test if options.n_test_shards is None else options.n_test_shards,
        options.fraction_test_set,
        options.segmentation_method,
        options.random_seed,
    ).validated()
    text = _formatted_text(dataset, layout)
    if text.has_sentences and settings.segmentation_method != "rules":
        raise UserError(
            f"segmentation_method={settings.segmentation_method}: has no effect on text that was formatted with "
            "--input_format=sentences, whose sentences are kept: leave it out"
        )
    stage = Stage("sharding", dataset, layout.sharded / dataset / MANIFEST_NAME, settings._asdict(), text.entries)

    def write(stage: Stage) -> StageResult:
        return sharding.shard_corpus(stage, dataset, text.paths, settings, make_task_pool(options, layout))

    if counts := run_stage(stage, "sharded", stage.folder, write):
        training = [stage.folder / name for name in stage.finished if name.startswith("training/")]
        without_ends = [*sharding.long_sentence_warnings(sharding.sample_sentences(training))]
        for warning in without_ends or sharding.single_sentence_warnings(counts):
            print_beside_bars(f"warning: {warning}")


def run_create_vocab(options: PreparationOptions, layout: Layout) -> None:
    text = _formatted_text(options.dataset, layout)
    output = Path(options.vocab_file or layout.vocab / options.dataset / "vocab.txt").absolute()
    manifest_path = Path(f"{output}.{MANIFEST_NAME}")
    check_folder(output.parent, f"vocab_file={output}")
    if is_pipeline(output):
        raise UserError(
            f"vocab_file={output}: create_vocab makes no tokenizer.json, but a vocab.txt or a .model; name one"
        )
    if output.exists() and not has_begun(manifest_path):
        raise UserError(
            f"vocab_file={output} exists and was not made by --action=create_vocab: name another "
            "file, or use this one as it is"
        )
    casing, vocab_size = creating.requested_casing(options), options.vocab_size
    arguments = {"vocab_size": vocab_size, **casing.flags()}
    stage = Stage("create_vocab", options.dataset, manifest_path, arguments, text.entries)
    run_stage(stage, "vocabulary", output, lambda _: vocabulary.create_vocab(output, text.paths, vocab_size, casing))


STAGES: dict[str, Callable[[PreparationOptions, Layout], None]] = {
    "download": run_download,
    "text_formatting": run_text_formatting,
    "sharding": run_sharding,
    "create_vocab": run_create_vocab,
    "create_token_files": creating.create_token_files,
    "create_tfrecord_files": creating.create_tfrecord_files,
}
# Patterns of the folders with a stage's manifests, relative to the working directory. Those below biobert/ are the one
# source, and the one `tables_folder`, that lie elsewhere than the others.
_FOLDERS = {
    "download": ("download/*", "download/glue/*", "download/pubmed/*", "biobert/BC5CDR"),
    "text_formatting": ("formatted_one_article_per_line", "biobert/ChemProt"),
    "sharding": ("sharded/*",),
    "create_vocab": ("vocab/*",),
    "create_token_files": ("tokens/*/*",),
    "create_tfrecord_files": ("tfrecord/*/*",),
}
# Stages that run for each corpus; the others run once for a dataset, which may consist of several corpora.
_PER_CORPUS = ("download", "text_formatting")
# Actions on token files: one adds pairs to them, the other makes from them what create_tfrecord_files makes from text.
FROM_TOKEN_FILES = {"create_pairs": creating.create_pairs, "export_tfrecord": creating.export_tfrecord}


def find_prepared(layout: Layout, dataset: str = "") -> list[PreparedStage]:
    """What the stages have made of a dataset and its corpora (default: of all datasets), in the order of the stages."""
    parts = registry.find_corpora(dataset)
    begun = (
        read_stage(path, stage)
        for stage, folders in _FOLDERS.items()
        for folder in folders
        for path in manifests_in(layout.root, folder)
    )
    return [
        prepared
        for prepared in begun
        if prepared
        and (dataset in ("", prepared.dataset) or (prepared.stage in _PER_CORPUS and prepared.dataset in parts))
    ]
