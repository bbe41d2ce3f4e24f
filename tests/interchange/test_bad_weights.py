"""A seeded fuzzer over what is imported: checkpoints and folders of Hugging Face's with damage in any of their files.

Whatever it is, it is exported or refused in one line that names the place, and then nothing is left. FUZZ_CASES,
60 by default, sets how many: half of it for each kind of folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from bert_tf.base.errors import as_user_error
from bert_tf.interchange import to_hugging_face
from bert_tf.interchange.export import export
from bert_tf.model.heads import PretrainingModel
from tests import exported
from tests.google_checkpoints import (
    CONFIG,
    HEADS_OF_PRETRAINING,
    VOCAB,
    published_names,
    random_values,
    read_tensors,
    write_tensors,
    write_tf1,
)
from tests.interchange.test_google import keras_model
from tests.programs.test_bad_input import JUNK, changed_leaf, is_refusal

NUM_CASES = int(os.environ.get("FUZZ_CASES", "60")) // 2
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_pieces(folder, count):
    (folder / "vocab.txt").write_text("\n".join([*PIECES, *(f"w{n}" for n in range(count - len(PIECES)))]) + "\n")
    return folder


def google(folder):
    folder.mkdir()
    write_tf1(folder, random_values({**published_names(2), **HEADS_OF_PRETRAINING}))
    return write_pieces(folder, VOCAB)


def keras(folder):
    folder.mkdir()
    tf.train.Checkpoint(model=keras_model(with_heads=True, old=True)).write(str(folder / "bert_model.ckpt"))
    (folder / "bert_config.json").write_text(CONFIG.to_json())
    return write_pieces(folder, VOCAB)


def run_folder(folder):
    exported.write_run(folder, exported.make_variables(PretrainingModel))
    return folder


def hugging_face(folder):
    """With all files that an export has."""
    run = run_folder(folder.with_name("run"))
    export(str(run), folder, replace=False)
    return folder


def damage(chooser, path):
    """Does something to a file, and says what."""
    content = bytearray(path.read_bytes())
    place = chooser.randrange(len(content))
    kind = chooser.choice(["flip", "cut", "junk", "folder", "nothing", "values", "values"])
    if kind == "values" and path.suffix == ".json":
        path.write_text(json.dumps(changed_leaf(chooser, json.loads(content))))
    elif kind == "values" and path.suffix == ".safetensors":
        save_file(with_another_tensor(chooser, load_file(path)), path)
    elif kind == "values" and path.suffix == ".index":
        write_tensors(path.with_suffix(""), with_another_tensor(chooser, read_tensors(path.with_suffix(""))))
    elif kind == "cut":
        os.truncate(path, place)
    elif kind in ("folder", "nothing"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
    elif kind == "junk":
        path.write_text(chooser.choice(JUNK), encoding="latin-1")
    else:  # in the middle, or in the header
        content[chooser.choice([place, place % 200])] ^= 1 << chooser.randrange(8)
        path.write_bytes(content)
    return f"{kind} in {path.name}"


def with_another_tensor(chooser, tensors):
    """The tensors, one of which is of another type or shape, has another name or is left out."""
    graph = [name for name in tensors if "OBJECT_GRAPH" in name]
    name = graph[0] if graph and chooser.random() < 0.3 else chooser.choice(list(tensors))
    array = tensors.pop(name)
    if isinstance(array, bytes):  # the objects of Keras
        return {**tensors, name: chooser.choice([array[:-1], bytes(len(array)), array[: len(array) // 2]])}
    changed = [array.astype(np.float16), array.astype(np.int8), np.ones([]), array[None], array[:1], array * np.nan]
    if chooser.random() < 0.8:
        tensors[chooser.choice([name, name, "bert.encoder.layer.7.x.weight", "x"])] = chooser.choice(changed)
    return tensors


@pytest.mark.slow
@pytest.mark.parametrize("write", [google, keras, run_folder, hugging_face])
def test_damaged_weights(write, tmp_path):
    chooser = random.Random(write.__name__)
    sound, case, made = write(tmp_path / "sound"), tmp_path / "case", tmp_path / "made"
    to_hugging_face.main.__wrapped__(["program", str(sound), str(made)])
    for _ in range(NUM_CASES):
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(sound, case)
        files = sorted(path for path in case.rglob("*") if path.is_file())
        weights = [path for path in files if path.suffix in (".index", ".safetensors")]
        what = damage(chooser, chooser.choice(chooser.choice([files, weights])))
        try:
            to_hugging_face.main.__wrapped__(["program", str(case), str(made)])
        except Exception as raised:
            error = as_user_error(raised)
            assert error and is_refusal(error.exit_code, str(error)) and str(case) in str(error), (what, raised)
            assert not made.exists(), what
        else:
            arrays = load_file(made / "model.safetensors").values()
            assert all(np.isfinite(array).all() for array in arrays), what
