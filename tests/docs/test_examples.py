"""The programs in examples/ run with a small model, and docs/python.md shows parts of them; the notebooks have their
outputs in them, for readers, and their cells run, with small runs."""

import base64
import json
import random
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.google_checkpoints import published_names, write_encoder
from tests.processes import ROOT, answer

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


# --- Notebooks -----------------------------------------------------------------------------------

NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))
FIRST = "own_text"  # the others start from its weights
# In place of the values in the cell tagged `parameters`.
SMALL = {
    FIRST: {"UPDATES": "10", "WARMUP": "2", "EPOCHS": "1"},
    "answers": {"EPOCHS": "0.1"},
    "entities": {"EPOCHS": "0.1"},
    "report": {"UPDATES": "10", "SAVE_EVERY": "4"},
}
a_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)


def code_cells(notebook: Path) -> list[dict]:
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in found if cell["cell_type"] == "code"]


def texts(cell: dict) -> str:
    """What a code cell printed and showed as text."""
    parts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell["outputs"])
    return "\n".join("".join(part) for part in parts)


@a_notebook
def test_a_reader_sees_what_each_cell_gave_and_no_folder_of_the_machine_it_was_made_on(notebook):
    code = code_cells(notebook)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run all cells, in order"
    for cell in code:
        assert all(output["output_type"] != "error" for output in cell["outputs"]), cell["source"]
        if re.search(r"^(print|sh)\(", cell["source"], re.MULTILINE):
            assert texts(cell).strip(), cell["source"]
        assert not re.search(r"(^|[\s'\"=(:,])/\w+/|absl::|tensorflow/", texts(cell)), cell["source"]
        pictures = [output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {})]
        assert len(pictures) == cell["source"].count("plt.subplots("), cell["source"]
        for picture in pictures:
            assert 5_000 < len(base64.b64decode("".join(picture))) < 100_000
    assert notebook.stat().st_size < 300_000


# Runs the code cells, one after the other, from the notebook's folder; Jupyter is not needed. After the cell tagged
# `parameters` the variables are set to the values given, as papermill does it.
RUN_CELLS = """
import json, os, sys
notebook, *parameters = sys.argv[1:]
os.chdir(os.path.dirname(notebook))
names = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(notebook, encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    if "parameters" in cell["metadata"].get("tags", ()):
        given = dict(parameter.split("=", 1) for parameter in parameters)
        assert set(given) <= set(os.environ), "it has no such parameters"
        os.environ.update(given)
"""


def run(notebook: str, work: Path) -> None:
    parameters = [f"{name}={value}" for name, value in {"WORK": str(work), **SMALL[notebook]}.items()]
    command = (sys.executable, "-c", RUN_CELLS, ROOT / f"examples/{notebook}.ipynb", *parameters)
    done = answer(*command, PYTHONPATH=str(ROOT), MPLBACKEND="agg", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, "\n".join([*done.stdout.splitlines()[-8:], *done.stderr.splitlines()[-8:]])


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The folder that the first notebook leaves behind."""
    folder = tmp_path_factory.mktemp("notebooks")
    run(FIRST, folder)
    return folder


@pytest.mark.walkthrough
@pytest.mark.slow
def test_own_text_goes_from_text_to_a_model_for_others(work):
    assert (work / "pretraining/report.html").exists() and (work / "words_for_transformers/config.json").exists()


@pytest.mark.walkthrough
@pytest.mark.slow
@pytest.mark.parametrize("notebook", [notebook.stem for notebook in NOTEBOOKS if notebook.stem != FIRST])
def test_the_others_run_on_its_weights(notebook, work):
    run(notebook, work)
