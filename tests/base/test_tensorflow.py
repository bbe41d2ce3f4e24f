"""TensorFlow as the library starts it, by a stand-in that prints what it finds in the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import answer

ROOT = Path(__file__).resolve().parents[2]
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


@pytest.mark.parametrize(
    "start, chosen, expected",
    [
        ("import bert_tf; bert_tf.from_pretrained", None, "1"),
        ("import bert_tf.ranks.connect", None, "1"),
        ("import bert_tf.ranks.connect", "0", "0"),
        ("import benchmarks.made_up", None, "1"),
    ],
)
def test_onednn_is_on_when_tensorflow_starts_unless_the_user_has_chosen(tmp_path, start, chosen, expected):
    (tmp_path / "tensorflow.py").write_text(f"import os\nprint(os.environ.get({ONEDNN!r}))\nraise SystemExit\n")
    variables = {ONEDNN: chosen, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = answer(sys.executable, "-c", start, **variables)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")
