"""The plots of docs/RESULTS.md were drawn from the figures that are committed now."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.append(str(DOCS))
import results  # noqa: E402


def test_the_plots_are_of_todays_figures():
    for name, digest in results.sources().items():
        picture = (DOCS / "images" / f"{name}.svg").read_text()
        assert digest in picture, f"{name}.svg is of other figures; run: python docs/results.py"
        assert f"images/{name}.svg" in (DOCS / "RESULTS.md").read_text()
