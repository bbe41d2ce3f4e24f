"""What is imported, with any of its files cut, emptied, replaced by junk or by a folder.

It is exported or refused in one line that names the place, and then nothing is left.
"""

from __future__ import annotations

import shutil

import pytest
import tensorflow as tf

from bert_tf.base.errors import as_user_error
from bert_tf.interchange.export import export
from bert_tf.model.heads import PretrainingModel
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests import exported
from tests.google_checkpoints import HEADS_OF_PRETRAINING, VOCAB, write_encoder
from tests.interchange.test_google import keras_model

PIECES = [*SPECIAL_TOKENS, *map(str, range(VOCAB - len(SPECIAL_TOKENS)))]


def google(folder):
    folder.mkdir()
    write_encoder(folder, PIECES, 16, **HEADS_OF_PRETRAINING)


def keras(folder):
    google(folder)
    for file in folder.glob("bert_model.ckpt*"):
        file.unlink()
    tf.train.Checkpoint(model=keras_model(with_heads=True, old=True)).write(str(folder / "bert_model.ckpt"))


def run_folder(folder):
    exported.write_run(folder, exported.make_variables(PretrainingModel))


def hugging_face(folder):
    """With all files that an export has."""
    run_folder(folder.with_name("run"))
    export(str(folder.with_name("run")), folder)


def damage(path, content):
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("write", [google, keras, run_folder, hugging_face])
def test_damaged_weights(write, tmp_path):
    sound, case, made, num_refused = tmp_path / "sound", tmp_path / "case", tmp_path / "made", 0
    write(sound)
    files = [path.relative_to(sound) for path in sorted(sound.rglob("*")) if path.is_file()]
    for file in files:
        whole = (sound / file).read_bytes()
        flipped = bytes(byte ^ (number == len(whole) // 2) for number, byte in enumerate(whole))
        for content in (whole[: len(whole) // 2], whole[:-1], flipped, b"", b"{}", b'[1, "\xff"]', None):
            shutil.copytree(sound, case)
            damage(case / file, content)
            try:
                export(str(case), made)
            except Exception as raised:
                error = as_user_error(raised)  # as the programs do
                assert error and str(case) in str(error) and "\n" not in str(error), (file, raised)
                assert not made.exists(), file
                num_refused += 1
            shutil.rmtree(made, ignore_errors=True)
            shutil.rmtree(case)
    assert num_refused > 3 * len(files)
