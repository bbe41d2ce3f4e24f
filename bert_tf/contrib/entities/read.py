"""Reads sentences of tokens with labels: a token in each line, or Hugging Face's JSON lines.

A line has columns with tabs between them or, in a file whose first line has no tab, blanks: the first is the token,
the last its label, as in CoNLL-2003 and BioBERT's files; a file of one column has no labels. In CoNLL-U, with ten
columns, the second is the token and the fourth its part of speech. A blank line ends a sentence, and so does
``-DOCSTART-``. A line that begins with # is a comment if it has another number of columns than other lines, names a
value (``# id = 1``, of CoNLL-U), or stands before a sentence and ends in no label (MultiCoNER). In JSON lines each
object is a sentence: ``tokens``, and the labels in the field ``tags`` or that of their kind (`LabelKind.fields`).
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import BadRecords, UserError, names_in_words
from bert_tf.base.fields import Fields, UnreadFields
from bert_tf.base.files import check_file, decoded_lines
from bert_tf.contrib.entities.labels import UNLABELLED, LabelKind, Scheme, find_scheme
from bert_tf.tasks.records import JSON_SUFFIXES, as_text, json_objects, notes_on_file

NAME_A_FILE = "name a file with a token and its label in each line, or JSON lines"
_DOCUMENT, _COMMENT = "-DOCSTART-", "#"
# The number of a token, in CoNLL-U also that of a contraction of several (3-4) or of an omitted one (3.1).
_NUMBER = re.compile(r"\d+([-.]\d+)?")
_NAMED_COMMENT = re.compile(r"#\s*\S+ = ")
_TREEBANK_COLUMNS = 10


class _Token(NamedTuple):
    line: int
    text: str
    label: str | None


class Sentences(NamedTuple):
    """The content of a file, in its order."""

    path: Path
    tokens: list[list[str]]
    labels: list[list[str]] | None
    scheme: Scheme | None  # None: there are no labels, or they mark no entities
    notes: str  # lines about what was left out, the numbers of sentences, tokens and entities, and the scheme


def read_sentences(
    path: Path,
    kind: LabelKind,
    *,
    allowed_labels: Sequence[str] | None,
    needs_labels: bool,
    label_names: Sequence[str] = (),
    max_bad_records: int = 0,
) -> Sentences:
    """All sentences of a file.

    Args:
      kind: what labels stand for.
      allowed_labels: the labels that may occur; None: any.
      needs_labels: whether each token must have one.
      label_names: the labels that numbers in JSON lines stand for, from 0.
      max_bad_records: how many faulty sentences may be left out.

    Raises:
      UserError: the file is empty, not UTF-8, its labels follow no scheme or may be in several columns, its first
        column holds no tokens, or more sentences are faulty.
    """
    check_file(path, NAME_A_FILE)
    bad, unread, comments = BadRecords(max_bad_records, "sentence", str(path)), UnreadFields(), list[int]()
    if path.suffix.lower() in JSON_SUFFIXES:
        records: Iterable[Any] = json_objects(path)
        parse = functools.partial(_parse_json, fields_of_tags=kind.fields, label_names=label_names, unread=unread)
    else:
        records = (list(block) for is_break, block in itertools.groupby(_lines(path), _is_break) if not is_break)
        form = _find_form(_lines(path))
        if form.num_columns > 2 and not (form.is_treebank or kind.has_scheme):
            raise UserError(
                f"{path}, line {form.line}: {form.num_columns} columns, of which each but the first may be the label: "
                f"keep two, such as by cut -f1,2 {shlex.quote(path.name)} > OUT, or write CoNLL-U"
            )
        parse = functools.partial(_parse_columns, form=form, kind=kind, comments=comments)
    texts, labels = list[list[str]](), list[list[str]]()
    first_lines: dict[str | None, int] = {}  # valid label -> the line where it first occurs
    for record in records:
        try:
            tokens = parse(record)
            for token in tokens:
                if token.label not in first_lines or not token.text:
                    _check_token(token, kind, allowed_labels, first_lines)
                    first_lines[token.label] = token.line
        except ValueError as error:
            bad.add(str(error))
        else:
            if tokens:  # a block of comments has none
                # Interned, since a text has far fewer distinct tokens than tokens.
                texts.append([sys.intern(token.text) for token in tokens])
                labels.append([sys.intern(str(token.label)) for token in tokens])
    if not texts:
        raise UserError(f"{path} holds no sentence that can be used; {NAME_A_FILE}")
    has_labels = None not in first_lines
    _check_columns(path, texts, has_labels)
    if needs_labels and not has_labels:
        raise UserError(f"{path} has tokens without labels; training and --mode=eval need a label for each")
    scheme = find_scheme(labels) if has_labels and kind.has_scheme else None
    if has_labels and kind.has_scheme and not scheme:
        mixed = ", ".join(
            f"{label!r} in line {line}" for label, line in first_lines.items() if str(label)[0] in "ESMLU"
        )
        raise UserError(f"{path} mixes IOBES and BILOU ({mixed:.300}); write all labels in one of these schemes")
    commented = comments and f"{len(comments):,} line(s) that begin with # are comments, the first is {comments[0]}"
    size = f"{len(texts):,} sentences, {sum(map(len, texts)):,} tokens" + (f", labels by {scheme}" if scheme else "")
    notes = notes_on_file(path, bad.describe(), unread.describe(), commented or "", size)
    return Sentences(path, texts, labels if has_labels else None, scheme, notes)


def _check_columns(path: Path, sentences: list[list[str]], has_labels: bool) -> None:
    """Raises `UserError` if what was read are no tokens: numbers, words left out, or the lines of another table.

    Numbers are the first column in GermEval's files, in columns cut from CoNLL-U (3-4: a range), and of pandas' index.
    """
    texts = [text for tokens in sentences for text in tokens]
    if len(texts) > len(sentences) and all(map(_NUMBER.fullmatch, texts)):
        raise UserError(
            f"{path}: the first column numbers the tokens, and must hold them; keep the columns of tokens and labels, "
            f"for GermEval's files: cut -f2,3 {shlex.quote(path.name)} > OUT"
        )
    if len(texts) > len(sentences) and set(texts) == {UNLABELLED}:
        raise UserError(f"{path}: each word is {UNLABELLED}: the treebank leaves its text out, and says how to add it")
    for mark in ",;":
        if not has_labels and len(texts) > 1 and all(mark in text for text in texts):
            raise UserError(
                f"{path}: each line has a {mark!r}, and no tab or blank, which separate columns; write it with tabs, "
                "without a header and quotation marks, and with a blank line after each sentence"
            )


def _check_token(
    token: _Token, kind: LabelKind, allowed_labels: Sequence[str] | None, seen: Collection[str | None]
) -> None:
    """Raises ValueError if the token cannot be used; `seen`: the labels before it in its file."""
    line, text, label = token
    fault = "" if label is None else kind.fault_of(label)
    if not text:
        fault = "the token is empty"
    elif seen and (label is None) != (None in seen):
        fault = f"the label is {label!r}: all tokens of a file must have one, or none"
    elif not fault and label and allowed_labels and label not in allowed_labels:
        known = names_in_words(allowed_labels)
        fault = f"the label is {label!r:.80}, the model's are {known}: for more, train with --label_names"
    if fault:
        raise ValueError(f"line {line}: {fault}")


class _Form(NamedTuple):
    """What a file's lines have in common: the form of the first one that is no comment."""

    line: int
    has_tabs: bool
    num_columns: int
    is_treebank: bool  # CoNLL-U


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return ((number, line.rstrip("\r\n")) for number, line in decoded_lines(path))


def _find_form(lines: Iterable[tuple[int, str]]) -> _Form:
    content = (line for line in lines if not _is_break(line))
    first = next(content, (0, ""))
    number, text = next((line for line in itertools.chain([first], content) if not line[1].startswith(_COMMENT)), first)
    columns = _columns(text, has_tabs := "\t" in text)
    is_treebank = has_tabs and len(columns) == _TREEBANK_COLUMNS and bool(_NUMBER.fullmatch(columns[0]))
    return _Form(number, has_tabs, len(columns), is_treebank)


def _is_break(line: tuple[int, str]) -> bool:
    return not line[1].strip(" \t") or line[1].startswith(_DOCUMENT)


def _columns(text: str, has_tabs: bool) -> list[str]:
    # Do not split at Unicode's other spaces: they may be tokens.
    return text.rstrip(" ").split("\t") if has_tabs else re.split("[ \t]+", text.strip(" \t"))


def _parse_columns(block: Sequence[tuple[int, str]], form: _Form, kind: LabelKind, comments: list[int]) -> list[_Token]:
    """The tokens of a sentence's lines; adds the numbers of comments that look like tokens to `comments`.

    Raises ValueError, which names the line, for one with another number of columns.
    """
    tokens: list[_Token] = []
    for number, text in block:
        columns = _columns(text, form.has_tabs)
        has_form, has_label = len(columns) == form.num_columns, form.num_columns > 1
        may_be_heading = not tokens and has_label and bool(kind.fault_of(columns[-1]))
        if text.startswith(_COMMENT) and (may_be_heading or not has_form or _NAMED_COMMENT.match(text)):
            comments += [number] if has_form else []
        elif has_form and form.is_treebank:
            if columns[0].isdigit():  # else a contraction, whose words follow, or an omitted word
                tokens.append(_Token(number, columns[1], None if columns[3] == UNLABELLED else columns[3]))
        elif has_form:
            tokens.append(_Token(number, columns[0].strip(" ") or columns[0], columns[-1] if has_label else None))
        else:
            raise ValueError(
                f"line {number}: {len(columns)} column(s), unlike line {form.line} with {form.num_columns}"
            )
    return tokens


def _parse_json(
    record: tuple[int, dict[str, Any]], fields_of_tags: Sequence[str], label_names: Sequence[str], unread: UnreadFields
) -> list[_Token]:
    """The tokens of an object. Raises ValueError, which names the line, if its fields are not those of a sentence."""
    line, fields = record[0], Fields(record[1])
    try:
        tokens, tags = fields.read_one_of(["tokens"]), fields.read_one_of(fields_of_tags)
        if not tokens or not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ValueError("the field 'tokens' must be a list of texts, at least one")
        if tags is not None and (not isinstance(tags, list) or len(tags) != len(tokens)):
            raise ValueError(f"the tags are {tags!r:.80}: must be a list of {len(tokens)}, one for each token")
        labels = [None] * len(tokens) if tags is None else [_label_of(tag, label_names) for tag in tags]
    except ValueError as error:
        raise ValueError(f"line {line}: {error}") from None
    unread.add(fields, fields.read_names)
    return [_Token(line, as_text(text, "a token"), label) for text, label in zip(tokens, labels)]


def _label_of(tag: Any, label_names: Sequence[str]) -> str:
    """The label that a tag is, or that has its number; anything else as text, which is then refused as no label."""
    if type(tag) is not int:
        return tag if isinstance(tag, str) else repr(tag)
    if not 0 <= tag < len(label_names):
        raise ValueError(
            f"the tag is {tag}, but --label_names has labels for {len(label_names)} numbers from 0; name the label of "
            "each, as in --label_names=O,B-PER,I-PER"
        )
    return label_names[tag]
