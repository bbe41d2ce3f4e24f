"""Archives that unpack, and those that would write somewhere else."""

from __future__ import annotations

import contextlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.fetching import fetch
from tests.refusals import refused

FILES = {"top/a.txt": b"A" * 5000, "top/deep/b.bin": bytes(range(256)), "top/empty": b""}


def make_zip(path, files, *, mode=0):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo("top/folder/"), b"")
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            file.writestr(info, content)
    return path


def make_tar(path, files, *, kind=tarfile.REGTYPE, target=""):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            file.addfile(info, io.BytesIO(content))
    return path


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz"])
def test_unpacks_what_is_in_it(tmp_path, name):
    make = make_zip if name.endswith("zip") else make_tar
    packed = make(tmp_path / name, FILES)
    assert fetch.stem(packed) == "a"
    # What a killed run has left is replaced.
    (tmp_path / "out").mkdir()
    (tmp_path / "out/rest").write_text("rest")
    fetch.unpack(packed, tmp_path / "out")
    assert contents(tmp_path / "out") == FILES


@pytest.mark.parametrize("name", ["../evil", "top/../../evil", "/evil", "C:\\evil", "a\\..\\b"])
@pytest.mark.parametrize("make,suffix", [(make_zip, "zip"), (make_tar, "tar.gz")])
def test_nothing_is_written_outside(tmp_path, make, suffix, name):
    packed = make(tmp_path / f"a.{suffix}", {"good.txt": b"good", name: b"evil"})
    with contextlib.suppress(UserError):
        fetch.unpack(packed, tmp_path / "in/out")
    outside = [path for path in tmp_path.rglob("*") if tmp_path / "in/out" not in (path, *path.parents)]
    assert sorted(outside) == [packed, tmp_path / "in"] and not Path("/evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_to_the_outside_and_devices_in_a_tar_are_refused(tmp_path, kind):
    packed = make_tar(tmp_path / "a.tar", {"top/link": b""}, kind=kind, target="../../etc")
    refused("a.tar: .* can be unpacked .*link", fetch.unpack, packed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_in_a_zip_are_no_links(tmp_path):
    fetch.unpack(make_zip(tmp_path / "a.zip", {"top/link": b"/etc"}, mode=0o120777), tmp_path / "out")
    assert contents(tmp_path / "out") == {"top/link": b"/etc"} and not (tmp_path / "out/top/link").is_symlink()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_damaged_archive_leaves_nothing(tmp_path, name):
    make = make_zip if name.endswith("zip") else make_tar
    packed = make(tmp_path / name, {"top/a.bin": bytes(range(256)) * 50})
    content = bytearray(packed.read_bytes())
    content[len(content) // 3] ^= 255
    packed.write_bytes(content)
    refused(f"{name}: damaged, or not an archive", fetch.unpack, packed, tmp_path / "out")
    packed.write_bytes(b"<html>not found</html>")
    refused(f"{name}: damaged, or not an archive", fetch.unpack, packed, tmp_path / "out")
    assert not (tmp_path / "out").exists()
