"""Reads sentences of tokens with labels: a token in each line, or Hugging Face's JSON lines.

A line has columns with tabs between them or, in a file whose first line has no tab, blanks: the first is the token,
the last its label, as in CoNLL-2003 and BioBERT's files; a file of one column has no labels. A blank line ends a
sentence, and so does ``-DOCSTART-``. A line that begins with # and has another number of columns than the others is a
comment. In JSON lines each object is a sentence: ``tokens``, and ``ner_tags`` or ``tags``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, decoded_lines
from bert_tf.tasks.entities.schemes import Scheme, fault_of, find_scheme
from bert_tf.tasks.records import JSON_SUFFIXES, json_objects, whole_characters

NAME_A_FILE = "name a file with a token and its label in each line, or JSON lines"
_DOCUMENT, _COMMENT = "-DOCSTART-", "#"
_TAGS = ("ner_tags", "tags")
_NUM_NAMED = 3  # a line names so many sentences that were left out
_NUM_LABELS = 20  # an error names so many labels


class _Token(NamedTuple):
    line: int
    text: str
    label: str | None
    fault: str = ""


class _Raw(NamedTuple):
    """A sentence as in the file, which may have faults."""

    line: int
    tokens: list[_Token]
    fault: str = ""


class Sentences(NamedTuple):
    """The content of a file, in its order."""

    path: Path
    tokens: list[list[str]]
    labels: list[list[str]] | None
    scheme: Scheme | None  # None: there are no labels
    notes: list[str]  # what was left out

    def describe(self) -> str:
        """What was left out, and a line with the numbers of sentences, tokens and entities, and the labels' scheme."""
        size = f"{self.path}: {len(self.tokens):,} sentences, {sum(map(len, self.tokens)):,} tokens"
        return "\n".join([*self.notes, size + (f", labels by {self.scheme}" if self.scheme else "")])


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
      UserError: the file is empty, not UTF-8, its labels follow no scheme, or more sentences have a fault.
    """
    check_file(path, NAME_A_FILE)
    is_json = path.suffix.lower() in JSON_SUFFIXES
    tokens: list[list[str]] = []
    labels: list[list[str]] = []
    first_lines: dict[str, int] = {}  # of each label
    bad: list[str] = []
    has_labels: bool | None = None
    for raw in _read_json(path, label_names) if is_json else _read_columns(path):
        sound = next((token for token in raw.tokens if not token.fault), None)
        if has_labels is None and sound:
            has_labels = sound.label is not None
        line, fault = raw.line, raw.fault
        for token in () if fault else raw.tokens:
            if token.label in first_lines and token.text:
                continue
            if found := token.fault or _fault_of(token, known, bool(has_labels)):
                line, fault = token.line, found
                break
            if token.label is not None:
                first_lines[token.label] = token.line
        if fault:
            bad.append(f"line {line}: {fault}")
            if len(bad) > max_bad_records:
                raise UserError(
                    f"{path}, {bad[-1]}; correct it, or leave up to N such sentences out with --max_bad_records=N"
                )
            continue
        tokens.append([token.text for token in raw.tokens])
        if has_labels:
            labels.append([str(token.label) for token in raw.tokens])
    if not tokens:
        raise UserError(f"{path} holds no sentence that can be used; {NAME_A_FILE}")
    if needs_labels and not has_labels:
        raise UserError(f"{path} has tokens without labels; training and --mode=eval need a label for each")
    scheme = find_scheme(labels) if has_labels else None
    if has_labels and not scheme:
        _refuse_mixture(path, first_lines)
    named = "; ".join(bad[:_NUM_NAMED]) + ("; ..." if len(bad) > _NUM_NAMED else "")
    notes = [f"{path}: {len(bad):,} sentence(s) left out: {named}"] if bad else []
    return Sentences(path, tokens, labels if has_labels else None, scheme, notes)


def _fault_of(token: _Token, known: Sequence[str] | None, has_labels: bool) -> str:
    if not token.text:
        return "the token is empty"
    if (token.label is not None) != has_labels:
        return "there is no label, unlike in the lines before" if has_labels else "there are labels only from here on"
    if token.label is None:
        return ""
    if fault := fault_of(token.label):
        return fault
    if known is None or token.label in known:
        return ""
    shown = ", ".join(known[:_NUM_LABELS]) + (", ..." if len(known) > _NUM_LABELS else "")
    return f"the label is {token.label!r:.80}, the model's are {shown}: training with --label_names may have more"


def _refuse_mixture(path: Path, first_lines: dict[str, int]) -> None:
    """Raises `UserError` for labels of two schemes."""
    examples = {}
    for name, letters in (("IOBES", "ES"), ("BILOU", "LU")):
        line, label = min((line, label) for label, line in first_lines.items() if label[0] in letters)
        examples[name] = f"{label!r} of {name} in line {line}"
    raise UserError(f"{path} mixes two schemes of labels, {' and '.join(examples.values())}; write all in one of them")


# --- Formats -------------------------------------------------------------------------------------


def _is_break(text: str) -> bool:
    return not text.strip(" \t") or text.startswith(_DOCUMENT)


def _read_columns(path: Path) -> Iterator[_Raw]:
    lines = [(number, line.rstrip("\r\n")) for number, line in decoded_lines(path)]
    split, num_columns, first = _layout(lines)
    tokens: list[_Token] = []
    for number, text in [*lines, (0, "")]:
        if _is_break(text):
            if tokens:
                yield _Raw(tokens[0].line, tokens)
            tokens = []
            continue
        columns = split(text)
        if len(columns) == num_columns:
            text = columns[0].strip(" ") or columns[0]
            tokens.append(_Token(number, text, columns[-1] if num_columns > 1 else None))
        elif not text.startswith(_COMMENT):
            fault = f"{len(columns)} column(s), unlike line {first} with {num_columns}"
            tokens.append(_Token(number, columns[0], None, fault))


def _layout(lines: Sequence[tuple[int, str]]) -> tuple[Callable[[str], list[str]], int, int]:
    """How lines are split, into how many columns, and the first line that shows it."""
    first = next((line for line in lines if not _is_break(line[1])), (0, ""))
    number, text = next((line for line in lines if not _is_break(line[1]) and not line[1].startswith(_COMMENT)), first)
    split = _at_tabs if "\t" in text else _at_blanks
    return split, len(split(text)), number


def _at_tabs(text: str) -> list[str]:
    return text.rstrip(" ").split("\t")


def _at_blanks(text: str) -> list[str]:
    return re.split("[ \t]+", text.strip(" \t"))  # Unicode has other spaces, which may be tokens


def _read_json(path: Path, label_names: Sequence[str]) -> Iterator[_Raw]:
    for line, content in json_objects(path):
        tokens = content.get("tokens")
        tags = next((content[field] for field in _TAGS if content.get(field) is not None), None)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            yield _Raw(line, [], "the field 'tokens' must be a list of texts")
        elif not tokens:
            yield _Raw(line, [], "the sentence has no token")
        elif tags is not None and (not isinstance(tags, list) or len(tags) != len(tokens)):
            size = f"{len(tags)} tags" if isinstance(tags, list) else "no list of tags"
            yield _Raw(line, [], f"{len(tokens)} tokens, but {size}")
        else:
            labels = [None if tags is None else _label_of(path, line, tag, label_names) for tag in tags or tokens]
            yield _Raw(line, [_Token(line, whole_characters(text), label) for text, label in zip(tokens, labels)])


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
