"""PyTorch's files: the tensors that PyTorch wrote, and nothing that a file brings along is run."""

import collections
import os
import pickle
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bert_tf.base.errors import UserError
from bert_tf.interchange.torch_file import open_torch_file

TENSORS = Path(__file__).parents[1] / "golden" / "tensors.bin"  # of make_hugging_face_folders.py


def test_tensors_as_pytorch_wrote_them():
    found = {name: tensor.read() for name, tensor in open_torch_file(TENSORS).items()}
    numbers = np.arange(12, dtype=np.float32)
    expected = {
        "float32": numbers.reshape(3, 4),
        "transposed": numbers.reshape(3, 4).T,
        "slice": numbers[5:8],
        "float16": numbers,
        "bfloat16": numbers,
        "int64": np.arange(3),
        "scalar": np.float32(7.0),
        "empty": np.zeros([0, 2]),
    }
    assert list(found) == list(expected)
    for name, array in found.items():
        assert array.shape == expected[name].shape
        np.testing.assert_array_equal(array.astype(np.float32), expected[name], err_msg=name)
    assert {name: str(found[name].dtype) for name in ("float16", "bfloat16", "int64")} == {
        "float16": "float16",
        "bfloat16": "bfloat16",
        "int64": "int64",
    }


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


def write(path, content, data=b"\0" * 16):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content if isinstance(content, bytes) else pickle.dumps(content, 2))
        archive.writestr("archive/data/0", data)
    return path


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_file_that_would_run_a_command_is_refused_and_runs_nothing(tmp_path, protocol):
    made = tmp_path / "made_by_the_file"
    evil = pickle.dumps({"weight": Call(os.system, f"touch {made}")}, protocol)
    path = write(tmp_path / "pytorch_model.bin", evil)
    with pytest.raises(UserError, match=r"asks for posix.system, which describes no tensor; it is refused"):
        open_torch_file(path)
    assert not made.exists()
    pickle.loads(evil)  # what it would have done
    assert made.exists()


@pytest.mark.parametrize(
    "function, arguments",
    [
        (eval, ("1",)),
        (getattr, ("x", "y")),
        (open, ("made", "w")),
        (np.load, ("x",)),
        (collections.Counter, ("x",)),
        (shutil.rmtree, ("made",)),
    ],
)
def test_nothing_but_tensors_can_be_named(tmp_path, monkeypatch, function, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{function.__name__}, which describes no tensor"):
        open_torch_file(write(tmp_path / "x.bin", [Call(function, *arguments)]))
    assert os.listdir(tmp_path) == ["x.bin"]


def tensor_pickle(storage_size, offset, shape, strides):
    """A pickle with one float32 tensor, as torch.save writes it (protocol 2)."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", FloatStorage, "0", "cpu", storage_size) if value == "the storage" else None

    class FloatStorage:
        pass

    class Rebuild:
        def __reduce__(self):
            return _rebuild_tensor_v2, ("the storage", offset, shape, strides, False, {})

    FloatStorage.__module__, FloatStorage.__qualname__ = "torch", "FloatStorage"
    return Pickler, FloatStorage, Rebuild


def _rebuild_tensor_v2():
    pass


def write_tensor(path, monkeypatch, *layout, name="w"):
    import io
    import sys
    import types

    pickler, storage, rebuild = tensor_pickle(4, *layout)
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.FloatStorage, utils._rebuild_tensor_v2 = storage, _rebuild_tensor_v2
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    monkeypatch.setattr(_rebuild_tensor_v2, "__module__", "torch._utils")
    stream = io.BytesIO()
    pickler(stream, 2).dump({name: rebuild()})
    monkeypatch.undo()
    return write(path, stream.getvalue(), np.arange(4, dtype=np.float32).tobytes())


def pickled_tensor(storage, is_parameter):
    """What torch.save writes of {"w": a tensor of two numbers}, or of a parameter, with PyTorch's class of storage."""

    def text(value):
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    stored = b"(" + text("storage") + b"ctorch\n" + storage.encode() + b"\n" + text("0") + text("cpu") + b"K\x02tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + stored + b"K\x00K\x02\x85K\x01\x85I00\n}tR"
    if is_parameter:
        tensor = b"ctorch._utils\n_rebuild_parameter\n(" + tensor + b"I01\n}tR"
    return b"\x80\x02}" + text("w") + tensor + b"s."


@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize(
    "storage, dtype",
    [
        *(("DoubleStorage", "float64"), ("FloatStorage", "float32"), ("IntStorage", "int32"), ("ByteStorage", "uint8")),
        *(("ShortStorage", "int16"), ("CharStorage", "int8"), ("BoolStorage", "bool")),
    ],
)
def test_tensors_and_parameters_of_all_types(tmp_path, storage, dtype, is_parameter):
    values = np.array([0, 1], dtype)
    path = write(tmp_path / "x.bin", pickled_tensor(storage, is_parameter), values.tobytes())
    found = open_torch_file(path)["w"].read()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_a_tensor_outside_of_its_storage_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    sound = open_torch_file(write_tensor(path, monkeypatch, 0, (2, 2), (1, 2)))["w"].read()
    np.testing.assert_array_equal(sound, [[0, 2], [1, 3]])
    for layout in ((1, (2, 2), (1, 2)), (0, (5,), (1,)), (-1, (2,), (1,)), (0, (2,), (-1,)), (0, (2, 2), (1,))):
        with pytest.raises(UserError, match="cannot be read as a PyTorch file"):
            open_torch_file(write_tensor(path, monkeypatch, *layout))


@pytest.mark.parametrize("place, value", [(10, 8), (10, 99), (20, 0)])
def test_a_packed_storage_is_refused(tmp_path, place, value):
    """Where the archive's directory says so of a storage: its way of packing, or its size packed."""
    path, content = tmp_path / "x.bin", bytearray(TENSORS.read_bytes())
    with zipfile.ZipFile(TENSORS) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data/0")).encode()
    content[content.rindex(b"PK\1\2", 0, content.rindex(name)) + place] = value
    path.write_bytes(content)
    with pytest.raises(UserError, match="x.bin cannot be read as a PyTorch file .*data/0 is packed"):
        open_torch_file(path)


@pytest.mark.parametrize("name", [1, ("encoder", 0), None])
def test_a_tensor_whose_name_is_no_text(tmp_path, monkeypatch, name):
    path = write_tensor(tmp_path / "x.bin", monkeypatch, 0, (2, 2), (1, 2), name=name)
    with pytest.raises(UserError, match=f"x.bin is no dictionary of tensors alone .see .*{re.escape(repr(name))}"):
        open_torch_file(path)


def test_formats_before_pytorch_1_6_are_named(tmp_path):
    path = tmp_path / "x.bin"
    # As torch.save(..., _use_new_zipfile_serialization=False) of PyTorch 2.14 writes them.
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    with pytest.raises(UserError, match="x.bin is in the old format of PyTorch before 1.6; load it with a newer"):
        open_torch_file(path)
    with tarfile.open(path, "w") as archive:
        archive.add(TENSORS, "storages")
    with pytest.raises(UserError, match="x.bin is in the old format"):
        open_torch_file(path)


def test_what_is_no_state_dict(tmp_path):
    path = tmp_path / "x.bin"
    for content in ({}, {"epoch": 3}, {"model": {}}):
        with pytest.raises(UserError, match="is no dictionary of tensors alone"):
            open_torch_file(write(path, content))
    for damaged in (b"", b"version https://git-lfs.github.com/spec/v1", TENSORS.read_bytes()[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="cannot be read as a PyTorch file"):
            open_torch_file(path)
    flipped = bytearray(TENSORS.read_bytes())
    flipped[flipped.index(np.arange(12, dtype=np.float32).tobytes()) + 5] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(UserError, match="data/0 is damaged"):
        open_torch_file(path)["float32"].read()
