"""Token files and their pairs: format, damage, and that they give the instances of records."""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_tf.batches.data_sets import RecordSet
from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.token_set import TokenSet
from bert_tf.records.pair_file import PairFile, ensure_pairs, open_pairs, pairs_path
from bert_tf.records.pairs import PairSettings
from bert_tf.records.token_file import Shard, TokenFile, TokenizedText, read_tokens, write_tokens
from tests import preparation
from tests.preparation import contents, flip
from tests.pretraining_data import unmasked_ids
from tests.refusals import refused

SETTINGS = ("--max_seq_length", 64, "--dupe_factor", 2)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A working directory with token files and pairs of length 64."""
    folder = tmp_path_factory.mktemp("prepared")
    preparation.shard(folder, preparation.documents(60), "--n_training_shards", 3, "--n_test_shards", 2)
    preparation.run(folder, "create_vocab", "--vocab_size", 400)
    preparation.run(folder, "create_token_files")
    preparation.run(folder, "create_pairs", *SETTINGS)
    return folder


@pytest.fixture
def work(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "work", copy_function=shutil.copy2)
    return tmp_path / "work"


def tokens_folder(work: Path) -> Path:
    (folder,) = work.glob("tokens/*/custom")
    return folder


def text(size: int) -> TokenizedText:
    return TokenizedText(np.arange(size) % 500, np.array([0, 3, size]), np.array([0, 1, 2]))


@pytest.mark.parametrize("vocab_size, kind", [(65_536, "<u2"), (65_537, "<i4")])
def test_tokens_come_back(tmp_path, vocab_size, kind):
    path = tmp_path / "x.tokens"
    sha256 = write_tokens(path, text(100_000), Shard(1, 7), vocab_size)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    file = TokenFile(path)
    assert (file.shard, file.vocab_size, file.id_type.str) == (Shard(1, 7), vocab_size, kind)
    for found, expected in zip(file.text(), text(100_000)):
        np.testing.assert_array_equal(found, expected)
    pieces = read_tokens([file], np.array([0, 0]), np.array([99_990, 5]), np.array([10, 3]))
    assert pieces.tolist() == [*(np.arange(99_990, 100_000) % 500), 5, 6, 7]


@pytest.mark.parametrize("place", [70, 70_000, 140_000, -2, -9])
def test_a_flipped_byte_is_found_in_its_block(tmp_path, place):
    path = tmp_path / "x.tokens"
    write_tokens(path, text(100_000), Shard(0, 0), 500)
    flip(path, place)
    block = place // 65_536 if place > 0 else "[0-9]"
    refused(f"x.tokens: block {block} .* is damaged; .*--action verify --repair", TokenFile(path).verify)


def test_pieces_that_come_in_parts_or_not_at_all(tmp_path, monkeypatch):
    write_tokens(tmp_path / "x.tokens", text(1000), Shard(0, 0), 500)
    file, pread = TokenFile(tmp_path / "x.tokens"), os.pread
    pieces = [file, file], np.array([0, 1, 0]), np.array([0, 100, 500]), np.array([50, 60, 70])
    expected = read_tokens(*pieces)
    assert expected.tolist() == [*(np.arange(50) % 500), *range(100, 160), *(np.arange(70) % 500)]
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 16), offset))
    np.testing.assert_array_equal(read_tokens(*pieces), expected)

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    refused("x.tokens, byte .*, cannot be read .Input/output error", read_tokens, *pieces)
    monkeypatch.undo()
    os.truncate(tmp_path / "x.tokens", 1000)
    refused("x.tokens ends before byte .*: it was cut short, or changed", read_tokens, *pieces)


def test_the_first_copy_holds_the_instances_of_records_in_their_order(work):
    preparation.run(work, "create_tfrecord_files", "--max_seq_length", 64, "--dupe_factor", 1)
    (records_folder,) = work.glob("tfrecord/*/custom")
    for split in ("training", "test"):
        records = RecordSet(str(records_folder / split), "input_files")
        tokens = TokenSet(str(tokens_folder(work) / split), "input_files", 64, MaskingRules())
        assert tokens.copies[0] == records.copies[0] and len(tokens.copies) == (2 if split == "training" else 1)
        ranges = records.ranges_in_file_order(0, records.num_instances)
        stored = {name: value.numpy() for name, value in records.features(ranges).items()}
        made = tokens.features(ranges, 1)
        np.testing.assert_array_equal(unmasked_ids(made), unmasked_ids(stored))
        for name in ("input_mask", "segment_ids", "next_sentence_labels"):
            np.testing.assert_array_equal(made[name], stored[name])
        np.testing.assert_array_equal(tokens.lengths(ranges), stored["input_mask"].sum(axis=1))
        if split == "training":
            assert tokens.copies[0] != tokens.copies[1], "every copy has pairs of its own"


def test_records_from_token_files_have_the_bytes_of_those_from_text(work):
    options = ("--max_seq_length", 64, "--dupe_factor", 3, "--whole_word_masking")
    preparation.run(work, "create_tfrecord_files", *options)
    (records_folder,) = work.glob("tfrecord/*/custom")
    from_text = contents(records_folder)
    shutil.rmtree(work / "tfrecord")
    shutil.rmtree(work / "sharded")
    preparation.run(work, "export_tfrecord", *options)
    assert contents(records_folder) == from_text
    vocab_file = tokens_folder(work) / "vocab.txt"
    vocab_file.write_text(vocab_file.read_text() + "more\n")
    refused("is not what the token files were made with.*--repair", preparation.run, work, "export_tfrecord", *options)
    shutil.rmtree(work / "tokens")
    refused(
        "holds nothing that create_token_files has finished: run ", preparation.run, work, "export_tfrecord", *options
    )


def test_only_missing_pairs_are_drawn_and_with_the_settings_of_the_others(work, capsys):
    folder = tokens_folder(work) / "training"
    before = contents(folder)
    victim = folder / "custom_training_1.tokens.64.pairs"
    for damage in (victim.unlink, lambda: victim.write_bytes(before[victim.name][:-3])):
        damage()
        settings, counts = ensure_pairs(sorted(folder.glob("*.tokens")), PairSettings(64, 9, 8, 0.5))
        assert settings == PairSettings(64, 2) and counts["num_instances"] == sum(
            open_pairs(TokenFile(folder / "custom_training_1.tokens"), PairSettings(64)).num_instances
        )
        assert contents(folder) == before
    preparation.run(work, "create_pairs", *SETTINGS)
    assert "nothing to do" in capsys.readouterr().out


def test_pairs_of_other_settings_are_refused(work):
    of_others = r"64.pairs has .*dupe_factor 2, .*, but this command .*dupe_factor 5.*delete"
    refused(of_others, preparation.run, work, "create_pairs", "--max_seq_length", 64)
    folder = tokens_folder(work) / "training"
    (folder / "custom_training_1.tokens.64.pairs").unlink()
    ensure_pairs([folder / "custom_training_1.tokens"], PairSettings(64, 2, 7))
    words = "random_seed 7.*random_seed 12345.*delete what is not wanted"
    refused(words, TokenSet, str(folder), "input_files", 64, MaskingRules())


def test_pairs_of_other_tokens_are_drawn_again(work):
    folder = tokens_folder(work) / "training"
    path = folder / "custom_training_0.tokens"
    whole = TokenFile(path).text()
    write_tokens(path, whole._replace(token_ids=whole.token_ids[::-1]), Shard(0, 0), TokenFile(path).vocab_size)
    assert open_pairs(TokenFile(path), PairSettings(64)) is None
    ensure_pairs([path], PairSettings(64, 2))
    assert open_pairs(TokenFile(path), PairSettings(64))


def test_lengths_and_predictions_out_of_range_are_refused(work):
    folder = str(tokens_folder(work) / "training")
    refused("--max_seq_length=70000: must be from 5 to 65535", TokenSet, folder, "input_files", 70_000, MaskingRules())
    words = "--max_predictions_per_seq=20 with --max_seq_length=16: at most 13"
    refused(words, TokenSet, folder, "input_files", 16, MaskingRules())


def test_a_set_does_not_keep_its_shards_open(work):
    """The recipe has 1,472 of them, and a process mostly may have 1,024 open files."""
    num_open = len(os.listdir("/proc/self/fd"))
    data = TokenSet(str(tokens_folder(work) / "training"), "input_files", 64, MaskingRules())
    assert len(data.files) == 3 and len(os.listdir("/proc/self/fd")) <= num_open + 2, "a shard has two files"


def test_pairs_with_a_damaged_head_or_another_name(work):
    """A head that promises 32 GiB of counts is read no further, and a copy that somebody has kept is nobody's pairs."""
    path = tokens_folder(work) / "training/custom_training_0.tokens.64.pairs"
    content = path.read_bytes()
    path.with_name("custom_training_0.tokens.old.pairs").write_bytes(content)
    path.write_bytes(content[:12] + b"\xff" * 4 + content[16:])
    with pytest.raises(ValueError, match="not a complete pair file"):
        PairFile(path)
    path.write_bytes(content)
    preparation.run(work, "status")
    preparation.run(work, "inspect")


def test_what_pairs_cannot_be_drawn_from(tmp_path):
    path = tmp_path / "x.tokens"
    path.write_bytes(b"something else" * 10)
    refused("x.tokens is no token file", ensure_pairs, [path], PairSettings(32))
    write_tokens(path, TokenizedText(np.array([7, 8]), np.array([0, 2]), np.array([0, 1])), Shard(0, 0), 10)
    refused("x.tokens has 1 sentence.*fewer shards", ensure_pairs, [path], PairSettings(32))
    assert not pairs_path(path, PairSettings(32)).exists()
    refused("none.tokens cannot be read .No such file", ensure_pairs, [tmp_path / "none.tokens"], PairSettings(32))
