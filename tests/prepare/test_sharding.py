"""Documents to shards: whole, balanced, by seed alone."""

import random

import numpy as np
import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import text_files
from bert_tf.prepare.running.stage import Stage
from bert_tf.prepare.running.workers import ProcessPool
from bert_tf.prepare.sharding import sharding
from bert_tf.prepare.sharding.sharding import ShardingSettings, assign_documents, document_lengths, shard_corpus
from tests.preparation import contents
from tests.refusals import refused

SETTINGS = ShardingSettings(6, 2, 0.1, "rules", 7)


def write_documents(path, num_documents: int, seed: int = 0):
    generator = random.Random(seed)
    sizes = [generator.randrange(1, 40) for _ in range(num_documents)]
    documents = [" ".join(f"Sentence {d} of {s}." for s in range(size)) for d, size in enumerate(sizes)]
    path.write_text("".join(document + "\n" for document in documents))
    return documents


def shard(folder, paths, settings=SETTINGS, num_processes=1):
    with Stage("sharding", "custom", folder / "manifest.json", settings._asdict(), []) as stage:
        counts, shards = shard_corpus(stage, "custom", paths, settings, ProcessPool(num_processes))
        stage.complete(counts, shards)
        return counts


def test_every_document_is_whole_and_in_one_shard(tmp_path):
    documents = write_documents(tmp_path / "a", 60) + write_documents(tmp_path / "b", 50, seed=1)
    counts = shard(tmp_path / "out", [tmp_path / "a", tmp_path / "b"])
    found = []
    for path in (tmp_path / "out").glob("*/*.txt"):
        content = path.read_text()
        assert content.endswith("\n\n"), path
        found += [block.replace("\n", " ") for block in content[:-2].split("\n\n")]
    assert sorted(found) == sorted(documents)
    assert counts["num_documents"] == 110 == sum(counts[f"num_documents_{split}"] for split in ("training", "test"))
    assert counts["num_sentences"] == sum(document.count(".") for document in documents)


def test_shards_are_balanced_by_bytes():
    lengths = np.random.default_rng(0).lognormal(7, 1, 20_000).astype(np.uint32)
    settings = ShardingSettings(40, 10, 0.1, "rules", 0)
    loads = np.bincount(assign_documents(lengths, settings), lengths, minlength=50)
    shares = loads / lengths.sum()
    np.testing.assert_allclose(shares[:40], 0.9 / 40, rtol=2e-3)
    np.testing.assert_allclose(shares[40:], 0.1 / 10, rtol=2e-3)


def test_no_shard_is_empty_even_with_one_huge_document():
    lengths = np.array([1_000_000, 1, 1, 1, 1], np.uint32)
    assignment = assign_documents(lengths, ShardingSettings(4, 1, 0.001, "rules", 0))
    assert sorted(assignment) == [0, 1, 2, 3, 4]


def test_empty_lines_are_no_documents_and_line_ends_no_part_of_them(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"One.\r\n\nTwo\n\r\n \t\nThree")
    assert document_lengths([path]).tolist() == [4, 3, 5]


@pytest.mark.parametrize("change", [lambda text: text[:-5], lambda text: text[: text.rindex("\n", 0, -1) + 1]])
def test_a_file_that_was_changed_meanwhile_is_named(tmp_path, monkeypatch, change):
    write_documents(tmp_path / "a", 30)

    def change_after_measuring(paths):
        lengths = document_lengths(paths)
        (tmp_path / "a").write_text(change((tmp_path / "a").read_text()))
        return lengths

    monkeypatch.setattr(sharding, "document_lengths", change_after_measuring)
    refused(r"/a: was changed while it was read", shard, tmp_path / "out", [tmp_path / "a"])


@pytest.mark.parametrize(
    "content,message",
    [
        (b"A line.\n" * 30 + "Grüße.\n".encode("latin-1"), r"/a: not UTF-8 at byte 242 \(0xfc\)"),
        (b"x" * 1000 + b"\n" + b"x" * 1001 + b"\n", "/a, the line at byte 1,001: a document of more than .*split it"),
        (b"A line.\n" * 7, "7 document.s. .* 6 training and 2 test shards.*--n_training_shards="),
    ],
)
def test_text_that_cannot_be_sharded_is_refused(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(text_files, "_LARGEST_LINE_BYTES", 1000)
    (tmp_path / "a").write_bytes(content)
    refused(message, shard, tmp_path / "out", [tmp_path / "a"])


def test_text_larger_than_what_is_held_gives_the_same_bytes(tmp_path, monkeypatch):
    paths = [tmp_path / "a", tmp_path / "b"]
    write_documents(paths[0], 150)
    # Blank lines and documents larger than what is held.
    paths[1].write_text("\n\n" + "Large. " * 2000 + "\r\n\nÉ京 is it. Small.\n" + "Last. " * 900)
    shard(tmp_path / "whole", paths)
    write_shard, num_left = sharding._write_shard, [3]

    def killed(task, **options):
        num_left[0] -= 1
        if num_left[0] == 0:
            raise UserError("killed")
        return write_shard(task, **options)

    monkeypatch.setattr(sharding, "BUFFER_BYTES", 2500)
    shard(tmp_path / "parts", paths)
    shard(tmp_path / "two", paths, num_processes=2)
    with monkeypatch.context() as patched, pytest.raises(UserError, match="killed"):
        patched.setattr(sharding, "_write_shard", killed)
        shard(tmp_path / "killed", paths)
    shard(tmp_path / "killed", paths)
    shard(tmp_path / "other", paths, SETTINGS._replace(random_seed=8))
    whole, *same, other = (contents(tmp_path / name) for name in ("whole", "parts", "two", "killed", "other"))
    assert same == [whole] * 3 and other.keys() == whole.keys()
    assert sum(other[name] != whole[name] for name in whole if name.endswith(".txt")) > 4


def test_a_gathered_file_that_another_machine_sees_cut_is_refused(tmp_path, monkeypatch):
    write_documents(tmp_path / "a", 30)
    gather = sharding.gather

    def gather_and_cut(paths, lengths, assignment, outputs):
        gather(paths, lengths, assignment, outputs)
        outputs[3].write_bytes(outputs[3].read_bytes()[:-1])

    monkeypatch.setattr(sharding, "gather", gather_and_cut)
    words = r"custom_training_3.txt\.\w+\.tmp: was changed while it was read"
    refused(words, shard, tmp_path / "out", [tmp_path / "a"])
