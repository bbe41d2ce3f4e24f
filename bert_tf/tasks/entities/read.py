"""Reads sentences of tokens with labels: a token in each line, or Hugging Face's JSON lines.

A line has columns with tabs between them or, in a file whose first line has no tab, blanks: the first is the token,
the last its label, as in CoNLL-2003 and BioBERT's files; a file of one column has no labels. A blank line ends a
sentence, and so does ``-DOCSTART-``. A line that begins with # and has another number of columns than the others is a
comment. In JSON lines each object is a sentence: ``tokens``, and ``ner_tags`` or ``tags``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.files import check_file, decoded_lines
from bert_tf.tasks.entities.labels import Scheme, fault_of, find_scheme
from bert_tf.tasks.records import JSON_SUFFIXES, as_text, json_objects

NAME_A_FILE = "name a file with a token and its label in each line, or JSON lines"
_DOCUMENT, _COMMENT = "-DOCSTART-", "#"
_TAGS = ("ner_tags", "tags")
_NUM_LABELS = 20  # an error names so many


class _Token(NamedTuple):
    line: int
    text: str
    label: str | None
    fault: str = ""  # of the line, or of the sentence


class Sentences(NamedTuple):
    """The content of a file, in its order."""

    path: Path
    tokens: list[list[str]]
    labels: list[list[str]] | None
    scheme: Scheme | None  # None: there are no labels
    left_out: str  # a line about what was left out, or ""

    def describe(self) -> str:
        """What was left out, and a line with the numbers of sentences, tokens and entities, and the labels' scheme."""
        size = f"{self.path}: {len(self.tokens):,} sentences, {sum(map(len, self.tokens)):,} tokens"
        return self.left_out + size + (f", labels by {self.scheme}" if self.scheme else "")


def read_sentences(
    path: Path,
    *,
    known: Sequence[str] | None,
    needs_labels: bool,
    label_names: Sequence[str] = (),
    max_bad_records: int = 0,
) -> Sentences:
    """All sentences of a file.

    Args:
      known: the labels that may occur; None: any.
      needs_labels: whether they must be there.
      label_names: what the numbers in JSON lines stand for.
      max_bad_records: how many sentences with a fault are left out.

    Raises:
      UserError: the file is empty, not UTF-8, its labels follow no scheme, its first column only numbers the tokens, or
        more sentences have a fault.
    """
    check_file(path, NAME_A_FILE)
    is_json = path.suffix.lower() in JSON_SUFFIXES
    sentences: list[list[_Token]] = []
    first_lines: dict[str | None, int] = {}  # of each label that is none with a fault
    bad = BadRecords(max_bad_records, "sentence", str(path))
    for tokens in _read_json(path, label_names) if is_json else _read_columns(path):
        for token in tokens:
            if token.label in first_lines and token.text and not token.fault:
                continue
            if fault := token.fault or _fault_of(token, known, first_lines):
                bad.add(f"line {token.line}: {fault}")
                break
            first_lines[token.label] = token.line
        else:
            sentences.append(tokens)
    if not sentences:
        raise UserError(f"{path} holds no sentence that can be used; {NAME_A_FILE}")
    if _are_numbered(sentences):
        raise UserError(
            f"{path}: the first column numbers the tokens of each sentence, and must hold them; keep theirs and that "
            f"of the labels, in GermEval's files: cut -f2,3 {shlex.quote(path.name)} > OUT"
        )
    has_labels = None not in first_lines
    if needs_labels and not has_labels:
        raise UserError(f"{path} has tokens without labels; training and --mode=eval need a label for each")
    labels = [[str(token.label) for token in tokens] for tokens in sentences] if has_labels else None
    scheme = None if labels is None else find_scheme(labels)
    if labels and not scheme:
        lines = {
            letter: f"{label!r} in line {line}" for label, line in first_lines.items() for letter in str(label)[:1]
        }
        iobes, bilou = (next(lines[letter] for letter in pair if letter in lines) for pair in ("ES", "LU"))
        raise UserError(f"{path} mixes IOBES ({iobes}) and BILOU ({bilou}); write all labels in one of these schemes")
    left_out = f"{path}: {bad.describe()}\n" if bad.num else ""
    return Sentences(path, [[token.text for token in tokens] for tokens in sentences], labels, scheme, left_out)


def _are_numbered(sentences: list[list[_Token]]) -> bool:
    """Whether the first column counts, as in CoNLL-U and GermEval's files, where the labels are not in the last one."""
    return any(len(tokens) > 1 for tokens in sentences) and all(
        token.text == str(number) for tokens in sentences for number, token in enumerate(tokens, 1)
    )


def _fault_of(token: _Token, known: Sequence[str] | None, seen: dict[str | None, int]) -> str:
    """Why this token cannot be used, in a file of which these labels were `seen`; "" if it can."""
    if not token.text:
        return "the token is empty"
    if seen and (token.label is None) != (None in seen):
        return (
            "there is no label, unlike in lines before" if token.label is None else "only from here on are there labels"
        )
    fault = fault_of(token.label) if token.label is not None else ""
    if fault or token.label is None or known is None or token.label in known:
        return fault
    shown = ", ".join(known[:_NUM_LABELS]) + (", ..." if len(known) > _NUM_LABELS else "")
    return f"the label is {token.label!r:.80}, the model's are {shown}: training with --label_names may have more"


def _read_columns(path: Path) -> Iterator[list[_Token]]:
    """The tokens of each sentence."""
    lines = [(number, line.rstrip("\r\n")) for number, line in decoded_lines(path)]
    any_first = next((line for line in lines if not _is_break(line[1])), (0, ""))
    content = (line for line in lines if not _is_break(line[1]))
    first, text = next((line for line in content if not line[1].startswith(_COMMENT)), any_first)
    at_tabs = "\t" in text
    num_columns = len(_columns(text, at_tabs))
    tokens: list[_Token] = []
    for number, text in [*lines, (0, "")]:
        if _is_break(text):
            if tokens:
                yield tokens
            tokens = []
            continue
        columns = _columns(text, at_tabs)
        if len(columns) == num_columns:
            label = columns[-1] if num_columns > 1 else None
            tokens.append(_Token(number, columns[0].strip(" ") or columns[0], label))
        elif not text.startswith(_COMMENT):
            fault = f"{len(columns)} column(s), unlike line {first} with {num_columns}"
            tokens.append(_Token(number, columns[0], None, fault))


def _is_break(text: str) -> bool:
    return not text.strip(" \t") or text.startswith(_DOCUMENT)


def _columns(text: str, at_tabs: bool) -> list[str]:
    # Not at Unicode's other spaces, which may be tokens.
    return text.rstrip(" ").split("\t") if at_tabs else re.split("[ \t]+", text.strip(" \t"))


def _read_json(path: Path, label_names: Sequence[str]) -> Iterator[list[_Token]]:
    """The tokens of each sentence; of one with a fault a single one that has it."""
    for line, content in json_objects(path):
        tokens: Any = content.get("tokens")
        tags: Any = next((content[field] for field in _TAGS if content.get(field) is not None), None)
        fault = ""
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            fault = "the field 'tokens' must be a list of texts"
        elif not tokens:
            fault = "the sentence has no token"
        elif tags is not None and (not isinstance(tags, list) or len(tags) != len(tokens)):
            fault = f"{len(tokens)} tokens, but {len(tags) if isinstance(tags, list) else 'no list of'} tags"
        if fault:
            yield [_Token(line, "", None, fault)]
            continue
        labels = [None if tags is None else _label_of(path, line, tag, label_names) for tag in tags or tokens]
        yield [_Token(line, as_text(text, "a token"), label) for text, label in zip(tokens, labels)]


def _label_of(path: Path, line: int, tag: Any, label_names: Sequence[str]) -> str:
    """The label that a tag is, or whose number it is; what is neither is no label, and refused as one."""
    if not isinstance(tag, int) or isinstance(tag, bool):
        return tag if isinstance(tag, str) else repr(tag)
    if not label_names:
        raise UserError(
            f"{path}, line {line}: the tags are numbers; name the labels that they stand for with --label_names, "
            "from that of 0 on, as O,B-PER,I-PER"
        )
    return label_names[tag] if 0 <= tag < len(label_names) else str(tag)
