"""The finished and unfinished stages below a working directory, from their manifests and journals."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file
from bert_tf.prepare.corpora import registry
from bert_tf.prepare.instances.stages import OF_SHARDS
from bert_tf.prepare.layout import Layout
from bert_tf.prepare.running.stage import FORMAT_VERSION, Journal, is_at_work, journal_path, read_journal
from bert_tf.records.manifest import FileEntry, Header, Manifest, VocabEntry, read_manifest
from bert_tf.text.tokenizer import original_vocabulary

# These stages work on a corpus; later ones work on a dataset, which may consist of several corpora.
CORPUS_STAGES = ("download", "text_formatting")
# These stages name their vocabulary in the manifest, and keep a copy of it beside their files.
WITH_VOCABULARY = ("create_token_files", "create_tfrecord_files")
_OPTION_NAMES = {"num_training_shards": "n_training_shards", "num_test_shards": "n_test_shards"}


class Prepared(NamedTuple):
    """The state of one stage of one dataset."""

    stage: str
    dataset: str
    manifest_path: Path
    manifest: Manifest | None
    journal: Journal | None
    is_at_work: bool
    fault: str | None  # why the manifest cannot be read

    @property
    def folder(self) -> Path:
        return self.manifest_path.parent

    @property
    def header(self) -> Header:
        """The arguments, inputs and vocabulary of a stage that is finished or has begun to write; else empty ones."""
        return (
            self.manifest
            or (self.journal and self.journal.header)
            or Header(self.stage, self.dataset, FORMAT_VERSION, arguments={}, inputs=(), vocab=None)
        )

    @property
    def vocab(self) -> VocabEntry:
        """The vocabulary of token files or records."""
        assert self.header.vocab
        return self.header.vocab

    def find_vocab(self, *others: Path) -> Path | None:
        """The vocabulary that token files or records were made with: their copy of it, or one of the `others`."""
        files = filter(Path.is_file, (original_vocabulary(self.folder), *others))
        return next((path for path in files if sha256_of_file(path) == self.vocab.sha256), None)

    @property
    def entries(self) -> list[FileEntry]:
        return self.manifest.entries if self.manifest else []

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.entries)


def read_stage(stage: str, dataset: str, manifest_path: Path) -> Prepared | None:
    """The state of a stage, from its manifest and journal; None if the stage has not begun."""
    manifest, journal, fault = None, None, None
    try:
        manifest = read_manifest(manifest_path, stage)
        journal = read_journal(journal_path(manifest_path))
    except UserError as error:
        fault = str(error)
    prepared = Prepared(stage, dataset, manifest_path, manifest, journal, is_at_work(manifest_path), fault)
    return prepared if manifest or prepared.journal or prepared.is_at_work or fault else None


def read_again(prepared: Prepared) -> Prepared:
    """The present state of a stage that has begun."""
    return read_stage(prepared.stage, prepared.dataset, prepared.manifest_path) or prepared


def _manifest_paths(layout: Layout) -> Iterator[tuple[str, str, Path]]:
    """(stage, dataset, path of the manifest) of every stage that may have begun, stage by stage."""
    datasets = layout.datasets()
    for dataset in datasets:
        yield "download", dataset, layout.download_folder(dataset) / "manifest.json"
    for corpus in datasets:
        if registry.dataset_named(corpus).formatted_file or registry.dataset_named(corpus).tables:
            yield "text_formatting", corpus, layout.formatted_manifest(corpus)
    for stage, parent, pattern, name in (
        ("sharding", layout.sharded, "*", "manifest.json"),
        ("create_vocab", layout.vocab, "*", "vocab.txt.manifest.json"),
        ("create_token_files", layout.tokens, "*/*", "manifest.json"),
        ("create_tfrecord_files", layout.tfrecord, "*/*", "manifest.json"),
    ):
        for folder in sorted(filter(Path.is_dir, parent.glob(pattern))):
            yield stage, folder.name, folder / name


def find_prepared(layout: Layout, dataset: str | None) -> list[Prepared]:
    """All stages of a dataset and the corpora that it is made of, or of all datasets; in the order of the stages."""
    datasets = {dataset, *registry.parts_of(dataset)} if dataset else None
    stages = [
        read_stage(stage, name, path)
        for stage, name, path in _manifest_paths(layout)
        if datasets is None or name in datasets and (name == dataset or stage in CORPUS_STAGES)
    ]
    return [prepared for prepared in stages if prepared]


def options_of(prepared: Prepared, layout: Layout) -> dict[str, Any]:
    """The command-line options with which a stage was run."""
    not_options = OF_SHARDS if prepared.stage == "create_token_files" else ()
    options = {
        _OPTION_NAMES.get(name, name): int(value) if name in ("do_lower_case", "strip_accents") else value
        for name, value in prepared.header.arguments.items()
        if name not in not_options
    }
    options.update(action=prepared.stage, dataset=prepared.dataset)
    if prepared.stage == "text_formatting" and prepared.dataset == "custom":
        options["input_files"] = [str(layout.root / entry.file) for entry in prepared.header.inputs]
        # Tables are told by their suffix whatever the option says, and several other kinds only by "auto".
        kinds = {*str(options.get("input_format", "auto")).split("+")} - {"parquet"}
        options["input_format"] = kinds.pop() if len(kinds) == 1 else "auto"
    if prepared.manifest and (num_bad := prepared.manifest.counts.get("num_dropped_bad_records")):
        options["max_bad_records"] = num_bad
    if prepared.stage == "create_vocab":
        options["vocab_file"] = str(prepared.folder / prepared.manifest_path.name.removesuffix(".manifest.json"))
    elif prepared.stage in WITH_VOCABULARY:
        options["vocab_file"] = str(original_vocabulary(prepared.folder))
    return options


def command(action: str, dataset: str, **options: Any) -> str:
    words = ["python3", "data/bertPrep.py", "--action", action, "--dataset", dataset]
    for name, value in options.items():
        if isinstance(value, list):
            value = ",".join(value)
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def command_again(prepared: Prepared, layout: Layout) -> str:
    """The command line that resumes a stage."""
    options = options_of(prepared, layout)
    if prepared.stage == "text_formatting":
        # Some arguments, such as the sample's format and encoding, are not options.
        read = ("action", "dataset", "keep_duplicates", *registry.dataset_named(prepared.dataset).options)
        options = {name: value for name, value in options.items() if name in read}
    return command(**options)
