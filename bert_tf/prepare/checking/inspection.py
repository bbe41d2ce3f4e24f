"""--action inspect: shows the prepared data, and warns of what looks wrong with it.

It looks at a sample of the instances, at a sample of the sentences, and for documents that occur twice or in both the
training and the test split.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file
from bert_tf.base.progress import Progress
from bert_tf.batches.masking import VocabularyIds
from bert_tf.prepare.checking import headings, instance_sample
from bert_tf.prepare.checking.prepared import WITH_VOCABULARY, Prepared, command, find_prepared
from bert_tf.prepare.layout import Layout, task_pool_of
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.records.pair_file import pair_lengths
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.tokenizer import open_tokenizer, original_vocabulary
from bert_tf.text.vocabulary import Tokenizer

# Their hashes take half a gigabyte while they are compared.
MOST_DOCUMENTS = 32_000_000


def document_hashes(path: Path) -> np.ndarray:
    """A hash of each document of a sharded text file, regardless of case: uint64 [n]."""
    hashes: list[int] = []
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        for line in file:
            if line != b"\n":
                digest.update(line.lower())
                continue
            hashes.append(int.from_bytes(digest.digest(), "little"))
            digest = hashlib.blake2b(digest_size=8)
    return np.array(hashes, np.uint64)


def _inspect_documents(sharded: Prepared, task_pool: TaskPool) -> Iterator[str]:
    """Prints the numbers of repeated documents and of those in both splits; yields warnings."""
    assert sharded.manifest
    num_documents = sum(entry.counts["num_documents"] for entry in sharded.entries)
    one_in = np.uint64(max(1, -(-num_documents // MOST_DOCUMENTS)))
    of_split: dict[str, list[np.ndarray]] = {split: [] for split in sharded.manifest.shards}
    paths = [sharded.folder / entry.file for entry in sharded.entries]
    with Progress(total=sharded.num_bytes, unit="B", description="comparing documents") as bar:
        for hashes, entry in zip(task_pool.map_in_order(document_hashes, paths), sharded.entries):
            of_split[entry.file.partition("/")[0]].append(hashes[hashes % one_in == 0])
            bar.update(entry.num_bytes)
    training, test = (np.concatenate([np.zeros(0, np.uint64), *of_split[split]]) for split in ("training", "test"))
    sampled = "" if one_in == 1 else f" (a sample: about 1 in {one_in})"
    print(
        f"\nDocuments below {sharded.folder}\n  {len(training) + len(test):,} compared{sampled}, "
        f"{len(training):,} of them for training",
        flush=True,
    )
    if not sharded.manifest.counts["num_documents_test"]:
        yield (
            "there are no test documents, so no model can be evaluated on text that it was not trained on: shard "
            "again with --n_test_shards and --fraction_test_set over 0"
        )
    is_leak = np.isin(test, training)
    num_repeated = len(training) - len(np.unique(training)) + int((~is_leak).sum()) - len(np.unique(test[~is_leak]))
    leaks = f"{int(is_leak.sum()):,} of {len(test):,} test documents are in the training split too"
    repeated = f"{num_repeated:,} of {len(training) + len(test):,} documents repeat an earlier one"
    print(f"  {leaks}\n  {repeated}")
    remedy = "format the text again without --keep_duplicates, and shard it again"
    if is_leak.any():
        yield f"{leaks}: the test's figures would be better than they are; {remedy}"
    if num_repeated:
        yield f"{repeated}: repeated text can hold pre-training at a loss of 7, and is learned by heart; {remedy}"


def _inspect_made(made: Prepared, tokenizer: Tokenizer) -> Iterator[str]:
    """Prints settings, and what `_inspect_sample` prints, for token files of each length; yields warnings."""
    assert made.manifest
    arguments, vocab, training = made.manifest.arguments, made.vocab, made.manifest.shards["training"]
    is_records = made.stage == "create_tfrecord_files"
    unit = "instances" if is_records else "tokens"
    shards = ", ".join(
        f"{len(entries):,} {split} shards with {sum(e.counts[f'num_{unit}'] for e in entries):,} {unit}"
        for split, entries in made.manifest.shards.items()
    )
    print(
        f"\n{'Records' if is_records else 'Token files'} below {made.folder}\n"
        f"  {', '.join(f'{name} {value}' for name, value in arguments.items())}\n"
        f"  vocabulary of {vocab.size:,} pieces, sha256 {vocab.sha256[:12]}...; {shards}",
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
    shares = instance_sample.measure(sample.instances, VocabularyIds.of_tokenizer(tokenizer))
    some = f"{num:,} of {sample.num_total:,}" if num < sample.num_total else f"all {num:,}"
    print(f"\n  Of {some} training instances, evenly spread over the shards:")
    for line in instance_sample.describe_shares(shares, max_seq_length):
        print(f"    {line}", flush=True)
    for warning in instance_sample.judge(shares, max_seq_length):
        yield f"max_seq_length {max_seq_length}: {warning}"


def _tokenizer_of(made: Prepared) -> Tokenizer:
    path = original_vocabulary(made.folder)
    if not path.is_file() or sha256_of_file(path) != made.vocab.sha256:
        remedy = command("verify", made.dataset, repair=True)
        raise UserError(f"{path} is not the vocabulary that the files beside it were made with: run {remedy}")
    arguments = made.header.arguments
    return open_tokenizer(path, *Casing.of(bool(arguments["do_lower_case"]), arguments.get("strip_accents")))


def run_inspect(options: argparse.Namespace, layout: Layout) -> None:
    """Prints instances, text and documents of one dataset, and warnings about them.

    Raises: UserError where the dataset has neither sharded text, token files nor records, or they are damaged.
    """
    stages = find_prepared(layout, options.dataset)
    sharded = [stage for stage in stages if stage.stage == "sharding" and stage.manifest]
    made = [stage for stage in stages if stage.stage in WITH_VOCABULARY and stage.manifest]
    wrong = [stage.fault for stage in stages if stage.fault]
    if not sharded and not made:
        reason = (
            "; ".join(wrong)
            or f"neither sharded text, token files nor records of {options.dataset} are below {layout.root}"
        )
        raise UserError(f"{reason}: " + command("status", options.dataset) + " says what to type first")
    for stage in (*made, *sharded):
        assert stage.manifest
        stage.manifest.require_whole(stage.folder, command("verify", stage.dataset, repair=True))
    for stage in made:
        wrong += _inspect_made(stage, _tokenizer_of(stage))
    for stage in sharded:
        assert stage.manifest
        wrong += headings.inspect_sentences([stage.folder / entry.file for entry in stage.manifest.shards["training"]])
        wrong += _inspect_documents(stage, task_pool_of(options, layout))
    print("".join(f"\nlooks wrong: {warning}" for warning in wrong) or "\nnothing looks wrong")
    for kind in (*["sharded text"] * (not sharded), *["token files or records"] * (not made)):
        print(f"not looked at, because not there or damaged: {kind}")
