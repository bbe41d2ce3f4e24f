"""--action status: what is done, and how far the rest is."""

import time

import pytest

from bert_tf.base.files import atomic_file
from bert_tf.prepare.checking import status
from bert_tf.prepare.running.stage import Stage
from bert_tf.records.manifest import FileEntry, describe_input
from tests.preparation import bertPrep


def said(capsys, working_dir, *arguments):
    capsys.readouterr()
    options = bertPrep.parse(["--action", "status", *arguments])
    status.run_status(options, bertPrep.stages.Layout(working_dir))
    return capsys.readouterr().out


def test_stages_that_are_done(work, tmp_path, capsys):
    assert "nothing has been prepared yet; begin with\n    python3 data/bertPrep.py" in said(capsys, tmp_path)
    output = said(capsys, work)
    assert "num_documents_training 54" in output and "with num_training_shards 4" in output
    assert "pairs of length 32, single segments of length 32\n" in output
    for path in work.rglob("*.tokens.*"):
        path.unlink()
    assert "no pairs yet; training draws those" in said(capsys, work)


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_running_and_stopped_stages_tell_how_far_they_are(tmp_path, capsys, clock):
    settings = {"num_training_shards": 10, "num_test_shards": 2, "random_seed": 0}
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
        assert "running: 3 of 12 files, 00:18 of work left" in output
    clock[0] += 5000
    with stage() as second:
        add(second, 3)
    output = said(capsys, tmp_path)
    assert "stopped, the same command continues: 4 of 12 files, 00:16 of work left" in output
    assert "with num_training_shards 10" in output


def test_formatting_counts_its_input(tmp_path, capsys, clock):
    folder = tmp_path / "formatted_one_article_per_line"
    source = tmp_path / "a file.txt"
    source.write_bytes(b"x" * 4_000_000)
    inputs = [describe_input(source, tmp_path)]
    path = folder / "custom_one_document_per_line.manifest.json"
    with Stage("text_formatting", "custom", path, {"keep_duplicates": True}, inputs) as stage:
        clock[0] += 10
        stage.add_checkpoint({"input_bytes": 1_000_000})
    output = said(capsys, tmp_path)
    assert "continues: 1,000,000 of 4,000,000 bytes, 00:30 of work left" in output


def test_a_dataset_with_its_parts(tmp_path, capsys):
    for dataset, name in (("bookscorpus", "bookscorpus_one_book_per_line"), ("custom", "custom_one_document_per_line")):
        path = tmp_path / f"formatted_one_article_per_line/{name}.manifest.json"
        with Stage("text_formatting", dataset, path, {}, []) as stage:
            stage.complete({}, {})
    output = said(capsys, tmp_path, "--dataset", "books_wiki_en_corpus")
    assert "text_formatting of bookscorpus, done" in output and "custom" not in output
