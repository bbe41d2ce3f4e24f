"""The actions that make token files, pairs and TFRecords from sharded text: folder names, vocabulary, arguments."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from pathlib import Path
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file
from bert_tf.batches.masking import MaskingRules
from bert_tf.prepare.corpora import registry
from bert_tf.prepare.fetching.sources import wikipedia_of
from bert_tf.prepare.instances import vocabulary
from bert_tf.prepare.instances.instances import RecordSettings, TokenSettings, make_shard, make_token_file, total_counts
from bert_tf.prepare.layout import Layout, make_task_pool
from bert_tf.prepare.running.stage import Stage, StageResult, clear_disk_errors, counts_in_words, run_stage
from bert_tf.prepare.running.workers import TaskPool, make_files
from bert_tf.records.manifest import MANIFEST_NAME, FileEntry, Manifest, VocabEntry, describe_input, read_manifest
from bert_tf.records.pair_file import ensure_pairs
from bert_tf.records.pairs import PairSettings
from bert_tf.records.token_file import SPLITS, TOKENS_SUFFIX, Shard
from bert_tf.settings.preparation import PreparationOptions, command
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.hugging_face import ADDED_TOKENS, TOKENIZER, HuggingFaceTokenizer, tokenize_alike
from bert_tf.text.tokenizer import CasingFlags, open_tokenizer, open_vocab_file, original_vocabulary
from bert_tf.text.vocabulary import SETTINGS, UnknownTokens
from bert_tf.text.wordpiece import FullTokenizer

GOOGLE_VOCABULARIES = {True: "uncased_L-24_H-1024_A-16/vocab.txt", False: "cased_L-24_H-1024_A-16/vocab.txt"}
GOOGLE_CHINESE_VOCABULARY = "chinese_L-12_H-768_A-12/vocab.txt"
# Arguments of sharding that token files' manifests repeat, so that records can be made when the sharded text is gone.
_SHARDING_ARGUMENTS = ("num_training_shards", "fraction_test_set")


def _casing_flags(options: PreparationOptions) -> CasingFlags:
    flags = (options.do_lower_case, options.strip_accents)
    return CasingFlags(*(None if value is None else bool(value) for value in flags))


def requested_casing(options: PreparationOptions) -> Casing:
    """The casing that the options ask for; by default lower case."""
    lower_case, strip_accents = _casing_flags(options)
    return Casing.from_flags(lower_case is not False, strip_accents)


def _casing_in_names(casing: Casing) -> str:
    lower_case, strip_accents = casing
    return f"lower_case_{int(lower_case)}" + (f"_strip_accents_{int(strip_accents)}" * (lower_case != strip_accents))


def find_vocab_file(options: PreparationOptions, layout: Layout) -> Path:
    dataset = options.dataset
    if options.vocab_file:
        return Path(options.vocab_file)
    google_vocab = GOOGLE_VOCABULARIES[requested_casing(options).lower_case]
    if dataset == "wikicorpus_zh":
        google_vocab = GOOGLE_CHINESE_VOCABULARY
    candidates = [layout.vocab / dataset / "vocab.txt"]
    # Google has no vocabularies of single languages other than English and Chinese.
    if not wikipedia_of(dataset) or dataset in registry.DATASETS:
        candidates.append(layout.download / "google_pretrained_weights" / google_vocab)
    for candidate in candidates:
        if candidate.is_file():
            print(f"vocab_file={candidate}", flush=True)
            return candidate
    raise UserError(
        f"vocab_file is not given and none of {', '.join(map(str, candidates))} exists: name one, "
        f"or make one from the text by --action=create_vocab --dataset={dataset}"
    )


def _parameters_of_shards(sharded: Manifest) -> str:
    arguments = sharded.arguments
    return f"shard_{arguments['num_training_shards']}_test_split_{100 * arguments['fraction_test_set']:g}"


def _tfrecord_folder(casing: Casing, pairs: PairSettings, rules: MaskingRules, sharded: Manifest) -> str:
    """The folder's name: NVIDIA's format, followed by the parameters that only this project has."""
    extension = "_whole_word_masking" if rules.whole_word_masking else ""
    return (
        f"{_casing_in_names(casing)}_seq_len_{pairs.max_seq_length}_max_pred_{rules.max_predictions_per_seq}"
        f"_masked_lm_prob_{rules.masked_lm_prob}_random_seed_{pairs.random_seed}"
        f"_dupe_factor_{pairs.dupe_factor}_{_parameters_of_shards(sharded)}{extension}"
    )


class _Source(NamedTuple):
    """Finished shards of text or token files; from each, a stage makes one file."""

    folder: Path
    manifest: Manifest
    inputs: list[FileEntry]  # the sharded text, also where `folder` holds the token files made from it


def _finished_manifest(folder: Path, stage: str, dataset: str) -> Manifest:
    """The manifest of a finished stage. Raises: UserError where the stage has not finished, or files are missing."""
    manifest = read_manifest(folder / MANIFEST_NAME, stage)
    if manifest is None:
        raise UserError(f"{folder} holds nothing that {stage} has finished: run {command(stage, dataset)} first")
    manifest.require_whole(folder, command("verify", dataset, repair=True))
    return manifest


def _sharded_text(options: PreparationOptions, layout: Layout) -> _Source:
    """Raises: UserError where the dataset has no sharded text, or some files are missing."""
    folder = layout.sharded / options.dataset
    manifest = _finished_manifest(folder, "sharding", options.dataset)
    inputs = [describe_input(folder / entry.file, layout.root, entry.sha256) for entry in manifest.entries]
    return _Source(folder, manifest, inputs)


class _Vocabulary(NamedTuple):
    file: Path
    entry: VocabEntry
    casing: Casing

    def settings_in_folder(self, folder: Path) -> TokenSettings:
        """Settings that name the copy in a stage's folder, as workers on other machines may not see the file itself."""
        return TokenSettings(str(folder / vocabulary.copy_name(self.file)), self.casing)


class _Stage(NamedTuple):
    """A stage that makes a file of each shard, by ``make(source, output, shard)``; `folder` has the dataset's name."""

    name: str
    label: str
    suffix: str
    folder: Path
    arguments: dict[str, Any]
    make: Callable[..., FileEntry]


def _make_file(task: tuple[Path, Path, Shard], make: Callable[..., FileEntry]) -> FileEntry:
    return make(*task)


def _make_from_shards(source: _Source, made: _Stage, vocab: _Vocabulary, workers: TaskPool) -> None:
    """Makes a file from each file of `source`."""
    tasks: dict[str, tuple[Path, Path, Shard]] = {}
    for split, entries in source.manifest.shards.items():
        for number, entry in enumerate(entries):
            name = Path(entry.file).with_suffix(made.suffix).as_posix()
            tasks[name] = source.folder / entry.file, made.folder / name, Shard(SPLITS.index(split), number)

    def make_all(stage: Stage) -> StageResult:
        vocabulary.copy_vocab(vocab.file, stage.folder)
        shards = make_files(stage, workers, functools.partial(_make_file, make=made.make), tasks, made.label)
        return total_counts(shards), shards

    folder = made.folder
    stage = Stage(made.name, folder.name, folder / MANIFEST_NAME, made.arguments, source.inputs, vocab=vocab.entry)
    if counts := run_stage(stage, made.label, folder, make_all):
        unknown = UnknownTokens(counts["num_unknown_tokens"], counts["num_tokens"], vocab.casing)
        if unknown.are_many:
            print(unknown.describe(folder.name), flush=True)


def _check_vocab(vocab_file: Path, options: PreparationOptions) -> _Vocabulary:
    """The vocabulary, with its casing.

    Raises: UserError if the options ask for another casing than the vocabulary's, or if the file alone, which is all
      that the stage copies, splits text differently than together with the files beside it.
    """
    tokenizer, assumption = open_vocab_file(vocab_file, _casing_flags(options), is_hugging_face=False)
    alone = open_tokenizer(vocab_file, *tokenizer.casing)
    is_google = isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.is_google_wordpiece(tokenizer.casing)
    is_same = tokenize_alike(*(each.files().get(TOKENIZER) for each in (tokenizer, alone)))
    if not is_same and not (is_google and isinstance(alone, FullTokenizer)):
        raise UserError(
            f"{vocab_file} alone cuts text otherwise than with {TOKENIZER}, {SETTINGS} or {ADDED_TOKENS} beside it; "
            f"pass --vocab_file with that {TOKENIZER}, or with one that says all of it (transformers writes it: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    if assumption:
        print(assumption, flush=True)
    return _Vocabulary(vocab_file, VocabEntry(tokenizer.vocab_size, sha256_of_file(vocab_file)), tokenizer.casing)


def create_token_files(options: PreparationOptions, layout: Layout) -> None:
    source = _sharded_text(options, layout)
    vocab = _check_vocab(find_vocab_file(options, layout), options)
    arguments = {**vocab.casing.flags(), **{name: source.manifest.arguments[name] for name in _SHARDING_ARGUMENTS}}
    name = f"{_casing_in_names(vocab.casing)}_{_parameters_of_shards(source.manifest)}"
    folder = layout.tokens / name / options.dataset
    make = functools.partial(make_token_file, settings=vocab.settings_in_folder(folder))
    stage = _Stage("create_token_files", "token files", TOKENS_SUFFIX, folder, arguments, make)
    _make_from_shards(source, stage, vocab, make_task_pool(options, layout))


def _token_files(options: PreparationOptions, layout: Layout) -> _Source:
    """The token files whose casing agrees with the flags given.

    Raises: UserError where the dataset has none, some are missing, or there are several sets.
    """
    dataset, flags = options.dataset, _casing_flags(options)
    casings = itertools.starmap(Casing, itertools.product((False, True), repeat=2))
    matching = [casing for casing in casings if all(flag in (None, value) for flag, value in zip(flags, casing))]
    names = (f"{_casing_in_names(casing)}_shard_*/{dataset}/{MANIFEST_NAME}" for casing in matching)
    folders = sorted(path.parent for name in names for path in layout.tokens.glob(name))
    if len(folders) > 1:
        raise UserError(
            f"{dataset} has token files in {' and '.join(map(str, folders))}: name a casing by --do_lower_case and "
            "--strip_accents, or move away those that you do not need"
        )
    folder = folders[0] if folders else layout.tokens / "lower_case_*" / dataset
    manifest = _finished_manifest(folder, "create_token_files", dataset)
    return _Source(folder, manifest, list(manifest.inputs))


def _pair_settings(options: PreparationOptions, single_segments: bool) -> PairSettings:
    dupe_factor = {} if options.dupe_factor is None else {"dupe_factor": options.dupe_factor}
    return PairSettings.for_length(
        options.max_seq_length, single_segments, random_seed=options.random_seed, **dupe_factor
    )


def create_pairs(options: PreparationOptions, layout: Layout) -> None:
    source = _token_files(options, layout)
    settings = _pair_settings(options, options.no_next_sentence)
    workers = make_task_pool(options, layout)
    counts = Counter[str]()
    with clear_disk_errors(source.folder):
        for entries in filter(None, source.manifest.shards.values()):
            files = [source.folder / entry.file for entry in entries]
            counts += ensure_pairs(files, settings, workers.map_in_order, is_exact=True)[1]
    if not counts:
        print(f"nothing to do: all token files below {source.folder} have such {settings.kind}", flush=True)
        return
    print(f"{settings.kind}: {counts_in_words(counts)}\n{source.folder}", flush=True)


def create_tfrecord_files(options: PreparationOptions, layout: Layout) -> None:
    _create_records(options, layout, _sharded_text(options, layout), find_vocab_file(options, layout))


def export_tfrecord(options: PreparationOptions, layout: Layout) -> None:
    """Makes exactly the files of `create_tfrecord_files`, but from token files."""
    source = _token_files(options, layout)
    casing = {name: source.manifest.arguments[name] for name in ("do_lower_case", "strip_accents")}
    vocab_file = original_vocabulary(source.folder)
    _create_records(dataclasses.replace(options, **casing), layout, source, vocab_file)


def _create_records(options: PreparationOptions, layout: Layout, source: _Source, vocab_file: Path) -> None:
    vocab = _check_vocab(vocab_file, options)
    if source.manifest.vocab not in (None, vocab.entry):
        repair = command("verify", options.dataset, repair=True)
        raise UserError(
            f"{vocab_file} is not the vocabulary that the token files were made with: {repair} restores that"
        )
    pairs = _pair_settings(options, single_segments=False)
    rules = MaskingRules(options.masked_lm_prob, options.max_predictions_per_seq, options.whole_word_masking)
    pairs.check(rules.max_predictions_per_seq)
    arguments = {
        **{name: getattr(pairs, name) for name in ("max_seq_length", "dupe_factor", "random_seed")},
        **dataclasses.asdict(rules),
        **vocab.casing.flags(),
    }
    folder = layout.tfrecord / _tfrecord_folder(vocab.casing, pairs, rules, source.manifest) / options.dataset
    make = functools.partial(make_shard, settings=RecordSettings(vocab.settings_in_folder(folder), pairs, rules))
    stage = _Stage("create_tfrecord_files", "records", ".tfrecord", folder, arguments, make)
    _make_from_shards(source, stage, vocab, make_task_pool(options, layout))
