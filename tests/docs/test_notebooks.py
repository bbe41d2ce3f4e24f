"""The notebooks in examples/: their outputs are in them, for readers, and their cells run, with small runs."""

import base64
import json
import re
import sys
from pathlib import Path

import pytest

from tests.processes import answer

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))
FIRST = "own_text"  # the others start from its weights
# In place of the values in the cell tagged `parameters`.
SMALL = {
    FIRST: {"UPDATES": "40", "WARMUP": "5", "EPOCHS": "1"},
    "answers": {"EPOCHS": "0.1"},
    "entities": {"EPOCHS": "0.1"},
    "report": {"UPDATES": "30", "SAVE_EVERY": "10"},
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
def test_a_reader_sees_what_each_cell_gave(notebook):
    code = code_cells(notebook)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run all cells, in order"
    for cell in code:
        assert all(output["output_type"] != "error" for output in cell["outputs"]), cell["source"]
        if re.search(r"^(print|sh)\(", cell["source"], re.MULTILINE):
            assert texts(cell).strip(), cell["source"]
        pictures = [output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {})]
        assert len(pictures) == cell["source"].count("plt.subplots("), cell["source"]
        for picture in pictures:
            assert 5_000 < len(base64.b64decode("".join(picture))) < 100_000
    assert notebook.stat().st_size < 300_000


@a_notebook
def test_no_output_names_a_folder_of_the_machine_it_was_made_on(notebook):
    for cell in code_cells(notebook):
        assert not re.search(r"(^|[\s'\"=(:,])/\w+/", texts(cell)), cell["source"]
        assert "absl::" not in texts(cell) and "tensorflow/" not in texts(cell), cell["source"]


def run(notebook: str, work: Path) -> None:
    parameters = [f"{name}={value}" for name, value in {"WORK": str(work), **SMALL[notebook]}.items()]
    command = (sys.executable, ROOT / "tests/notebook_cells.py", ROOT / f"examples/{notebook}.ipynb", *parameters)
    done = answer(*command, PYTHONPATH=str(ROOT), MPLBACKEND="agg", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, "\n".join([*done.stdout.splitlines()[-8:], *done.stderr.splitlines()[-8:]])


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The folder that the first notebook leaves behind."""
    folder = tmp_path_factory.mktemp("notebooks")
    run(FIRST, folder)
    return folder


@pytest.mark.slow
def test_own_text_goes_from_text_to_a_model_for_others(work):
    assert (work / "pretraining/report.html").exists() and (work / "words_for_transformers/config.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("notebook", [notebook.stem for notebook in NOTEBOOKS if notebook.stem != FIRST])
def test_the_others_run_on_its_weights(notebook, work):
    run(notebook, work)
