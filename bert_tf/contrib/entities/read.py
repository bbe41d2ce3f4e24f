"""Reads sentences of tokens with labels: a token in each line, or Hugging Face's JSON lines.

A line has columns with tabs between them or, in a file whose first line has no tab, blanks: the first is the token,
the last its label, as in CoNLL-2003 and BioBERT's files; a file of one column has no labels. A blank line ends a
sentence, and so does ``-DOCSTART-``. A line that begins with # is a comment if it has another number of columns than
the others, names a value (``# id = 1``, of CoNLL-U), or stands before a sentence and ends in no label (MultiCoNER). In
JSON lines each object is a sentence: ``tokens``, and ``ner_tags`` or ``tags``.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.fields import Fields, UnreadFields
from bert_tf.base.files import check_file, decoded_lines
from bert_tf.contrib.entities.labels import Scheme, fault_of, find_scheme
from bert_tf.tasks.records import JSON_SUFFIXES, as_text, json_objects

NAME_A_FILE = "name a file with a token and its label in each line, or JSON lines"
_DOCUMENT, _COMMENT = "-DOCSTART-", "#"
_NAMED_COMMENT = re.compile(r"#\s*\S+ = ")
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
    left_out: str  # lines about what was left out, or ""

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
    unread, comments = UnreadFields(), list[int]()
    for tokens_of in _json_sentences(path, label_names, unread) if is_json else _column_sentences(path, comments):
        try:
            tokens = tokens_of()
            for token in tokens:
                if token.label in first_lines and token.text:
                    continue
                if fault := _fault_of(token, known, first_lines):
                    raise ValueError(f"line {token.line}: {fault}")
                first_lines[token.label] = token.line
        except ValueError as error:
            bad.add(str(error))
        else:
            sentences += [tokens] if tokens else []  # none in a block of comments
    if not sentences:
        raise UserError(f"{path} holds no sentence that can be used; {NAME_A_FILE}")
    if _are_numbered(sentences):
        way_out = f"keep theirs and that of the labels, in GermEval's files: cut -f2,3 {shlex.quote(path.name)} > OUT"
        raise UserError(f"{path}: the first column numbers the tokens, and must hold them; {way_out}")
    has_labels = None not in first_lines
    if needs_labels and not has_labels:
        raise UserError(f"{path} has tokens without labels; training and --mode=eval need a label for each")
    labels = [[str(token.label) for token in tokens] for tokens in sentences] if has_labels else None
    scheme = None if labels is None else find_scheme(labels)
    if labels and not scheme:
        iobes, bilou = (
            next(f"{label!r} in line {line}" for label, line in first_lines.items() if str(label)[0] in letters)
            for letters in ("ESM", "LU")
        )
        raise UserError(f"{path} mixes IOBES ({iobes}) and BILOU ({bilou}); write all labels in one of these schemes")
    like_tokens = comments and f"{len(comments):,} line(s) that begin with # are comments, the first is {comments[0]}"
    notes = filter(None, [bad.describe(), unread.describe(), like_tokens])
    left_out = "".join(f"{path}: {note}\n" for note in notes)
    return Sentences(path, [[token.text for token in tokens] for tokens in sentences], labels, scheme, left_out)


def _are_numbered(sentences: list[list[_Token]]) -> bool:
    """Whether the first column counts, as in CoNLL-U and GermEval's files, where the labels are not in the last one."""
    return any(len(tokens) > 1 for tokens in sentences) and all(
        token.text == str(number) for tokens in sentences for number, token in enumerate(tokens, 1)
    )


def _fault_of(token: _Token, known: Sequence[str] | None, seen: Collection[str | None]) -> str:
    """Why this token cannot be used, in a file of which these labels were `seen`; "" if it can."""
    _, text, label = token
    if not text:
        return "the token is empty"
    if seen and (label is None) != (None in seen):
        return "there is no label, unlike in lines before" if label is None else "only from here on are there labels"
    fault = "" if label is None else fault_of(label)
    if fault or label is None or known is None or label in known:
        return fault
    shown = ", ".join(known[:_NUM_LABELS]) + (", ..." if len(known) > _NUM_LABELS else "")
    return f"the label is {label!r:.80}, the model's are {shown}: training with --label_names may have more"


def _column_sentences(path: Path, comments: list[int]) -> Iterator[Callable[[], list[_Token]]]:
    """For each sentence what gives its tokens, or raises ValueError; `comments` gets the lines of those like tokens."""
    lines = [(number, line.rstrip("\r\n")) for number, line in decoded_lines(path)]
    content = [line for line in lines if not _is_break(line[1])]
    first, text = next((line for line in content if not line[1].startswith(_COMMENT)), (content or [(0, "")])[0])
    at_tabs = "\t" in text
    num_columns = len(_columns(text, at_tabs))

    def tokens_of(block: Sequence[tuple[int, str]]) -> list[_Token]:
        tokens: list[_Token] = []
        for number, line in block:
            columns = _columns(line, at_tabs)
            is_before = not tokens and num_columns > 1 and bool(fault_of(columns[-1]))
            if line.startswith(_COMMENT) and (is_before or _NAMED_COMMENT.match(line)):
                comments.extend([number] if len(columns) == num_columns else [])
            elif len(columns) == num_columns:
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


def _json_sentences(
    path: Path, label_names: Sequence[str], unread: UnreadFields
) -> Iterator[Callable[[], list[_Token]]]:
    """As `_column_sentences`."""

    def tokens_of(line: int, fields: Fields) -> list[_Token]:
        try:
            found = _tokens_and_labels(fields, label_names)
        except ValueError as error:
            raise ValueError(f"line {line}: {error}") from None
        unread.add(fields, fields.read)
        return [_Token(line, text, label) for text, label in found]

    for line, content in json_objects(path):
        yield functools.partial(tokens_of, line, Fields(content))


def _tokens_and_labels(fields: Fields, label_names: Sequence[str]) -> list[tuple[str, str | None]]:
    """Raises ValueError if the fields are not those of a sentence."""
    tokens, tags = fields.one_of(["tokens"]), fields.one_of(_TAGS)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError("the field 'tokens' must be a list of texts")
    if not tokens:
        raise ValueError("the sentence has no token")
    if tags is not None and (not isinstance(tags, list) or len(tags) != len(tokens)):
        raise ValueError(f"{len(tokens)} tokens, but {len(tags) if isinstance(tags, list) else 'no list of'} tags")
    labels = [None] * len(tokens) if tags is None else [_label_of(tag, label_names) for tag in tags]
    return [(as_text(text, "a token"), label) for text, label in zip(tokens, labels)]


def _label_of(tag: Any, label_names: Sequence[str]) -> str:
    """The label that a tag is, or whose number it is; what is neither is no label, and refused as one."""
    if not isinstance(tag, int) or isinstance(tag, bool):
        return tag if isinstance(tag, str) else repr(tag)
    if not label_names:
        raise ValueError("the tags are numbers; name their labels with --label_names=O,B-PER,I-PER")
    if not 0 <= tag < len(label_names):
        raise ValueError(f"the tag is {tag}, but --label_names has only labels for 0 to {len(label_names) - 1}")
    return label_names[tag]
