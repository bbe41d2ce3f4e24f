"""--action inspect: shows the prepared data, and warns of what looks wrong with it.

It inspects a sample of the instances, whether text and vocabulary fit each other, and the documents:
duplicates, near duplicates, and documents in both the training and the test split.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file
from bert_tf.base.progress import Progress
from bert_tf.batches.masking import VocabularyIds
from bert_tf.prepare.checking import headings, instance_sample, near_duplicates, vocabulary_fit
from bert_tf.prepare.checking.near_duplicates import Sketches
from bert_tf.prepare.checking.prepared import WITH_VOCABULARY, Prepared, command, find_prepared
from bert_tf.prepare.instances.stages import casing_of
from bert_tf.prepare.layout import Layout, task_pool_of
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.records.pair_file import pair_lengths
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.tokenizer import open_tokenizer, original_vocabulary
from bert_tf.text.vocabulary import Tokenizer

# The sketches of this many documents take 0.9 GiB while they are compared.
MOST_DOCUMENTS = 8_000_000
_NUM_PAIRS_SHOWN = 5
_QUOTED_CHARACTERS = 70


class _Corpus(NamedTuple):
    """The sketches of all documents, training split first."""

    files: list[str]  # relative to the folder of the sharding
    ends: np.ndarray  # int64 [files], number of documents up to the end of each file
    sketches: Sketches
    num_training: int
    one_in: int

    def place(self, document: int) -> tuple[str, int]:
        """A document's file, and its number in that file."""
        file = int(np.searchsorted(self.ends, document, side="right"))
        return self.files[file], int(self.sketches.numbers[document])


def _read_corpus(sharded: Prepared, workers: TaskPool) -> _Corpus:
    assert sharded.manifest
    names = [entry.file for entry in sharded.entries]
    num_documents = sum(entry.counts["num_documents"] for entry in sharded.entries)
    one_in = max(1, -(-num_documents // MOST_DOCUMENTS))
    # Allocated once and filled, because joining pieces would take twice the memory. A sample may not fill it.
    room = num_documents if one_in == 1 else MOST_DOCUMENTS
    sketches = Sketches(
        np.empty([room, near_duplicates.NUM_HASHES], np.uint16), np.empty(room, np.uint64), np.empty(room, np.int32)
    )
    sketch = functools.partial(near_duplicates.sketch_file, one_in=one_in)
    paths = [str(sharded.folder / name) for name in names]
    ends: list[int] = []
    filled = 0
    with Progress(total=sharded.num_bytes, unit="B", description="comparing documents") as bar:
        for found, entry in zip(workers.map_in_order(sketch, paths), sharded.entries):
            if one_in == 1 and found.num_documents != entry.counts["num_documents"]:
                raise UserError(
                    f"{sharded.folder / entry.file} holds {found.num_documents:,} documents, its "
                    f"manifest says {entry.counts['num_documents']:,}: run --action verify --repair"
                )
            place = slice(filled, min(filled + found.num_documents, room))
            for array, column in zip(sketches, found):
                array[place] = column[: place.stop - place.start]
            filled = place.stop
            ends.append(filled)
            bar.update(entry.num_bytes)
    num_training_files = len(sharded.manifest.shards["training"])
    return _Corpus(
        names, np.array(ends), Sketches(*(array[:filled] for array in sketches)), ends[num_training_files - 1], one_in
    )


def _show_pairs(corpus: _Corpus, matches: near_duplicates.Matches, later: np.ndarray, folder: Path) -> None:
    """Prints the most similar pairs, with the beginning of each document."""
    best = later[np.argsort(-matches.similarity[later], kind="stable")[:_NUM_PAIRS_SHOWN]]
    for document in best.tolist():
        similarity = float(matches.similarity[document])
        print("    the same" if similarity == 1 else f"    {similarity:.0%} the same")
        for of in (int(matches.partner[document]), document):
            file, number = corpus.place(of)
            text = near_duplicates.read_document(folder / file, number, _QUOTED_CHARACTERS)
            print(f"      {file}, document {number + 1:,}: {text}...")


def _inspect_documents(sharded: Prepared, workers: TaskPool) -> Iterator[str]:
    """Prints the duplicates and leaks; yields warnings."""
    assert sharded.manifest
    corpus = _read_corpus(sharded, workers)
    matches = near_duplicates.find_matches(corpus.sketches)
    num = corpus.sketches.num_documents
    later = np.flatnonzero(matches.similarity)
    is_leak = (later >= corpus.num_training) & (matches.partner[later] < corpus.num_training)
    sampled = "" if corpus.one_in == 1 else f" (a sample: about 1 in {corpus.one_in})"
    print(
        f"\nDocuments below {sharded.folder}\n  {num:,} compared{sampled}, "
        f"{corpus.num_training:,} of them for training",
        flush=True,
    )
    if not sharded.manifest.counts["num_documents_test"]:
        yield (
            "there are no test documents, so no model can be evaluated on text that it was not trained on: shard "
            "again with --n_test_shards and --fraction_test_set over 0"
        )
    leaks = f"of {num - corpus.num_training:,} test documents are in the training split too"
    repeated = f"of {num:,} documents repeat an earlier one"
    for group, what, harm in (
        (later[is_leak], leaks, "the test's figures would be better than they are"),
        (later[~is_leak], repeated, "repeated text can hold pre-training at a loss of 7, and is learned by heart"),
    ):
        num_same = int(np.count_nonzero(matches.similarity[group] == 1))
        print(f"  {len(group):,} {what} ({num_same:,} the same, {len(group) - num_same:,} nearly)")
        if len(group):
            _show_pairs(corpus, matches, group, sharded.folder)
            yield (
                f"{len(group):,} {what}, exactly or nearly: {harm}. Exact copies go by formatting without "
                "--keep_duplicates; take the others out of the input files, then format and shard again"
            )


def _inspect_made(made: Prepared, tokenizer: Tokenizer) -> Iterator[str]:
    """Prints settings, and what `_inspect_sample` prints, for token files of each length; yields warnings."""
    assert made.manifest
    arguments, vocab, training = made.manifest.arguments, made.vocab, made.manifest.shards["training"]
    is_records = made.stage == "create_tfrecord_files"
    print(f"\n{'Records' if is_records else 'Token files'} below {made.folder}")
    print("  " + ", ".join(f"{name} {value}" for name, value in arguments.items()))
    unit = "instances" if is_records else "tokens"
    print(
        f"  vocabulary of {vocab.size:,} pieces, sha256 {vocab.sha256[:12]}...; "
        + ", ".join(
            f"{len(entries):,} {split} shards with {sum(e.counts[f'num_{unit}'] for e in entries):,} {unit}"
            for split, entries in made.manifest.shards.items()
        ),
        flush=True,
    )
    if is_records:
        sample = instance_sample.read_sample(made.folder, training)
        yield from _inspect_sample(sample, arguments["max_seq_length"], tokenizer)
        return
    lengths = pair_lengths(made.folder)
    if not lengths:
        print(f"  no pairs yet: {command('create_pairs', made.dataset, max_seq_length=128)} makes instances to look at")
    for length in lengths:
        sample = instance_sample.read_token_sample(made.folder / "training", length)
        print(f"\n  Length {length}, masked as training does by default:")
        yield from _inspect_sample(sample, length, tokenizer)


def _inspect_sample(sample: instance_sample.Sample, max_seq_length: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Prints some instances and shares; yields warnings."""
    num = sample.instances.num_instances
    labels = sample.instances.next_sentence_labels
    # One instance of each label, and one from the middle.
    shown = [*(int(np.argmax(labels == label)) for label in (0, 1)), num // 2]
    for number in dict.fromkeys(shown):
        lines = instance_sample.describe_instance(sample, number, tokenizer.inv_vocab)
        print("\n" + "".join(f"  {line}\n" for line in lines), end="")
    shares = instance_sample.measure(sample.instances, VocabularyIds.of_tokenizer(tokenizer), tokenizer.vocab_size)
    if num < sample.num_total:
        print(f"\n  Of {num:,} of {sample.num_total:,} training instances, evenly spread over the shards:")
    else:
        print(f"\n  Of all {num:,} training instances:")
    for line in instance_sample.describe_shares(shares):
        print(f"    {line}")
    print("    tokens, share of the instances")
    for line in instance_sample.length_histogram(shares.lengths, max_seq_length):
        print(f"    {line}", flush=True)
    for warning in instance_sample.judge(shares, max_seq_length):
        yield f"max_seq_length {max_seq_length}: {warning}"


def _tokenizers(made: Sequence[Prepared], found: Sequence[Prepared], options: argparse.Namespace) -> list[Tokenizer]:
    """Tokenizers for the vocabularies of `made`; if none, for --vocab_file, otherwise for those of create_vocab."""
    if made:
        different = {(p.vocab.sha256, *_casing_of(p)): p for p in made}
        return list(map(_tokenizer_of, different.values()))
    if options.vocab_file:
        return [open_tokenizer(options.vocab_file, *casing_of(options))]
    vocabs = [p for p in found if p.stage == "create_vocab" and p.manifest]
    return [open_tokenizer(p.folder / p.entries[0].file, *_casing_of(p)) for p in vocabs]


def _casing_of(made: Prepared) -> Casing:
    arguments = made.header.arguments
    return Casing.of(bool(arguments["do_lower_case"]), arguments.get("strip_accents"))


def _tokenizer_of(made: Prepared) -> Tokenizer:
    path = original_vocabulary(made.folder)
    if not path.is_file() or sha256_of_file(path) != made.vocab.sha256:
        way_out = command("verify", made.dataset, repair=True)
        raise UserError(f"{path} is not the vocabulary that the files beside it were made with: run {way_out}")
    return open_tokenizer(path, *_casing_of(made))


def run_inspect(options: argparse.Namespace, layout: Layout) -> None:
    """Prints instances, text and documents of one dataset, and warnings about them.

    Raises: UserError where the dataset has neither sharded text, token files nor records, or they are damaged.
    """
    found = find_prepared(layout, options.dataset)
    sharded = [p for p in found if p.stage == "sharding" and p.manifest]
    made = [p for p in found if p.stage in WITH_VOCABULARY and p.manifest]
    wrong = [p.fault for p in found if p.fault]
    if not sharded and not made:
        reason = (
            "; ".join(wrong)
            or f"neither sharded text, token files nor records of {options.dataset} are below {layout.root}"
        )
        raise UserError(f"{reason}: " + command("status", options.dataset) + " says what to type first")
    for of_stage in (*made, *sharded):
        assert of_stage.manifest
        of_stage.manifest.require_whole(of_stage.folder, command("verify", of_stage.dataset, repair=True))
    for of_stage in made:
        wrong += _inspect_made(of_stage, _tokenizer_of(of_stage))
    tokenizers = _tokenizers(made, found, options)
    if sharded:
        assert sharded[0].manifest
        texts = [sharded[0].folder / entry.file for entry in sharded[0].manifest.shards["training"]]
        wrong += headings.inspect_sentences(texts)
        for tokenizer in tokenizers:
            wrong += vocabulary_fit.inspect_fit(texts, tokenizer)
        wrong += _inspect_documents(sharded[0], task_pool_of(options, layout))
    print()
    for what in wrong:
        print(f"looks wrong: {what}")
    for missing, is_missing in (
        ("sharded text", not sharded),
        ("vocabulary", not tokenizers),
        ("token files or records", not made),
    ):
        if is_missing:
            print(f"not looked at, because not there or damaged: {missing}")
    if not wrong:
        print("nothing looks wrong")
