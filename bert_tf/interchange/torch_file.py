"""Reads the tensors of a PyTorch file (``torch.save``) without PyTorch, and without running code that it may contain.

A file is a zip archive: ``<name>/data.pkl`` describes the tensors, ``<name>/data/<key>`` has the bytes of a storage.
A pickle may call anything that it names. Here it may name a few kinds of things, which only describe tensors;
everything else is refused before it is called.
"""

from __future__ import annotations

import collections
import math
import operator
import pickle
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError

_DTYPES: dict[str, np.dtype] = {
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(tf.bfloat16.as_numpy_dtype),
    "DoubleStorage": np.dtype(np.float64),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
_WAY_OUT = "fetch it again, or have the model saved as model.safetensors"
# How files of PyTorch before 1.6 begin; those of its first releases are tar archives, which say "ustar" at this place.
_OLD_MAGIC, _MAGIC_OF_TAR_AT = pickle.dumps(0x1950A86A20F9469CFC6C, 2), slice(257, 262)


class _Storage(NamedTuple):
    member: str
    dtype: np.dtype


class Tensor(NamedTuple):
    """Where a tensor's values are in an open archive."""

    archive: zipfile.ZipFile
    storage: _Storage
    offset: int  # in elements, like the strides
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self) -> np.ndarray:
        """The values, in the type they are stored in. Raises `UserError` if the file is damaged there."""
        member, dtype = self.storage
        try:
            data = np.frombuffer(self.archive.read(member), dtype, offset=self.offset * dtype.itemsize)
        except (zipfile.BadZipFile, EOFError, ValueError, struct.error) as error:
            raise UserError(f"{self.archive.filename}: {member} is damaged ({error}); {_WAY_OUT}") from None
        steps = [stride * dtype.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(data, self.shape, steps, writeable=False)


class _Unpickler(pickle.Unpickler):
    """Makes tensors and dictionaries of tensors, nothing else."""

    def __init__(self, archive: zipfile.ZipFile, description: str):
        super().__init__(archive.open(description))
        self._archive, self._folder = archive, description[: -len("data.pkl")]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._make_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _tensor_of_parameter
        if module == "torch" and name in _DTYPES:
            return name
        raise UserError(
            f"{self._archive.filename} asks for {module}.{name}, which describes no tensor; it is refused and "
            "nothing in the file has been run; have the model saved as model.safetensors"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        _, kind, key, *_ = pid
        return _Storage(f"{self._folder}data/{key}", _DTYPES[kind])

    def _make_tensor(
        self, storage: _Storage, offset: int, shape: Iterable[int], strides: Iterable[int], *_: Any
    ) -> Tensor:
        tensor = Tensor(
            self._archive, storage, offset, *(tuple(map(operator.index, axes)) for axes in (shape, strides))
        )
        if min((offset, *tensor.shape, *tensor.strides)) < 0 or len(tensor.shape) != len(tensor.strides):
            raise ValueError(f"no tensor has shape {shape}, strides {strides}")
        member = self._archive.getinfo(storage.member)
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise ValueError(f"{storage.member} is packed, which torch.save never does")
        end = 1 + offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides))
        if math.prod(tensor.shape) and end * storage.dtype.itemsize > member.file_size:
            raise ValueError(f"a tensor lies outside of its storage {storage.member}")
        return tensor


def _tensor_of_parameter(tensor: Tensor, *_: Any) -> Tensor:
    return tensor


def _check_format(path: Path) -> None:
    with open(path, "rb") as file:
        begin = file.read(512)
    if begin.startswith(_OLD_MAGIC) or begin[_MAGIC_OF_TAR_AT] == b"ustar":
        raise UserError(
            f"{path} is in the old format of PyTorch before 1.6; load it with a newer PyTorch and save it again with "
            "torch.save, or as model.safetensors"
        )


def open_torch_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict, by name.

    Raises:
      UserError: the file is damaged, in the format before PyTorch 1.6, or contains more than tensors; nothing that it
        names has been run.
    """
    try:
        _check_format(path)
        archive = zipfile.ZipFile(path)
        (description,) = (name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"])
        content = dict(_Unpickler(archive, description).load())
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(
            f"{path} cannot be read as a PyTorch file ({type(error).__name__}: {error}); {_WAY_OUT}"
        ) from None
    others = [name for name, value in content.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if others or not content:
        raise UserError(f"{path} is no dictionary of tensors alone (see {others[:3]}); {_WAY_OUT}")
    return content
