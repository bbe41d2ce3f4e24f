"""TensorFlow as the library starts it, by a stand-in that prints what it finds in the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import answer

ROOT = Path(__file__).resolve().parents[2]
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


@pytest.mark.parametrize("chosen, expected", [({}, "1"), ({ONEDNN: "0"}, "0")])
@pytest.mark.parametrize(
    "start",
    [
        "import bert_tf; bert_tf.from_pretrained",
        "import bert_tf.optimizer.keras_optimizers",
        "import bert_tf.ranks.connect",
        "import benchmarks.made_up",
    ],
)
def test_onednn_is_on_when_tensorflow_starts_unless_the_user_has_chosen(tmp_path, start, chosen, expected):
    (tmp_path / "tensorflow.py").write_text(f"import os\nprint(os.environ.get({ONEDNN!r}))\nraise SystemExit\n")
    variables = {ONEDNN: None, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", **chosen}
    done = answer(sys.executable, "-c", start, **variables)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")
