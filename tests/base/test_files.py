"""A file is there whole or not at all."""

import errno
import gzip
import os
import re
import socket
import stat
import sys
from pathlib import Path

import pytest

from bert_tf.base import files
from bert_tf.base.errors import UserError, as_user_error
from bert_tf.base.formats import HEAD_BYTES, describe_non_text
from bert_tf.prepare.corpora.text_files import open_bytes
from bert_tf.records.raw_file import RawFile
from bert_tf.tasks.rows import content_key
from bert_tf.tasks.squad import examples as squad
from tests.refusals import refused


def test_what_stands_for_a_file_of_git_lfs_is_named(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 437955512\n")
    refused("model.safetensors only stands for the file itself, .* 'git lfs pull'", files.check_file, path, "again")
    path.write_text("version 2")
    files.check_file(path, "again")


def test_a_file_appears_when_it_is_whole_and_its_folder_with_it(tmp_path):
    path = tmp_path / "new" / "file"
    with files.atomic_file(path) as file:
        file.write(b"first")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"first" and os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")], ids=repr)
def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    """The error of a full disk, which knows no name, gets that of the file."""
    path = tmp_path / "file"
    files.write_text(path, "old")
    with pytest.raises(type(error)) as raised, files.atomic_file(path) as file:
        file.write(b"half of the new one")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]
    if isinstance(error, OSError):
        said = f"{path} cannot be written (No space left on device); make room"
        assert str(as_user_error(raised.value)).startswith(said)


def test_where_folders_cannot_be_synced_files_are(tmp_path, monkeypatch):
    """As in VirtualBox's shared folders: fsync of a folder is an invalid argument there."""
    synced = []

    def fsync_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        synced.append(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_files)
    files.write_text(tmp_path / "file", "x")
    with files.atomic_folder(tmp_path / "folder") as folder:
        (folder / "inside").write_text("x")
    assert len(synced) == 2


def test_only_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "file/below"):
        (tmp_path / "file").touch()
        with pytest.raises(OSError) as raised:
            files.write_text(tmp_path / name, "new")
        said = str(as_user_error(raised.value))
        assert str(tmp_path) in said and "name another path" in said
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_appears_when_it_is_whole_in_place_of_the_old_one(tmp_path):
    folder = tmp_path / "new" / "folder"
    for text in ("first", "second"):
        with files.atomic_folder(folder) as made:
            (made / text).write_text(text, encoding="utf-8")
            assert not (folder / text).exists()
        assert [path.name for path in folder.iterdir()] == [text]
    for name in ("folder", "folder2"):
        (tmp_path / f"new/.{name}.{'0' * 32}.tmp").mkdir()  # as a kill leaves it
    with files.atomic_folder(folder) as made:
        (made / "second").write_text("second", encoding="utf-8")
    (tmp_path / f"new/.folder2.{'0' * 32}.tmp").rmdir()  # of another, which may be at work
    with pytest.raises(KeyboardInterrupt), files.atomic_folder(folder) as made:
        (made / "third").write_text("half", encoding="utf-8")
        raise KeyboardInterrupt
    assert (folder / "second").read_text(encoding="utf-8") == "second"
    assert os.listdir(tmp_path / "new") == ["folder"]


def read_lines(path):
    return list(files.decoded_lines(path))


@pytest.mark.parametrize("read", [squad.read_examples, content_key, read_lines])
def test_an_error_while_reading_names_the_file(read):
    refused("/proc/self/mem cannot be read .Input/output error.", read, Path("/proc/self/mem"))


def read_json(path):
    files.read_json_object(path, "look")


@pytest.mark.parametrize("read", [read_json, files.sha256_of_file, open_bytes, RawFile, read_lines])
def test_what_is_no_file_is_not_read(tmp_path, read, monkeypatch):
    """Nobody would ever write into the pipe, and the device never ends."""
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    os.mkfifo("pipe")
    Path("device").symlink_to("/dev/zero")
    Path("folder").mkdir()
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
        for name in ("pipe", "device", "folder", "socket"):
            with pytest.raises((OSError, UserError)) as raised:
                read(Path(name))
            assert name in str(as_user_error(raised.value))


def test_a_comma_in_a_path_that_stands_alone(tmp_path):
    folder = tmp_path / "a,b"
    folder.mkdir()
    (folder / "c,1.txt").touch()
    for text in (str(folder), f"{folder}/c,1.txt", f"{folder}/*.txt"):
        assert files.split_paths(text) == [text]
    assert files.split_paths(f"{tmp_path}/x, {tmp_path}/y,") == [f"{tmp_path}/x", f"{tmp_path}/y"]
    refused("^' ,' names no file; give paths", files.split_paths, " ,")


TEXT = "text,label\nEin Café,ja\n"


NO_TEXTS = {
    "full of zero bytes, as after a power failure": bytes(5000),
    "UTF-16, not UTF-8 text; convert it: iconv -f UTF-16 -t UTF-8 a.csv > OUT": TEXT.encode("utf-16"),
    "UTF-32, not UTF-8 text; convert it: iconv -f UTF-32 -t UTF-8": TEXT.encode("utf-32"),
    "a binary file or UTF-16, not UTF-8 text": TEXT.encode("utf-16-be"),
    "compressed with gzip, not UTF-8 text; convert it: gzip -dc a.csv > OUT": gzip.compress(TEXT.encode()),
    "a ZIP archive or a spreadsheet, not UTF-8 text; convert it: unzip a.csv": b"PK\x03\x04" + bytes(30),
    "a PDF document, not UTF-8 text; convert it: pdftotext a.csv": b"%PDF-1.4\n1 0 obj",
    "a Parquet table, not UTF-8 text; convert it: pandas.read_parquet('a.csv').to_json(": b"PAR1\x15\x04\x15\xd0",
    "an Arrow table, not UTF-8 text; convert it: pandas.read_feather('a.csv').to_json(": b"ARROW1\0\0",
    "an Arrow table, not UTF-8 text; convert it: datasets.Dataset.from_file('a.csv')": b"\xff\xff\xff\xff\xf0\0",
}


@pytest.mark.parametrize("kind", NO_TEXTS)
def test_what_is_no_text_is_called_what_it_is(tmp_path, kind):
    path = tmp_path / "a.csv"
    path.write_bytes(NO_TEXTS[kind])
    message = re.escape(f"{path} is {kind}")
    refused(f"^{message}", read_lines, path)
    refused(f"^{message}", files.read_json_object, path, "")


@pytest.mark.parametrize("content", [b"", b"A \0 in a long line", b"a\n", ("é" * HEAD_BYTES).encode(), b"BZh, he said"])
def test_what_may_be_text(content):
    assert describe_non_text(content[:HEAD_BYTES], "a") is None  # also where a character is cut


def test_other_encodings_are_named_by_line_and_byte(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\nbc\xe9\n")
    message = r"a.csv, line 2: byte 2 is not UTF-8 \(0xe9\); .*iconv -f ENCODING .* WINDOWS-1252"
    refused(message, read_lines, path)


def test_lines_end_at_line_feeds_or_where_there_is_none_at_carriage_returns(tmp_path):
    path = tmp_path / "a"
    for content, lines in (
        (b"\xef\xbb\xbfa\rb\r\nc", ["a\rb\r\n", "c"]),
        (b"a\x0bb\rc\xe2\x80\xa8d\r", ["a\x0bb\r", "c\u2028d\r"]),
        (b"a", ["a"]),
        (b"", []),
    ):
        path.write_bytes(content)
        assert read_lines(path) == list(enumerate(lines, 1))


def test_a_place_that_cannot_be_a_folder_is_named_with_its_fault(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "lost").symlink_to(tmp_path / "nothing")
    for name, fault in (
        ("file", "file is a file"),
        ("file/below", "file is a file"),
        ("circle/below", "circle is a link that leads nowhere"),
        ("lost/below", "lost is a link that leads nowhere"),
    ):
        message = f"^--to=x: {tmp_path}/{fault}, and must be a folder; name another$"
        refused(message, files.check_folder, tmp_path / name, "--to=x")
    for name in (".", "new", "new/below"):
        files.check_folder(tmp_path / name, "--to=x")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_folder_in_which_root_may_write_but_cannot_is_refused():
    refused(r"^--to=x: /proc cannot be written to \(.*name another$", files.check_folder, Path("/proc/x"), "--to=x")


def test_only_a_file_of_ours_or_an_empty_one_may_be_overwritten(tmp_path):
    ours, theirs, empty = (tmp_path / name for name in ("ours", "theirs", "empty"))
    ours.write_text("mark, and more")
    theirs.write_text("no mark")
    empty.touch()

    def check(path):
        files.check_output(path, "--to=x", lambda beginning: beginning.startswith(b"mark"))

    for path in (ours, empty, tmp_path / "new", tmp_path / "new/below"):
        check(path)
    refused("^--to=x is a file that this program has not written, so it is not overwritten", check, theirs)
    os.mkfifo(tmp_path / "pipe")
    for path, fault in ((tmp_path, "is no file"), (tmp_path / "pipe", "is no file"), (theirs / "x", ": .* is a file")):
        refused(f"^--to=x ?{fault}", check, path)
