"""JSON objects, one a line: the "text" of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from bert_tf.base.errors import UserError


class _NoTextError(ValueError):
    pass


def _text_of_line(line: str) -> str:
    content = json.loads(line)
    text = content.get("text") if isinstance(content, dict) else None
    if not isinstance(text, str):
        raise _NoTextError
    return text


def documents(path: Path, lines: Iterator[str]) -> Iterator[str]:
    """The texts of the lines that are not blank.

    Raises:
      UserError: a line is not JSON, or no object with a text.
    """
    for number, line in enumerate(lines, 1):
        try:
            if line:
                yield _text_of_line(line)
        except _NoTextError:
            raise UserError(
                f'{path}, line {number}: no object with a "text" that is a string, like '
                '{"text": "..."}; other fields do not matter'
            ) from None
        except (ValueError, RecursionError) as error:
            raise UserError(
                f'{path}, line {number}: not JSON ({error}): each line has to be an object like {{"text": "..."}}'
            ) from None
