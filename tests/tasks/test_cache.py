"""Cached rows: kept whole, made again where damaged, found by what they depend on."""

import contextlib
import errno
import io
import sys
from typing import NamedTuple

import numpy as np

from bert_tf.tasks import rows
from bert_tf.tasks.rows import cached_arrays, content_key


class Rows(NamedTuple):
    ids: np.ndarray
    is_first: np.ndarray


def test_cache_is_used_and_damage_to_it_is_mended(tmp_path):
    made = Rows(np.random.default_rng(0).integers(0, 99, [70, 9], np.int32), np.arange(70) % 3 == 0)
    calls = []

    def make():
        calls.append(1)
        return made

    path = tmp_path / "cache" / "rows.npz"
    cached_arrays(path, Rows, make, write=False)
    assert not path.exists()
    for _ in range(2):
        again = cached_arrays(path, Rows, make, write=True)
        for name, array in made._asdict().items():
            np.testing.assert_array_equal(getattr(again, name), array)
            assert getattr(again, name).dtype == array.dtype
    assert len(calls) == 2  # once without writing, once for the file
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"rubbish" + content[207:])
    cached_arrays(path, Rows, make, write=True)
    path.write_bytes(content[:200])
    cached_arrays(path, Rows, make, write=True)
    assert len(calls) == 4 and path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == ["rows.npz"]


class FullFile(io.BytesIO):
    def write(self, content):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_only_a_warning(tmp_path, monkeypatch, capsys):
    made = Rows(np.zeros([3, 2], np.int32), np.zeros(3, bool))
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    monkeypatch.setattr(rows, "atomic_file", lambda _: contextlib.closing(FullFile()))
    path = tmp_path / "rows.npz"
    assert cached_arrays(path, Rows, lambda: made, write=True) is made
    warning = f"warning: {path} cannot be written (No space left on device); the next start makes these rows again\n"
    assert capsys.readouterr().err == warning and not complaints


def test_hashes_that_runs_have_recorded_stay(tmp_path):
    """A run goes on only with the same settings, of which these are some. They do not depend on a file's name."""
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\nthe\n")
    assert content_key(tmp_path / "vocab.txt") == content_key(b"[PAD]\nthe\n") == "6b80ceeae975ae083729"
    assert content_key(b"x", (384, 128)) != content_key(b"x", (384, 64))
