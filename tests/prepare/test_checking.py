"""--action verify: every kind of damage is named, and repaired to the same bytes; --action status."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file
from bert_tf.prepare.checking import status
from bert_tf.prepare.running.stage import Stage, read_stage
from bert_tf.prepare.sharding import sharding
from bert_tf.records.manifest import FileEntry, describe_input
from bert_tf.records.shard import load_index
from tests.preparation import CHAIN, FORMATTED, bertPrep, contents, flip, run
from tests.refusals import refused


def records_folder(work: Path) -> Path:
    (folder,) = work.glob("tfrecord/*/custom")
    return folder


def rewrite(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


TOKENS, TRAINING = (f"{kind}/*/custom/training/custom_training_" for kind in ("tokens", "tfrecord"))
SHARDED = "sharded/custom"


def flipped(byte: int, record: int = -1):
    """Of a file, or of one of its records."""
    return lambda path: flip(path, byte if record < 0 else int(load_index(path).offsets()[record]) + byte)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def copy_of_first(path: Path) -> None:
    shutil.copy(path.with_name(re.sub(r"_\d", "_0", path.name)), path)


# What is damaged, how, and what is said.
DAMAGE = {
    f"{TRAINING}1.tfrecord": (flipped(40, record=3), r"_1.tfrecord: record 3 at byte \d+ is damaged"),
    f"{TRAINING}0.tfrecord": (Path.unlink, "custom_training_0.tfrecord: cannot be read: No such file"),
    "tfrecord/*/custom/vocab.txt": (flipped(0), "vocab.txt: is gone, or not the vocabulary"),
    f"{TOKENS}1.tokens": (flipped(100), "custom_training_1.tokens: token file .*: block 0 of 64 KiB is damaged"),
    f"{SHARDED}/training/custom_training_2.txt": (flipped(100), "_2.txt: has other bytes"),
    f"{FORMATTED}.txt": (flipped(9), "custom_one_document_per_line.txt: has other bytes"),
    "vocab/custom/vocab.txt": (flipped(0), "vocab/custom: BROKEN\n  vocab.txt: has other bytes"),
}
# Of files that whoever reads the data makes again.
DERIVED = {
    "tfrecord/*/custom/test/custom_test_1.tfrecord.index": (flipped(-1), "_test_1.tfrecord.index: is damaged or that"),
    f"{TRAINING}2.tfrecord.index": (copy_of_first, "_training_2.tfrecord.index: is damaged or that of"),
    f"{TOKENS}2.tokens.32.pairs": (flipped(100), "2.tokens.32.pairs: is damaged, or was drawn from another"),
    f"{TOKENS}3.tokens.32.pairs": (copy_of_first, "3.tokens.32.pairs: is damaged, or was drawn from another"),
    f"{TOKENS}2.tokens.32.segments": (cut, "2.tokens.32.segments: is damaged, or"),
}


def damage(work: Path, pattern: str) -> str:
    """The name of the file."""
    (path,) = work.glob(pattern)
    {**DAMAGE, **DERIVED}[pattern][0](path)
    return path.relative_to(work).as_posix()


def test_damage_is_named_and_repaired_to_the_same_bytes(prepared, work, capsys):
    names, derived = ([damage(work, pattern) for pattern in table] for table in (DAMAGE, DERIVED))
    damaged = contents(work)
    refused("^broken: .*, of 12 in all; --repair makes again what can be made", run, work, "verify")
    output = capsys.readouterr().out
    for _, message in (*DAMAGE.values(), *DERIVED.values()):
        assert re.search(message, output), message
    assert contents(work) == damaged
    inodes = {name: (work / name).stat().st_ino for name in damaged}
    run(work, "verify", "--repair")
    assert contents(work) == {name: each for name, each in contents(prepared).items() if name not in derived}
    kinds = (".txt", ".tokens", ".tfrecord")
    remade = {name for name in contents(work) if (work / name).stat().st_ino != inodes.get(name)}
    remade = {name for name in remade if name.endswith(kinds) and not name.endswith("/vocab.txt")}
    assert remade == {name for name in names if not name.endswith("/vocab.txt")}, "and nothing else"
    capsys.readouterr()
    run(work, "verify")
    assert capsys.readouterr().out.count(": whole\n") == 5


def test_what_only_a_person_can_repair_is_named(work, capsys):
    """Counts that are wrong, and a file that was not made here."""
    rewrite(work / SHARDED / "manifest.json", lambda content: content["counts"].update(num_documents_training=7))
    made = json.loads((records_folder(work) / "manifest.json").read_text())
    made["shards"]["test"][0]["counts"]["num_tokens"] += 1
    rewrite(records_folder(work) / "manifest.json", lambda content: content.update(made))
    stray = records_folder(work) / "training/custom_training_9.tfrecord"
    stray.write_bytes(b"")
    for options in ([], ["--repair"]):
        refused("manifest.json, of 3 in all; .*repair it by hand", run, work, "verify", *options)
        output = capsys.readouterr().out
        assert "manifest.json: says num_documents_training 7, its files add up to 54" in output
        assert f"says num_tokens {made['counts']['num_tokens']:,}, its files add up to" in output
        assert "custom_training_9.tfrecord: is not in the manifest" in output
    assert stray.exists()


def test_what_has_no_whole_input_is_not_made_of_something_else(work, capsys):
    damage(work, f"{FORMATTED}.txt")
    damage(work, f"{SHARDED}/training/custom_training_2.txt")
    formatted, manifest = work / f"{FORMATTED}.txt", work / SHARDED / "manifest.json"
    formatted.write_bytes(formatted.read_bytes().replace(b"a", b"e"))
    (work / "source.txt").unlink()
    before = formatted.read_bytes(), manifest.read_bytes()
    refused("of 2 in all; .*repair it by hand", run, work, "verify", "--repair")
    output = capsys.readouterr().out
    assert re.search("cannot be made again: .*source.txt does not exist", output)
    assert "custom_training_2.txt now has other bytes than the first time" in output
    assert (formatted.read_bytes(), manifest.read_bytes()) == before


def test_records_are_made_again_from_token_files_where_the_text_is_gone(prepared, work):
    damage(work, f"{TRAINING}0.tfrecord")
    shutil.rmtree(work / "sharded")
    run(work, "verify", "--repair")
    assert contents(work / "tfrecord") == contents(prepared / "tfrecord")


def test_lost_vocabulary_is_asked_for(prepared, work, tmp_path, capsys):
    damage(work, f"{TRAINING}0.tfrecord")
    vocab = tmp_path / "mine.txt"
    shutil.copy(records_folder(work) / "vocab.txt", vocab)
    (records_folder(work) / "vocab.txt").unlink()
    shutil.rmtree(work / "vocab")
    with pytest.raises(UserError):
        run(work, "verify", "--repair")
    assert "name it by --vocab_file" in capsys.readouterr().out
    run(work, "verify", "--repair", "--vocab_file", vocab)
    assert contents(work / "tfrecord") == contents(prepared / "tfrecord")


def test_the_copy_of_another_vocabulary_is_not_left_beside_that_of_the_files(work):
    """As a run with a tokenizer.json leaves it that was killed, or whose files were deleted for another vocabulary."""
    (folder,) = work.glob("tokens/*/custom")
    (folder / "manifest.json").unlink()
    for split in ("training", "test"):
        shutil.rmtree(folder / split)
    (folder / "tokenizer.json").write_text("{}")
    run(work, "create_token_files")
    run(work, "verify")
    assert sorted(path.name for path in folder.iterdir() if path.is_file())[1:] == ["manifest.json", "vocab.txt"]


def test_damaged_and_unfinished_stages(work, capsys):
    (records_folder(work) / "manifest.json").write_text('{"shards": {}}')
    (work / "sharded/custom/manifest.json").unlink()
    with Stage("sharding", "custom", work / "sharded/custom/manifest.json", {}, []) as stage:
        stage.add(FileEntry("training/custom_training_0.txt", 1, ""))
    refused("manifest.json", run, work, "verify", "--repair")
    output = capsys.readouterr().out
    assert "names no stage, or not as a text): delete it with the files" in output
    assert "so not verified" in output


@pytest.mark.parametrize("action", [("verify", "--repair"), CHAIN[0]], ids=["verify", "sharding"])
def test_a_repair_that_was_killed_is_ended(prepared, work, action):
    damage(work, f"{SHARDED}/training/custom_training_2.txt")
    read_stage(work / "sharded/custom/manifest.json", "sharding").note_damaged(["training/custom_training_2.txt"])
    run(work, *action)
    assert contents(work) == contents(prepared)


def test_of_what_cannot_be_made_again_the_damaged_file_stays(prepared, work, monkeypatch):
    folder, write = work / "sharded/custom/training", sharding._write_shard
    paths = [folder / f"custom_training_{number}.txt" for number in (1, 2)]
    for path in paths:
        flip(path, 100)
    damaged = paths[1].read_bytes()

    def fail_at_2(task, **options):
        if "_2." in task.output.name:
            raise UserError("no room")
        return write(task, **options)

    with monkeypatch.context() as patched:
        patched.setattr(sharding, "_write_shard", fail_at_2)
        refused("repair it by hand", run, work, "verify", "--repair")
    assert paths[0].read_bytes() == (prepared / paths[0].relative_to(work)).read_bytes()
    assert paths[1].read_bytes() == damaged and not list(folder.glob(".*"))
    run(work, "verify", "--repair")
    assert contents(work) == contents(prepared)


# --action status: what is done, and how far the rest is.


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
    with stage() as third:
        clock[0] -= 5000  # set back
        add(third, 4)
    assert "5 of 12 files, ? of work left" in said(capsys, tmp_path)
    read_stage(manifest_path, "sharding").note_damaged(["training/custom_training_0.txt"])
    assert "5 of 12 files, ? of work left" in said(capsys, tmp_path)  # nothing has been done since: no rate is known


def test_formatting_counts_its_input(tmp_path, capsys, clock):
    source = tmp_path / "a file.txt"
    source.write_bytes(b"x" * 4_000_000)
    inputs = [describe_input(source, tmp_path)]
    path = tmp_path / f"{FORMATTED}.manifest.json"
    with Stage("text_formatting", "custom", path, {"keep_duplicates": True}, inputs) as stage:
        clock[0] += 10
        stage.add_checkpoint({"input_bytes": 1_000_000})
    output = said(capsys, tmp_path)
    assert "continues: 1.00M of 4.00MB, 00:30 of work left" in output


def test_a_dataset_with_its_parts(tmp_path, capsys):
    for dataset, name in (("bookscorpus", "bookscorpus_one_book_per_line"), ("custom", "custom_one_document_per_line")):
        path = tmp_path / f"formatted_one_article_per_line/{name}.manifest.json"
        with Stage("text_formatting", dataset, path, {}, []) as stage:
            stage.complete({}, {})
    output = said(capsys, tmp_path, "--dataset", "books_wiki_en_corpus")
    assert "text_formatting of bookscorpus, done" in output and "custom" not in output
