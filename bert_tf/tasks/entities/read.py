"""Reads sentences of tokens with labels: a token in each line, or Hugging Face's JSON lines.

A line has columns with tabs between them or, in a file whose first line has no tab, blanks: the first is the token,
the last its label, as in CoNLL-2003 and BioBERT's files; a file of one column has no labels. A blank line ends a
sentence, and so does ``-DOCSTART-``. A line that begins with # and has another number of columns than the others is a
comment. In JSON lines each object is a sentence: ``tokens``, and ``ner_tags`` or ``tags``.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    sentences: list[list[_Token]] = []
    first_lines: dict[str | None, int] = {}  # of each label that is none with a fault
    bad = BadRecords(max_bad_records, "sentence", str(path))
    is_json = path.suffix.lower() in JSON_SUFFIXES
    for tokens_of in _json_sentences(path, label_names) if is_json else _column_sentences(path):
        try:
            tokens = tokens_of()
            for token in tokens:
                if token.label not in first_lines or not token.text:
                    _check(token, known, first_lines)
                    first_lines[token.label] = token.line
        except ValueError as fault:
            bad.add(str(fault))
        else:
            sentences += [tokens] if tokens else []  # none in a block of comments
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
        iobes, bilou = (
            next(f"{label!r} in line {line}" for label, line in first_lines.items() if str(label)[0] in letters)
            for letters in ("ES", "LU")
        )
        raise UserError(f"{path} mixes IOBES ({iobes}) and BILOU ({bilou}); write all labels in one of these schemes")
    left_out = f"{path}: {bad.describe()}\n" if bad.num else ""
    return Sentences(path, [[token.text for token in tokens] for tokens in sentences], labels, scheme, left_out)


def _are_numbered(sentences: list[list[_Token]]) -> bool:
    """Whether the first column counts, as in CoNLL-U and GermEval's files, where the labels are not in the last one."""
    return any(len(tokens) > 1 for tokens in sentences) and all(
        token.text == str(number) for tokens in sentences for number, token in enumerate(tokens, 1)
    )


def _check(token: _Token, known: Sequence[str] | None, seen: Collection[str | None]) -> None:
    """Raises: ValueError if this token cannot be used, in a file of which these labels were `seen`."""
    line, text, label = token
    fault = "" if label is None else fault_of(label)
    if not text:
        fault = "the token is empty"
    elif seen and (label is None) != (None in seen):
        fault = "there is no label, unlike in lines before" if label is None else "only from here on are there labels"
    elif not fault and label is not None and known is not None and label not in known:
        shown = ", ".join(known[:_NUM_LABELS]) + (", ..." if len(known) > _NUM_LABELS else "")
        fault = f"the label is {label!r:.80}, the model's are {shown}: training with --label_names may have more"
    if fault:
        raise ValueError(f"line {line}: {fault}")


def _column_sentences(path: Path) -> Iterator[Callable[[], list[_Token]]]:
    """For each sentence what gives its tokens, or raises ValueError."""
    lines = [(number, line.rstrip("\r\n")) for number, line in decoded_lines(path)]
    content = [line for line in lines if not _is_break(line[1])]
    first, text = next((line for line in content if not line[1].startswith(_COMMENT)), (content or [(0, "")])[0])
    at_tabs = "\t" in text
    num_columns = len(_columns(text, at_tabs))

    def tokens_of(block: Sequence[tuple[int, str]]) -> list[_Token]:
        tokens = []
        for number, line in block:
            columns = _columns(line, at_tabs)
            if len(columns) == num_columns:
                label = columns[-1] if num_columns > 1 else None
                tokens.append(_Token(number, columns[0].strip(" ") or columns[0], label))
            elif not line.startswith(_COMMENT):
                raise ValueError(f"line {number}: {len(columns)} column(s), unlike line {first} with {num_columns}")
        return tokens

    for is_break, block in itertools.groupby(lines, lambda line: _is_break(line[1])):
        if not is_break:
            yield functools.partial(tokens_of, list(block))


def _is_break(text: str) -> bool:
    return not text.strip(" \t") or text.startswith(_DOCUMENT)


def _columns(text: str, at_tabs: bool) -> list[str]:
    # Not at Unicode's other spaces, which may be tokens.
    return text.rstrip(" ").split("\t") if at_tabs else re.split("[ \t]+", text.strip(" \t"))


def _json_sentences(path: Path, label_names: Sequence[str]) -> Iterator[Callable[[], list[_Token]]]:
    """As `_column_sentences`."""
    for line, content in json_objects(path):
        yield functools.partial(_tokens_of_json, line, content, label_names)


def _tokens_of_json(line: int, content: Mapping[str, Any], label_names: Sequence[str]) -> list[_Token]:
    tokens: Any = content.get("tokens")
    tags: Any = next((content[field] for field in _TAGS if content.get(field) is not None), None)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError(f"line {line}: the field 'tokens' must be a list of texts")
    if not tokens:
        raise ValueError(f"line {line}: the sentence has no token")
    if tags is not None and (not isinstance(tags, list) or len(tags) != len(tokens)):
        number = len(tags) if isinstance(tags, list) else "no list of"
        raise ValueError(f"line {line}: {len(tokens)} tokens, but {number} tags")
    labels = [None] * len(tokens) if tags is None else [_label_of(line, tag, label_names) for tag in tags]
    return [_Token(line, as_text(text, "a token"), label) for text, label in zip(tokens, labels)]


def _label_of(line: int, tag: Any, label_names: Sequence[str]) -> str:
    """The label that a tag is, or whose number it is; what is neither is no label, and refused as one."""
    if not isinstance(tag, int) or isinstance(tag, bool):
        return tag if isinstance(tag, str) else repr(tag)
    if not label_names:
        raise ValueError(
            f"line {line}: the tags are numbers; name the labels that they stand for with --label_names, from that of "
            "0 on, as O,B-PER,I-PER"
        )
    return label_names[tag] if 0 <= tag < len(label_names) else str(tag)
