"""The programs in examples/ run with a small model, and docs/python.md shows parts of them."""

import random
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.google_checkpoints import published_names, write_encoder

ROOT = Path(__file__).resolve().parents[2]
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran in park . ##s".split()


def test_the_page_shows_what_the_programs_do():
    programs = "".join(path.read_text() for path in ROOT.glob("examples/*.py"))
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    for block in blocks:
        assert block in programs, block


@pytest.mark.slow
def test_the_programs_run(tmp_path, monkeypatch):
    write_encoder(tmp_path, PIECES, 32)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path)])
    random.seed(1)  # Keras draws the classifier's new layer by it
    encoder, classifier, weights = (
        runpy.run_path(str(ROOT / f"examples/{name}.py")) for name in ("encoder", "classifier", "weights")
    )
    assert encoder["sequence"].shape == (2, 16, 8) and len(encoder["layers"]) == 3
    np.testing.assert_allclose(np.diag(encoder["vectors"] @ encoder["vectors"].T), 1.0, rtol=1e-5)
    losses = classifier["history"].history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    assert len(classifier["classifier"].trainable_variables) == len(published_names(2)) + 2
    assert weights["query"].shape == (8, 8)
