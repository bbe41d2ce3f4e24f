"""--action inspect: shows samples of the prepared data, compares its documents, and warns of what looks wrong."""

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
from bert_tf.prepare.layout import Layout, counts_in_words, task_pool_of
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.records.pair_file import pair_lengths
from bert_tf.records.pairs import SEGMENTS_SUFFIX, SUFFIXES
from bert_tf.records.schema import InstanceArrays
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
    """Prints how many documents are compared; yields warnings about repeated ones and those in both splits."""
    num_documents = sum(entry.counts["num_documents"] for entry in sharded.entries)
    one_in = np.uint64(max(1, -(-num_documents // MOST_DOCUMENTS)))
    of_split: dict[str, list[np.ndarray]] = {"training": [np.zeros(0, np.uint64)], "test": [np.zeros(0, np.uint64)]}
    paths = [sharded.folder / entry.file for entry in sharded.entries]
    with Progress(total=sharded.num_bytes, unit="B", description="comparing documents") as bar:
        for hashes, entry in zip(task_pool.map_in_order(document_hashes, paths), sharded.entries):
            of_split[entry.file.partition("/")[0]].append(hashes[hashes % one_in == 0])
            bar.update(entry.num_bytes)
    training, test = map(np.concatenate, of_split.values())
    num_compared = len(training) + len(test)
    print(f"\nDocuments below {sharded.folder}\n  {num_compared:,} of {num_documents:,} compared", flush=True)
    is_leak = np.isin(test, training)
    num_repeated = len(training) - len(np.unique(training)) + int((~is_leak).sum()) - len(np.unique(test[~is_leak]))
    remedy = "format the text again without --keep_duplicates, and shard it again"
    if is_leak.any():
        leaks = f"{int(is_leak.sum()):,} of {len(test):,} test documents are in the training split too"
        yield f"{leaks}: the test's figures would be better than they are; {remedy}"
    if num_repeated:
        repeated = f"{num_repeated:,} of {num_compared:,} documents repeat an earlier one"
        yield f"{repeated}: repeated text can hold pre-training at a loss of 7, and is learned by heart; {remedy}"


def _inspect_made(made: Prepared, tokenizer: Tokenizer) -> Iterator[str]:
    """Prints settings, and what `_inspect_instances` prints, for token files of each length; yields warnings."""
    assert made.manifest
    arguments = made.header.arguments
    print(
        f"\n{made.stage} below {made.folder}\n  {', '.join(f'{name} {value}' for name, value in arguments.items())}\n"
        f"  vocabulary of {made.vocab.size:,} pieces; {counts_in_words(made.manifest.counts)}",
        flush=True,
    )
    if made.stage == "create_tfrecord_files":
        instances = instance_sample.read_sample(made.folder, made.manifest.shards["training"])
        yield from _inspect_instances(instances, arguments["max_seq_length"], tokenizer)
        return
    drawn = [(length, suffix == SEGMENTS_SUFFIX) for suffix in SUFFIXES for length in pair_lengths(made.folder, suffix)]
    if not drawn:
        print(f"  no pairs yet: {command('create_pairs', made.dataset, max_seq_length=128)} makes instances to look at")
    for length, single_segments in drawn:
        kind = ", single segments" if single_segments else ""
        print(f"\n  Length {length}{kind}, masked as training does by default:")
        instances = instance_sample.read_token_sample(made.folder / "training", length, single_segments)
        yield from _inspect_instances(instances, length, tokenizer)


def _inspect_instances(instances: InstanceArrays, max_seq_length: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Prints some instances and shares of a sample; yields warnings."""
    labels = instances.next_sentence_labels
    # One instance of each label, and one from the middle.
    shown = [*(int(np.argmax(labels == label)) for label in (0, 1)), len(labels) // 2]
    for number in dict.fromkeys(shown):
        lines = instance_sample.describe_instance(instances, number, tokenizer.inv_vocab)
        print("\n" + "".join(f"  {line}\n" for line in lines), end="")
    shares = instance_sample.measure(instances, VocabularyIds.of_tokenizer(tokenizer))
    print(f"\n  Of {len(labels):,} training instances, evenly spread over the shards:")
    for line in instance_sample.describe_shares(shares, max_seq_length):
        print(f"    {line}", flush=True)
    for warning in instance_sample.judge(shares):
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
    whole = [stage for stage in stages if stage.stage in ("sharding", *WITH_VOCABULARY) and stage.manifest]
    wrong = [stage.fault for stage in stages if stage.fault]
    if not whole:
        nothing = f"neither sharded text, token files nor records of {options.dataset} are below {layout.root}"
        raise UserError(f"{'; '.join(wrong) or nothing}: {command('status', options.dataset)} says what to type first")
    for stage in whole:
        assert stage.manifest
        stage.manifest.require_whole(stage.folder, command("verify", stage.dataset, repair=True))
    for stage in sorted(whole, key=lambda stage: stage.stage == "sharding"):
        assert stage.manifest
        if stage.stage != "sharding":
            wrong += _inspect_made(stage, _tokenizer_of(stage))
            continue
        wrong += headings.inspect_sentences([stage.folder / entry.file for entry in stage.manifest.shards["training"]])
        wrong += _inspect_documents(stage, task_pool_of(options, layout))
    print("".join(f"\nlooks wrong: {warning}" for warning in wrong) or "\nnothing looks wrong")
