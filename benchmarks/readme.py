"""The table of README.md "Beside other tools", made from the results: ``python -m benchmarks tables``."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.results import FOLDER, ratios
from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object

PAGE = FOLDER.parents[1] / "README.md"
BEGIN, END = "<!-- from here on written by python -m benchmarks tables -->\n\n", "\n<!-- up to here -->\n"


class Claim(NamedTuple):
    """A line of the table: a variant's ratio in one or more parts, each FILE and the beginning of its title."""

    what: str
    beside: str
    variant: str
    parts: tuple[tuple[str, str], ...]
    first: str = ""  # beside this variant, where it is not the part's first one


CLAIMS: tuple[Claim, ...] = ()


def ratio(claim: Claim, place: tuple[str, str]) -> str:
    name, title = place
    file = FOLDER / f"{name}.json"
    for part in read_json_object(file, f"python -m benchmarks {name.partition('.')[0]}")["parts"]:
        if part["title"].startswith(title) and claim.variant in part.get("variants", ()):
            variants: dict[str, Any] = part["variants"]
            first = claim.first or next(iter(variants))
            return f"{ratios({**part, 'variants': {first: variants[first], **variants}}, claim.variant).median:.3g}"
    raise UserError(f"{file} has no {claim.variant!r} under {title!r}; mend benchmarks/readme.py")


def renewed(page: str) -> str:
    """The text of README.md with the table of today's results."""
    lines = ["| what | beside | times as fast |", "|---|---|---|"]
    for claim in CLAIMS:
        lines.append(f"| {claim.what} | {claim.beside} | {' / '.join(ratio(claim, place) for place in claim.parts)} |")
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


def write() -> None:
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
