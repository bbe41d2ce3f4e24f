"""A stage's memory: done, killed, changed, damaged, locked, out of disk."""

import errno
import os
import random

import pytest

from bert_tf.base import files
from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file
from bert_tf.prepare.running import stage as stages
from bert_tf.prepare.running.stage import Stage, clear_disk_errors
from bert_tf.records.manifest import FileEntry, VocabEntry, describe_input, read_manifest
from tests.preparation import write
from tests.pretraining_data import write_manifest


def stage(folder, arguments=None, inputs=(), **options) -> Stage:
    return Stage("create_vocab", "sample", folder / "manifest.json", arguments or {"seed": 1}, inputs, **options)


HALF = f"part_1.{'7a' * 16}.tmp"


def make(folder, name, content=b"text"):
    with atomic_file(folder / name) as file:
        file.write(content)
    return FileEntry(name, len(content), "0")


def refused(words, folder, *arguments, **options):
    with pytest.raises(UserError, match=words), stage(folder, *arguments, **options):
        pass


def kill(folder, **options):
    """A run that has finished one file."""
    with stage(folder, **options) as run:
        run.add(make(folder, "part_0"))


def finish(run, folder, names=("part_0", "part_1")):
    for name in names:
        if name not in run.finished:
            run.add(make(folder, name))
    run.complete({"num_parts": len(names)}, {"training": [run.finished[name] for name in names]})


def test_interrupted_stage_keeps_what_was_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt), stage(tmp_path) as run:
        run.add(make(tmp_path, "part_0"))
        run.add_checkpoint({"bytes": 1})
        run.add_checkpoint({"bytes": 2})
        (tmp_path / HALF).write_text("half")
        raise KeyboardInterrupt
    # What a kill in the middle of a line leaves.
    with open(tmp_path / ".manifest.json.journal", "ab") as journal:
        journal.write(b'{"finished": {"fi')
    write(tmp_path / "training" / HALF, "half")
    (tmp_path / "other.tmp").write_text("not ours")
    with stage(tmp_path) as again:
        assert list(again.finished) == ["part_0"] and again.checkpoint == {"bytes": 2}
        assert [path.name for path in tmp_path.rglob("*.tmp")] == ["other.tmp"]
        refused("another run of create_vocab", tmp_path)
        journal = (tmp_path / ".manifest.json.journal").read_bytes()
        finish(again, tmp_path)
    # What a kill between manifest and journal leaves.
    (tmp_path / ".manifest.json.journal").write_bytes(journal)
    with stage(tmp_path) as last:
        assert last.is_done
    assert not (tmp_path / ".manifest.json.journal").exists()


def test_what_another_program_has_put_into_the_folder_is_not_overwritten(tmp_path):
    own = write(tmp_path / "training" / "part_0", "mine")
    for _ in range(2):
        refused("training/part_0 was not made by this stage", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own] and own.read_text() == "mine"
    own.unlink()
    with stage(tmp_path):
        make(tmp_path, "part_0")  # and killed before the journal has it
    with stage(tmp_path) as again:
        finish(again, tmp_path)


def test_lost_and_shortened_files_are_made_again(tmp_path, capsys):
    names = ("part_0", "part_1", "part_2")
    with stage(tmp_path) as run:
        finish(run, tmp_path, names)
    (tmp_path / "part_0").unlink()
    (tmp_path / "part_2").write_bytes(b"te")
    with stage(tmp_path) as again:
        assert list(again.finished) == ["part_1"] and not again.is_done
        assert "making 2 lost or damaged files again" in capsys.readouterr().out


@pytest.mark.parametrize("is_finished", [True, False])
def test_other_arguments_inputs_and_vocabularies_are_refused_by_name(tmp_path, is_finished):
    source = tmp_path / "input.txt"
    source.write_text("abc")
    inputs = [describe_input(source, tmp_path)]
    vocab = VocabEntry(10, "a" * 64)
    with stage(tmp_path, inputs=inputs, vocab=vocab) as run:
        run.add(make(tmp_path, "part_0"))
        if is_finished:
            run.complete({}, {"training": [run.finished["part_0"]]})
    refused("seed is 1 there, 2 here.*delete", tmp_path, {"seed": 2}, inputs, vocab=vocab)
    refused("vocabulary is 10 pieces.* there, 11 pieces", tmp_path, inputs=inputs, vocab=VocabEntry(11, "b" * 64))
    refused("input 1 is input.txt there, missing here", tmp_path, vocab=vocab)
    (tmp_path / "other.txt").write_text("other")
    other = [describe_input(tmp_path / "other.txt", tmp_path)]
    refused("differently: input 1 is input.txt there, other.txt here. Use", tmp_path, inputs=other, vocab=vocab)
    source.write_text("abcd")
    refused("input.txt has changed", tmp_path, inputs=[describe_input(source, tmp_path)], vocab=vocab)


def test_files_of_others_in_the_same_folder_stay(tmp_path):
    ending = HALF.removeprefix("part_1.")
    others = {"other.txt." + ending, "deeper/mine.txt." + ending}
    for name in ("mine.txt." + ending, ".mine.txt.manifest.json.journal." + ending, *others):
        write(tmp_path / name, "half")
    with Stage("create_vocab", "sample", tmp_path / "mine.txt.manifest.json", {"seed": 1}, []) as run:
        run.add(make(tmp_path, "mine.txt"))
        run.complete({}, {"vocabulary": [run.finished["mine.txt"]]})
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.tmp")} == others


HEAD = '{"stage": "sharding", "dataset": "a", "format_version": 2, "arguments": {}, "inputs": [], "counts": {}'
OF_BYTES = HEAD + ', "shards": {"training": [{"file": "a", "bytes": %s}]}}'


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("manifest.json", "[]", "holds no JSON object.*delete it with the files"),
        ("manifest.json", "{}", "no manifest .names no stage.*delete it with the files"),
        *(("manifest.json", OF_BYTES % size, "names no bytes") for size in ("true", "-1", '"1"', "9" * 400)),
        ("manifest.json", HEAD + ', "stage": "x"}', "the field 'stage' occurs twice"),
        ("manifest.json", '{"stage": "sharding", "dataset": 5}', "names no dataset"),
        ("manifest.json", HEAD + ', "shards": {"training": 5}}', "names no training"),
        (".manifest.json.journal", "[]\n[]\n", "damaged .*delete it"),
        (".manifest.json.journal", "{}\n{}\n", "damaged .*delete it"),
        (".manifest.json.journal", "x\ny\n", "damaged .*delete it"),
        (".manifest.json.journal", None, "cannot be read .Is not a file.*delete it"),
    ],
)
def test_what_is_no_manifest_or_journal_is_named(tmp_path, name, content, message):
    if content is None:
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    refused(f"{name}.*{message}", tmp_path)


@pytest.mark.parametrize("data_format, stage", [("records", "create_tfrecord_files"), ("tokens", "create_token_files")])
def test_a_manifest_must_say_what_others_read(tmp_path, data_format, stage):
    path = tmp_path / "manifest.json"
    write_manifest(tmp_path, data_format, {}, sha256="a")
    whole = path.read_text()
    assert read_manifest(path, stage).arguments["strip_accents"]
    for name in ("do_lower_case", "strip_accents", "num_tokens" if data_format == "tokens" else "num_instances"):
        path.write_text(whole.replace(f'"{name}"', '"other"'))
        with pytest.raises(UserError, match=f"names no {name}"):
            read_manifest(path, stage)


def test_a_change_at_the_same_size_is_noticed(tmp_path):
    source = tmp_path / "input.txt"
    content = random.Random(0).randbytes(1 << 20)

    def described(content, later=0):
        source.write_bytes(content)
        os.utime(source, ns=(0, later))
        return describe_input(source, tmp_path)

    before = described(content)
    for place in (0, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        assert not described(changed).is_same(before, with_time=False)
    kill(tmp_path, inputs=[before])
    touched = described(content, later=1)
    refused("input.txt has changed since", tmp_path, inputs=[touched])
    with stage(tmp_path, inputs=[before]) as run:
        finish(run, tmp_path)
    with stage(tmp_path, inputs=[touched]) as again:
        assert again.is_done, "a finished stage may be copied with its input"


def test_a_change_in_a_journal_is_noticed(tmp_path):
    """Of a position in the text, say, at which the next start would go on."""
    with pytest.raises(KeyboardInterrupt), stage(tmp_path) as run:
        run.add_checkpoint({"bytes": 1000})
        raise KeyboardInterrupt
    journal = tmp_path / ".manifest.json.journal"
    content = journal.read_text()
    journal.write_text(content.replace("1000", "1001"))
    refused("a line does not match its checksum.*delete it", tmp_path)
    journal.write_text(content + content)
    refused("journal is damaged.*delete it", tmp_path)


def test_another_programs_unfinished_repair_goes_on(tmp_path, monkeypatch):
    with stage(tmp_path) as run:
        finish(run, tmp_path)
    name = next(iter(run.finished))
    (tmp_path / name).unlink()
    with stage(tmp_path) as killed:
        killed.add(make(tmp_path, name))
    assert list(tmp_path.glob(".*.journal"))
    monkeypatch.setattr(stages, "code_digest", lambda: "other")
    with stage(tmp_path) as again:
        assert again.is_done
    assert not list(tmp_path.glob(".*.journal"))


def test_another_programs_unfinished_stage_is_refused(tmp_path, monkeypatch):
    kill(tmp_path)
    monkeypatch.setattr(stages, "code_digest", lambda: "other")
    refused("made differently: the version of the program.* has changed.*delete .*manifest.json.journal", tmp_path)
    with stage(tmp_path, is_fetched=True) as again:
        assert list(again.finished) == ["part_0"]
        finish(again, tmp_path)
    with stage(tmp_path) as last:
        assert last.is_done, "what is finished stays valid"


@pytest.mark.parametrize("reader", ["prepare/corpora/wiki.py", "contrib/biomedical/pubmed.py"])
def test_changed_readers_of_corpora_are_another_program(tmp_path, monkeypatch, reader):
    monkeypatch.setattr(files, "CHECKOUT", tmp_path)
    path = tmp_path / "bert_tf" / reader
    path.parent.mkdir(parents=True)
    (path.parent / ".#wiki.py").symlink_to("an editor's lock")
    digests = set()
    for text in ("a = 1\n", "a = 2\n"):
        path.write_text(text)
        digests.add(stages.code_digest.__wrapped__())
    assert len(digests) == 2


def test_an_error_of_the_file_system_is_one_line(tmp_path):
    with pytest.raises(UserError, match="^/x: device; look at the disk.* finished stays$"), clear_disk_errors(tmp_path):
        raise OSError(errno.EIO, "device", "/x")
