"""Runs a notebook's code cells, one after the other, from the notebook's folder; Jupyter is not needed.

    python tests/notebook_cells.py NOTEBOOK [NAME=VALUE ...]

After the cell tagged `parameters` the variables of the environment are set to the values given, as papermill does it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    notebook = Path(sys.argv[1]).resolve()
    parameters = dict(argument.split("=", 1) for argument in sys.argv[2:])
    os.chdir(notebook.parent)
    sys.path.insert(0, "")
    names = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            unknown = set(parameters) - set(os.environ)
            assert not unknown, f"{notebook.name} has no parameters {unknown}"
            os.environ.update(parameters)


if __name__ == "__main__":
    main()
