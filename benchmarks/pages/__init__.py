"""What is made from results: a page for each in benchmarks/results, and the tables in README.md and docs/.

`python -m benchmarks tables` writes all of them anew; the tests fail where one is not of today's results, memory plan
or planner. `python -m benchmarks pictures` draws the plots (`pictures`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from benchmarks import results
from benchmarks.pages import clusters, one_gpu, readme

ROOT = results.FOLDER.parents[1]
# The documents with tables, and what makes them.
TABLES: dict[str, Callable[[], str]] = {
    "README.md": readme.tables,
    "docs/clusters.md": clusters.tables,
    "docs/one_gpu.md": one_gpu.tables,
}


def result_pages(folder: Path = results.FOLDER) -> dict[str, str]:
    """The text of each page of results, by its benchmark's name."""
    return {name: results.page(name, runs) for name, runs in results.read_all(folder).items()}


def renewed(document: str) -> str:
    """The text of a document of `TABLES` with the tables of today."""
    return results.with_tables((ROOT / document).read_text(encoding="utf-8"), TABLES[document]())


def write() -> None:
    for name, text in result_pages().items():
        (results.FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
    for document in TABLES:
        (ROOT / document).write_text(renewed(document), encoding="utf-8")
