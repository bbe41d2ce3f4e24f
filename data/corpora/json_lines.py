"""JSON objects, one a line: the "text" of each; a line of any length is read in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from bert_tf.base.errors import UserError
from data.corpora import formatting, text_files

# Characters and whole escapes; one of a pair of escapes waits for the other.
_CONTENT = re.compile(
    r'(?:[^"\\]+|\\[^u]|\\u(?![dD][89aAbB])[0-9a-fA-F]{4}'
    r"|\\u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4}|(?=[^\\])|(?=\\[^u])))*"
)
_LONGEST_ESCAPE = len(r"\ud83d\ude00")
# A string that may be a field's name, and what may stand beside a long text.
_LONGEST_NAME = 1_000
_MOST_BESIDE = text_files.LARGEST_DOCUMENT_CHARACTERS


class _LongLine:
    """One object in pieces: the text is passed on, what is left of the line is checked at its end."""

    def __init__(self) -> None:
        self._beside: list[str] = []
        self._num_beside = 0
        self._depth = 0
        self._since_string = ""
        self._string = ""
        self._is_inside = self._is_text = False

    def text_of(self, pieces: Iterable[str]) -> Iterator[str]:
        """The pieces of the text. Raises: ValueError where the line is no such object."""
        rest = ""
        for piece in pieces:
            rest += piece
            place = 0
            while place < len(rest):
                if not self._is_inside:
                    place = self._pass_structure(rest, place)
                    continue
                match = _CONTENT.match(rest, place)
                assert match
                content, place = json.loads(f'"{match[0]}"'), match.end()
                if self._is_text:
                    yield content
                elif len(self._string) <= _LONGEST_NAME:
                    self._string += content
                if rest[place : place + 1] == '"':
                    self._end_string()
                    place += 1
                elif len(rest) - place >= _LONGEST_ESCAPE:
                    raise ValueError(f"an escape that is none: {rest[place : place + _LONGEST_ESCAPE]}")
                else:
                    break
            rest = rest[place:]
        if self._is_inside:
            raise ValueError("a string without an end")
        self._require_text()

    def _pass_structure(self, text: str, place: int) -> int:
        end = text.find('"', place)
        between = text[place : end if end >= 0 else None]
        self._keep(between)
        self._since_string += between.strip()
        self._depth += sum(map(between.count, "{[")) - sum(map(between.count, "}]"))
        if end < 0:
            return len(text)
        self._is_inside = True
        self._is_text = self._depth == 1 and self._since_string == ":" and self._string == "text"
        self._string = self._since_string = ""
        return end + 1

    def _end_string(self) -> None:
        self._is_inside = False
        self._keep(json.dumps(self._string[:_LONGEST_NAME]))

    def _keep(self, text: str) -> None:
        self._num_beside += len(text)
        if self._num_beside > _MOST_BESIDE:
            raise ValueError(f"more than {_MOST_BESIDE:,} characters besides its text")
        self._beside.append(text)

    def _require_text(self) -> None:
        content = json.loads("".join(self._beside))
        if not isinstance(content, dict) or not isinstance(content.get("text"), str):
            raise _NoTextError


class _NoTextError(ValueError):
    pass


def _text_of_line(line: str) -> str:
    content = json.loads(line)
    text = content.get("text") if isinstance(content, dict) else None
    if not isinstance(text, str):
        raise _NoTextError
    return text


def documents(path: Path, lines: Iterator[str]) -> Iterator[formatting.Document]:
    """The texts of the lines, which come as `text_files.read_lines` gives them.

    Raises:
      UserError: a line is not JSON, or no object with a text.
    """
    for number, line in enumerate(text_files.whole_lines(lines), 1):
        try:
            if isinstance(line, str):
                if line:
                    yield _text_of_line(line)
            else:
                yield from formatting.in_parts(text_files.lines_of(_LongLine().text_of(line)))
        except _NoTextError:
            raise UserError(
                f'{path}, line {number}: no object with a "text" that is a string, like '
                '{"text": "..."}; other fields do not matter'
            ) from None
        except (ValueError, RecursionError) as error:
            raise UserError(
                f'{path}, line {number}: not JSON ({error}): each line has to be an object like {{"text": "..."}}'
            ) from None
