"""Rows of tasks: tokenises texts, makes the model's inputs, and caches rows in a file for the next start.

Sentences and pairs of sentences follow Google's run_classifier.py: ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``,
with segment 1 from b on; if a row is too long, tokens are removed at the end, in a pair from the longer sentence first.

Shapes: F rows or texts, S positions of the longest row, T tokens of all rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import sys
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Protocol, TypeVar

import numpy as np

from bert_tf.base.files import atomic_file, naming_unreadable, open_file
from bert_tf.base.progress import Progress
from bert_tf.text.vocabulary import Tokenizer

# The number of texts that are tokenised in one call; progress is shown after each call.
_BATCH = 10_000


class TaskRows(Protocol):
    """Rows for training or prediction, in memory. F rows, S positions of the longest."""

    @property
    def num_tokens(self) -> np.ndarray:
        """int [F]: the number of real tokens in each row; the rest is padding."""

    @property
    def tokens(self) -> np.ndarray:
        """The ids of all tokens, without padding."""

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs [..., S] and, where they are known, targets for the rows numbered `rows` [...].

        A row of N sequences, such as the choices for a question, has inputs [..., N, S]; its `num_tokens` is that of
        its longest sequence.
        """


@dataclasses.dataclass(frozen=True)
class ByToken:
    """An output of a model for each token of rows, concatenated row by row.

    Attributes:
      values: [T, ...].
      begins: int64 [F + 1], where each row's values begin, and T.
    """

    values: np.ndarray
    begins: np.ndarray

    def __getitem__(self, row: int) -> np.ndarray:
        """The values for the tokens of one row."""
        return self.values[self.begins[row] : self.begins[row + 1]]

    def at(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[N, ...]: the values at N `positions`, each in its own one of N `rows`."""
        return self.values[self.begins[rows] + positions]


Outputs = Sequence[Any]  # a model's outputs for rows, each an array [F, ...] or `ByToken`


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """int64: for each of the `starts` as many whole numbers from there on as its size says, one after the other."""
    return np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)


def tokenize_texts(texts: Sequence[str], tokenizer: Tokenizer, *, show_progress: bool) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all tokens, int32, and the number of tokens in each text, int64 [F]."""
    tokenized = []
    with Progress(total=len(texts), unit="texts", description="tokenising", disable=not show_progress) as progress:
        for start in range(0, len(texts), _BATCH):
            tokenized.append(tokenizer.encode_lines(texts[start : start + _BATCH]))
            progress.update(len(tokenized[-1].sizes))
    ids, sizes_F = map(np.concatenate, zip(*tokenized))
    return ids, sizes_F


def model_inputs(input_ids: np.ndarray, num_tokens: np.ndarray, num_first: np.ndarray) -> dict[str, np.ndarray]:
    """The model's inputs for rows of one text or two: int32 arrays input_ids, input_mask, segment_ids [..., S].

    Args:
      input_ids: [..., S]; ids beyond a row's number of tokens are ignored.
      num_tokens: [...], of each row.
      num_first: [...], how many of these are [CLS], the first text and its [SEP].
    """
    columns = np.arange(input_ids.shape[-1])
    is_token = columns < num_tokens[..., None]
    is_second = is_token & (columns >= num_first[..., None])
    return {
        "input_ids": np.where(is_token, input_ids, 0),
        "input_mask": is_token.astype(np.int32),
        "segment_ids": is_second.astype(np.int32),
    }


class TextRows(NamedTuple):
    """All rows of a file, in the file's order, without padding."""

    tokens: np.ndarray  # int32 [T], the ids of all rows, including [CLS] and [SEP]
    starts_F: np.ndarray  # int64, where each row begins
    num_tokens: np.ndarray  # int64, number of tokens in each row
    first_lengths_F: np.ndarray  # int64, how many of these are [CLS], the first sentence and its [SEP]
    labels_F: np.ndarray | None  # int32 classes or float32 numbers
    max_seq_length: int

    def token_indices(self, rows: np.ndarray) -> np.ndarray:
        """int64 [..., S]: indices in `tokens` for the rows numbered `rows`; beyond a row's end, those of other rows."""
        indices = self.starts_F[rows][..., None] + np.arange(self.max_seq_length)
        return np.minimum(indices, len(self.tokens) - 1)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs, and the targets if known, for the rows numbered `rows` (any shape [...]).

        Returns: int32 arrays input_ids, input_mask, segment_ids [..., S], and labels [...].
        """
        input_ids = self.tokens[self.token_indices(rows)]
        targets = {} if self.labels_F is None else {"labels": self.labels_F[rows]}
        return {**model_inputs(input_ids, self.num_tokens[rows], self.first_lengths_F[rows]), **targets}


def make_text_rows(
    texts: Sequence[Sequence[str]],
    labels_F: np.ndarray | None,
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    show_progress: bool = False,
) -> TextRows:
    """Rows of a list of sentences, or of pairs from two lists.

    If one list is N times shorter than the other, each of its sentences belongs to N consecutive rows.
    """
    num_rows = max(map(len, texts))
    tokenized = []  # for each list: the ids of its sentences, and for each row its sentence's start in these and length
    for sentences in texts:
        ids, sizes = tokenize_texts(sentences, tokenizer, show_progress=show_progress)
        num_copies = num_rows // len(sentences)
        tokenized.append((ids, np.repeat(np.cumsum(sizes) - sizes, num_copies), np.repeat(sizes, num_copies)))
    room = max_seq_length - 1 - len(texts)
    first, *second = (sizes_F for _, _, sizes_F in tokenized)
    truncated = truncated_pair(first, second[0], room) if second else (np.minimum(first, room),)
    parts = [(ids, sources_F, sizes_F) for (ids, sources_F, _), sizes_F in zip(tokenized, truncated)]
    return join_parts(parts, tokenizer, max_seq_length)._replace(labels_F=labels_F)


def join_parts(
    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], tokenizer: Tokenizer, max_seq_length: int
) -> TextRows:
    """Rows of [CLS] and, for each of `parts`, some of its tokens and [SEP]. A part is token ids and, for each row,
    where in these the row's tokens begin and how many there are, both int [F]."""
    lengths_F = np.sum([sizes_F for _, _, sizes_F in parts], axis=0) + 1 + len(parts)
    starts_F = np.cumsum(lengths_F) - lengths_F
    cls_id, sep_id = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    tokens = np.full(int(lengths_F.sum()), sep_id, np.int32)
    tokens[starts_F] = cls_id
    begins_F = starts_F + 1
    for ids, sources_F, sizes_F in parts:
        tokens[ranges(begins_F, sizes_F)] = ids[ranges(sources_F, sizes_F)]
        begins_F = begins_F + sizes_F + 1
    return TextRows(tokens, starts_F, lengths_F, parts[0][2] + 2, None, max_seq_length)


def truncated_pair(first_F: np.ndarray, second_F: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of each sentence are kept if the two together may have `room` tokens.

    The same as removing tokens one by one from the longer sentence, or from the second if they are equally long: a
    sentence that fits into its half is kept whole, and the other gets the remaining room.
    """
    half_second = room // 2
    half_first = room - half_second
    return (
        np.minimum(first_F, np.maximum(half_first, room - second_F)),
        np.minimum(second_F, np.maximum(half_second, room - first_F)),
    )


# Part of every cache's key: raise it whenever the same inputs would give other rows in any task.
CACHE_VERSION = 2
# Part of every hash. Never change it: a run resumes only if the hashes in its identity are the same.
_HASH_PREFIX = b"version 1"

Arrays = TypeVar("Arrays", bound=Any)  # a NamedTuple of NumPy arrays


def content_key(*parts: object) -> str:
    """A hash of `parts`: of bytes as they are, of each `Path` the file's bytes, of anything else its representation."""
    total = hashlib.sha256(_HASH_PREFIX)
    for part in parts:
        with naming_unreadable(str(part)):
            content = part.read_bytes() if isinstance(part, Path) else part
        if not isinstance(content, bytes):
            content = repr(content).encode("utf-8")
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()[:20]


def cached_arrays(path: Path, kind: type[Arrays], make: Callable[[], Arrays], *, write: bool) -> Arrays:
    """The arrays stored at `path` or, if they cannot be read, those that `make` returns, which are stored if `write`.

    If they cannot be stored, there is only a warning, as the cache merely saves time.

    Args:
      kind: the NamedTuple of the arrays, none of which holds objects.
    """
    try:
        with open_file(path) as stored, np.load(stored, allow_pickle=False) as arrays:
            return kind(**{name: arrays[name] for name in kind._fields})
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile):
        made = make()
    if write:
        # Packed in memory: if NumPy cannot write a file, its archive raises another error when it is deleted.
        packed = io.BytesIO()
        np.savez_compressed(packed, **made._asdict())
        try:
            with atomic_file(path) as file:
                file.write(packed.getbuffer())
        except OSError as error:
            print(
                f"warning: {path} cannot be written ({error.strerror}); the next start makes these rows again",
                file=sys.stderr,
                flush=True,
            )
    return made
