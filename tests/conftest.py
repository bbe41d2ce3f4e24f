"""What holds for all tests."""

from __future__ import annotations

import collections
import os
import shutil
import sys

import pytest

from tests import preparation
from tests.http_server import Server

# As in `bert_tf.base.tensorflow`, before which most tests import TensorFlow.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def pytest_collection_modifyitems(items):
    """Files that take long come first: where several processes share the tests, file by file, none is left alone."""
    num_slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -num_slow[item.path])


def pytest_runtest_setup(item):
    """GPUs round float32 to TF32 in matmuls, unless told otherwise."""
    marked = item.get_closest_marker("computes") or item.get_closest_marker("gpu")
    if marked and "tensorflow" in sys.modules:
        sys.modules["tensorflow"].config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture
def server():
    """A web server on loopback, which answers as a test tells it to."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A working directory in which all stages have run, on source.txt: to be read only."""
    folder = tmp_path_factory.mktemp("prepared")
    source = preparation.write(folder / "source.txt", "\n\n".join(preparation.documents(60)))
    for typed in (("text_formatting", "--input_files", source), *preparation.CHAIN):
        preparation.run(folder, *typed)
    return folder


@pytest.fixture
def work(prepared, tmp_path):
    """A copy of it, in the same place as far as manifests tell."""
    return shutil.copytree(prepared, tmp_path / "work", copy_function=shutil.copy2)
