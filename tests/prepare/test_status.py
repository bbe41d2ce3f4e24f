"""--action status: what is done, how far the rest is, and commands that can be typed."""

from __future__ import annotations

import shlex
import time

import pytest

from bert_tf.base.files import atomic_file
from bert_tf.prepare.checking import status
from bert_tf.prepare.running.stage import Stage
from bert_tf.records.manifest import FileEntry, describe_input
from tests.preparation import bertPrep, documents, run, shard


def next_commands(output):
    """The commands after "next:", each of which must be one that bertPrep understands."""
    found = [line.strip() for line in output.splitlines()]
    found = [line.partition("  #")[0] for line in found if line.startswith("python3")]
    for line in found:
        words = shlex.split(line)
        assert words[:2] == ["python3", "data/bertPrep.py"]
        bertPrep.parse(words[2:])
    return found


def said(capsys, working_dir, *arguments):
    capsys.readouterr()
    options = bertPrep.parse(["--action", "status", *arguments])
    status.run_status(options, bertPrep.stages.Layout(working_dir))
    return capsys.readouterr().out


def test_the_commands_lead_through_all_stages(tmp_path, capsys):
    output = said(capsys, tmp_path)
    assert "nothing has been prepared yet" in output and "--action download" in output
    (command,) = next_commands(said(capsys, tmp_path, "--dataset", "custom"))
    assert "--action text_formatting" in command and "--input_files" in command
    shard(tmp_path, documents(20), "--n_training_shards", 2, "--n_test_shards", 1)
    output = said(capsys, tmp_path)
    assert "num_documents_training 18" in output and "with num_training_shards 2" in output
    vocab, tokens = next_commands(output)
    assert "create_vocab" in vocab and "create_token_files" in tokens
    run(tmp_path, "create_vocab", "--vocab_size", 200)
    assert next_commands(said(capsys, tmp_path)) == [tokens]
    run(tmp_path, "create_token_files")
    assert "no pairs yet; training draws those" in said(capsys, tmp_path)
    assert "bash scripts/run_pretraining_lamb.sh" in said(capsys, tmp_path)
    run(tmp_path, "create_pairs", "--max_seq_length", 64)
    assert "pairs of length 64\n" in said(capsys, tmp_path)
    (tmp_path / "sharded/custom/test/custom_test_0.txt").unlink()
    assert "1 of them are gone or have another size, such as test/custom_test_0.txt" in said(capsys, tmp_path)


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_running_and_stopped_stages_tell_how_far_they_are(tmp_path, capsys, clock):
    settings = {
        "num_training_shards": 10,
        "num_test_shards": 2,
        "fraction_test_set": 0.0,
        "segmentation_method": "rules",
        "random_seed": 0,
    }
    manifest_path = tmp_path / "sharded/custom/manifest.json"

    def stage():
        return Stage("sharding", "custom", manifest_path, settings, [])

    def add(run, *numbers):
        for number in numbers:
            name = f"training/custom_training_{number}.txt"
            with atomic_file(manifest_path.parent / name) as file:
                file.write(b"x")
            clock[0] += 2
            run.add(FileEntry(name, 1, ""))

    with stage() as first:
        assert "running: nothing is finished yet" in said(capsys, tmp_path)
        add(first, 0, 1, 2)
        output = said(capsys, tmp_path)
        assert "running: 3 of 12 files (25%), 2.00s/ files, 00:18 of work left" in output
        assert "wait for what is running" in output
    clock[0] += 5000
    with stage() as second:
        add(second, 3)
    output = said(capsys, tmp_path)
    assert "stopped: 4 of 12 files (33%), 2.00s/ files, 00:16 of work left" in output
    (command,) = next_commands(output)
    assert command.endswith(
        "--dataset custom --n_training_shards 10 --n_test_shards 2 "
        "--fraction_test_set 0.0 --segmentation_method rules --random_seed 0"
    )


def test_formatting_counts_its_input(tmp_path, capsys, clock):
    folder = tmp_path / "formatted_one_article_per_line"
    source = tmp_path / "a file.txt"
    source.write_bytes(b"x" * 4_000_000)
    inputs = [describe_input(source, tmp_path)]
    with Stage(
        "text_formatting",
        "custom",
        folder / "custom_one_document_per_line.manifest.json",
        {"keep_duplicates": True, "input_format": "line"},
        inputs,
    ) as stage:
        clock[0] += 10
        stage.add_checkpoint({"input_bytes": 1_000_000})
    output = said(capsys, tmp_path)
    assert "stopped: 1.00M of 4.00MB (25%), 100kB/s, 00:30 of work left" in output
    (command,) = next_commands(output)
    assert command.endswith(f"--keep_duplicates --input_format line --input_files '{source}'")


def test_corpora_placed_by_hand_and_parts_of_a_dataset(tmp_path, capsys):
    folder = tmp_path / "download/bookscorpus/deep"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"x" * 1000)
    output = said(capsys, tmp_path)
    assert "placed by hand: 1 file, 1.00kB" in output
    (command,) = next_commands(output)
    assert command.endswith("--action text_formatting --dataset bookscorpus")
    output = said(capsys, tmp_path, "--dataset", "books_wiki_en_corpus")
    assert "format bookscorpus and wikicorpus_en first" in output
    assert [command.partition("--action ")[2] for command in next_commands(output)] == [
        "text_formatting --dataset bookscorpus",
        "download --dataset wikicorpus_en",
    ]


def test_what_a_stopped_download_leaves_was_not_placed_by_hand(tmp_path, capsys):
    folder = tmp_path / "download/wikicorpus_en"
    folder.mkdir(parents=True)
    for name in (".manifest.json.lock", "wikicorpus_en.xml.bz2.0123abcd.part"):
        (folder / name).write_text("")
    output = said(capsys, tmp_path, "--dataset", "wikicorpus_en")
    assert "placed by hand" not in output
    assert "--action download" in next_commands(output)[0]


def test_a_formatted_file_of_ones_own_is_gone_on_with(tmp_path, capsys):
    folder = tmp_path / "formatted_one_article_per_line"
    folder.mkdir()
    (folder / "custom_one_document_per_line.txt").write_text("\n".join(documents(9)) + "\n")
    # How many documents these are, only sharding finds out.
    (command,) = next_commands(said(capsys, tmp_path))
    assert command.endswith("--action sharding --dataset custom")
    run(tmp_path, "sharding", "--n_training_shards", 2, "--n_test_shards", 1)
    output = said(capsys, tmp_path)
    assert "text_formatting        placed by hand: 1 file" in output
    assert "create_vocab" in next_commands(output)[0]


def test_a_damaged_manifest_is_named(tmp_path, capsys):
    (tmp_path / "sharded/custom").mkdir(parents=True)
    (tmp_path / "sharded/custom/manifest.json").write_text("{")
    assert "damaged:" in said(capsys, tmp_path)
