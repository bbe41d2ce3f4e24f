"""Files over HTTP from a server that drops, lies, changes, refuses and knows no ranges."""

import errno
import hashlib
import random
import shutil

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.fetching import fetch
from bert_tf.prepare.running.stage import clear_disk_errors
from bert_tf.records.manifest import FileEntry
from tests.refusals import refused

CONTENT = random.Random(0).randbytes(1 << 20)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def waits(monkeypatch):
    """What a client waits for between attempts, without waiting."""
    waited = []
    monkeypatch.setattr(fetch.time, "sleep", waited.append)
    return waited


def get(server, folder, checksum=SHA256, path="/file.bin"):
    return fetch.Client().fetch(server.url(path), folder / "file.bin", checksum=checksum, label="file.bin")


def is_whole(folder):
    return [path.name for path in folder.iterdir()] == ["file.bin"] and (folder / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_whole_file_with_its_published_checksum(server, tmp_path, algorithm):
    server.add("/file.bin", CONTENT)
    details = {"url": server.url("/file.bin")}
    checksum = f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}"
    sha256 = SHA256.partition(":")[2]
    assert get(server, tmp_path, checksum) == FileEntry("file.bin", len(CONTENT), sha256, details)
    assert is_whole(tmp_path)
    message = f"has the {algorithm} .*, published is 00: start the same command again.*is removed"
    refused(message, get, server, tmp_path / "b", f"{algorithm}:00")
    assert not list((tmp_path / "b").iterdir())


def test_dropped_connections_go_on_where_they_were_cut(server, tmp_path, waits):
    page = server.add("/file.bin", CONTENT)
    page.drop_after = [300_000, 0, 400_000]
    get(server, tmp_path)
    assert is_whole(tmp_path)
    starts = [int(request.get("Range", "bytes=0-")[6:-1]) for request in page.requests]
    assert starts[0] == 0 and starts == sorted(starts) and 0 < starts[1] <= 300_000
    # Only the second of two failures in a row is waited for; what brings bytes is no failure.
    assert waits == [0, 4.0, 0]


def test_server_that_knows_no_ranges_begins_again(server, tmp_path, waits, capsys):
    page = server.add("/file.bin", CONTENT, ranges=False)
    page.drop_after = [500_000]
    get(server, tmp_path)
    assert is_whole(tmp_path)
    assert "starting from the first byte" in capsys.readouterr().out


def test_next_run_goes_on_and_another_address_begins_anew(server, tmp_path, waits):
    page = server.add("/file.bin", CONTENT)
    page.drop_after = [200_000, 0, 0, 0, 0]
    refused("5 failures in a row.* start the same command again", get, server, tmp_path)
    (part,) = tmp_path.glob("file.bin.*.part")
    assert 0 < part.stat().st_size <= 200_000
    page.statuses = [(200, {"Content-Type": "text/html; charset=utf-8"})]  # of a network that asks for a login
    refused("/file.bin: the answer is a web page.* it continues where", get, server, tmp_path)
    copies = [shutil.copytree(tmp_path, tmp_path.with_name(name)) for name in ("other", "whole", "spoiled")]
    get(server, tmp_path)
    assert is_whole(tmp_path) and page.requests[-1]["Range"].startswith("bytes=")
    other = server.add("/other.bin", CONTENT)
    get(server, copies[0], path="/other.bin")
    assert is_whole(copies[0]) and "Range" not in other.requests[-1]
    next(copies[1].iterdir()).write_bytes(CONTENT)  # nothing is left to be fetched
    get(server, copies[1])
    assert is_whole(copies[1])
    (part,) = copies[2].iterdir()
    part.write_bytes(b"x" * part.stat().st_size)
    refused("has the sha256 .*start the same command again.*is removed", get, server, copies[2])
    get(server, copies[2])
    assert is_whole(copies[2])


def test_busy_server_is_asked_again_when_it_says(server, tmp_path, waits):
    page = server.add("/file.bin", CONTENT)
    page.statuses = [
        (503, {"Retry-After": "7"}),
        (429, {"Retry-After": "soon"}),  # which says nothing
        (500, {}),
        (503, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
    ]
    get(server, tmp_path)
    assert is_whole(tmp_path) and waits == [7.0, 4.0, 8.0, 0]


@pytest.mark.parametrize(
    "statuses,message",
    [
        ([(503, {})] * 9, r"503 Service Unavailable; given up after 5 failures in a row"),
        ([(503, {"Retry-After": "86400"})], r"given up after 1 .*21,600 s to wait now"),
        ([(404, {})], r"404 Not Found"),
        ([(403, {})], r"403 Forbidden"),
        ([(416, {})], "416 Requested Range Not Satisfiable"),  # though no range was asked for
    ],
)
def test_refusals_name_the_address(server, tmp_path, waits, statuses, message):
    server.add("/file.bin", CONTENT).statuses = statuses
    refused(f"{server.url('/file.bin')}: .*{message}", get, server, tmp_path)


def test_no_network_says_so(tmp_path, waits):
    words = r"/file.bin: connection failed \(Connection refused\); given up after 5 "
    refused(words, fetch.Client().text, "http://127.0.0.1:9/file.bin")
    assert waits == [0, 4.0, 8.0, 16.0]


def test_full_disk_keeps_what_has_come(server, tmp_path, monkeypatch):
    server.add("/file.bin", CONTENT)

    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fetch.os, "fsync", no_space)
        words = f"^below {tmp_path}: No space left on device; look at the disk"
        with pytest.raises(UserError, match=words), clear_disk_errors(tmp_path):
            get(server, tmp_path)
    (part,) = tmp_path.iterdir()
    assert part.stat().st_size == len(CONTENT)
    get(server, tmp_path)
    assert is_whole(tmp_path)


def test_text_is_tried_again(server, waits):
    page = server.add("/list.html", b"<a href='x'>")
    page.statuses, page.drop_after = [(502, {})], [3]
    assert fetch.Client().text(server.url("/list.html")) == "<a href='x'>"
    with pytest.raises(fetch.NotThereError, match="404 Not Found; or put it"), fetch.adding_remedy("put it there"):
        fetch.Client().text(server.url("/nothing"))
