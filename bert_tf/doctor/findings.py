"""What an examination yields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import MissingError, UserError

# States of a finding: a training works; it works, but not as well as it could; it does not work.
OK, WARNING, PROBLEM = "OK", "warning", "problem"


class Finding(NamedTuple):
    """What an examination has found."""

    state: str
    message: str  # if the state is not OK, also what to do


Findings = Iterator[Finding]


def judge(is_fine: bool, fine: str, fault: str, state: str = PROBLEM) -> Finding:
    """OK with one text, or `state` with the other, which ends with what to do."""
    return Finding(OK, fine) if is_fine else Finding(state, fault)


def problems(check: Callable[..., object], *arguments: Any, missing: str = PROBLEM) -> list[Finding]:
    """What a check of `launch.checks` refuses; `missing`: the state of what may be otherwise for the real run."""
    try:
        check(*arguments)
    except UserError as error:
        return [Finding(missing if isinstance(error, MissingError) else PROBLEM, str(error))]
    return []
