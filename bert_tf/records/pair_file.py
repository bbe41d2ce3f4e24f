"""The pairs of a token file for one sequence length, or its single segments, stored beside it.

``<shard>.tokens.<length>.pairs``, or ``.segments`` for training without next sentence (with an empty second segment),
contains, little-endian: a header with the settings and the token file's checksum; the number of instances of each copy
(uint64); 12 bytes per instance, copy by copy; and a CRC32C of all that. Copy 0 of pairs has the instances of records
made with the same seed and a dupe_factor of 1, in the same order; the others are further passes over the text. Segments
are stored truncated, so that their sizes fit 16 bits.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Callable

import google_crc32c
import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file
from bert_tf.base.progress import Progress
from bert_tf.records.pairs import SUFFIXES, Draws, Pairs, PairSettings, shuffled_pairs, with_two_documents
from bert_tf.records.raw_file import CHECKSUM_BYTES, RawFile, checksum
from bert_tf.records.token_file import SPLITS, TokenFile

_NAME = re.compile(rf".+\.tokens\.(\d+)({'|'.join(map(re.escape, SUFFIXES))})")
_MAGICS = (b"BERTprs1", b"BERTsgm1")  # of pairs, of single segments
# Magic, max_seq_length, number of copies, random_seed, short_seq_prob, checksum of the token file.
_HEADER = struct.Struct("<8s2IQdI4x")
_COUNT_BYTES = 8
_ROW = np.dtype([("a_start", "<u4"), ("b_start_and_label", "<u4"), ("a_size", "<u2"), ("b_size", "<u2")])
_LABEL_BIT = np.uint32(1 << 31)


def pairs_path(tokens: Path, settings: PairSettings) -> Path:
    return tokens.with_name(tokens.name + settings.suffix)


def drawn_pair_settings(folder: Path) -> list[PairSettings]:
    """The usual settings of all pairs, then of all single segments, that the splits below `folder` have."""
    # Files with other names are someone's copies, which are never read.
    matches = filter(None, (_NAME.fullmatch(path.name) for path in folder.glob("*/*.tokens.*")))
    kinds = {PairSettings.for_length(int(match[1]), bool(SUFFIXES.index(match[2]))) for match in matches}
    return sorted(kinds, key=lambda kind: (kind.single_segments, kind.max_seq_length))


class PairFile:
    """The pairs beside a token file, read piece by piece.

    Attributes:
      settings: the settings that they were drawn with.
      num_instances: the number of instances of each copy.
      token_checksum: the checksum of the token file that they were made for.
      checksum: the checksum of the pair file itself.

    Raises: OSError if it cannot be opened; ValueError if it is no pair file, or incomplete.
    """

    def __init__(self, path: Path):
        self.path, self._file = path, RawFile(path)
        header = _HEADER.unpack(self._file.read(0, _HEADER.size))
        magic, length, num_copies, seed, short_seq_prob, self.token_checksum = header
        self.settings = PairSettings(length, num_copies, seed, short_seq_prob, bool(_MAGICS.index(magic)))
        counts = self._file.read(_HEADER.size, _COUNT_BYTES * num_copies)
        self.num_instances: list[int] = np.frombuffer(counts, "<u8").tolist()
        sizes = (_HEADER.size + len(counts), *(_ROW.itemsize * count for count in self.num_instances))
        *self._copies_at, self._body_bytes = itertools.accumulate(sizes)
        if self._file.size != self._body_bytes + CHECKSUM_BYTES:
            raise ValueError("not a complete pair file")
        self.checksum = int.from_bytes(self._file.read(self._body_bytes, CHECKSUM_BYTES), "little")

    def verify(self) -> None:
        """Raises: UserError if the content does not match its checksum."""
        if google_crc32c.value(self._file.read(0, self._body_bytes)) != self.checksum:
            raise UserError(f"{self.path} is damaged; delete it, and it is made again from its token file")

    def rows(self, copy: int, first: int, count: int) -> bytes:
        """The stored pairs [first, first + count) of a copy, for `decode_pairs`."""
        return self._file.read(self._copies_at[copy] + _ROW.itemsize * first, _ROW.itemsize * count)


def decode_pairs(rows: bytes) -> Pairs:
    """Decodes stored pairs into int64."""
    columns = np.frombuffer(rows, _ROW)
    a_start, a_size, b_size = (columns[name].astype(np.int64) for name in ("a_start", "a_size", "b_size"))
    b_start = (columns["b_start_and_label"] & ~_LABEL_BIT).astype(np.int64)
    is_random = (columns["b_start_and_label"] >= _LABEL_BIT).astype(np.int64)
    return Pairs(a_start, a_start + a_size, b_start, b_start + b_size, is_random)


def open_pairs(tokens: TokenFile, settings: PairSettings) -> PairFile | None:
    """The pairs beside a token file that have the length and kind of `settings`; their other settings may differ.

    None if there are none, or if they cannot be read, are incomplete, of another kind or for another token file.
    """
    with contextlib.suppress(OSError, ValueError):
        pairs = PairFile(pairs_path(tokens.path, settings))
        if pairs.token_checksum == tokens.checksum and pairs.settings.suffix == settings.suffix:
            return pairs
    return None


def encode_pairs(pairs: Pairs) -> np.ndarray:
    """Encodes truncated pairs as they are stored."""
    rows = np.empty(len(pairs.a_start), _ROW)
    rows["a_start"], rows["a_size"] = pairs.a_start, pairs.a_end - pairs.a_start
    rows["b_start_and_label"] = pairs.b_start | (pairs.is_random_next.astype(np.uint32) * _LABEL_BIT)
    rows["b_size"] = pairs.b_end - pairs.b_start
    return rows


def write_pairs(tokens: TokenFile, settings: PairSettings, copies: Sequence[np.ndarray]) -> None:
    """Writes the copies, from `encode_pairs`, beside their token file. Raises: OSError."""
    length, _, seed, short_seq_prob, single_segments = settings
    header = _HEADER.pack(_MAGICS[single_segments], length, len(copies), seed, short_seq_prob, tokens.checksum)
    counts = np.array(list(map(len, copies)), "<u8")
    content = b"".join([header, counts.tobytes(), *(rows.tobytes() for rows in copies)])
    with atomic_file(pairs_path(tokens.path, settings)) as file:
        file.write(content + checksum(content))


def make_pairs(path: Path, settings: PairSettings) -> dict[str, int]:
    """Draws and stores the pairs of a token file; returns the numbers of instances, random B and tokens.

    Raises: UserError if the token file is damaged or contains too little, or the folder cannot be written.
    """
    tokens = TokenFile(path)
    boundaries = tokens.boundaries()
    text = boundaries if settings.single_segments else with_two_documents(boundaries, tokens.path)
    copies, counts = [], Counter(num_instances=0)
    for copy in range(settings.dupe_factor):
        draws = Draws.from_seed((settings.random_seed, *tokens.shard, *([copy] if copy else [])))
        blocks = []
        for pairs in shuffled_pairs(text, settings._replace(dupe_factor=1), draws):
            blocks.append(encode_pairs(pairs))
            counts.update(
                num_instances=len(pairs.a_start),
                num_random_next=int(pairs.is_random_next.sum()),
                num_instance_tokens=int(pairs.lengths.sum()),
            )
        copies.append(np.concatenate(blocks))
    try:
        write_pairs(tokens, settings, copies)
    except OSError as error:
        dataset = path.absolute().parent.parent.name
        options = f"{settings.max_seq_length}{' --no_next_sentence' if settings.single_segments else ''}"
        raise UserError(
            f"the {settings.kind} cannot be written in {path.parent} ({error.strerror}); where it can be, python3 "
            f"data/bertPrep.py --action create_pairs --dataset {dataset} --max_seq_length {options} makes them"
        ) from error
    return dict(counts)


def _find_pair_settings(
    paths: Sequence[Path], default: PairSettings, is_exact: bool
) -> tuple[PairSettings, list[Path]]:
    """The settings of the pairs beside these token files (or else the `default`), and the files without pairs.

    Only pairs of the `default` length and kind count.

    Raises: UserError if pairs were drawn differently, or the files are of both splits.
    """
    splits, missing = set(), []
    drawn: dict[PairSettings, object] = {default: "this command"} if is_exact else {}
    for path in paths:
        tokens = TokenFile(path)
        splits.add(tokens.shard.split)
        if pairs := open_pairs(tokens, default):
            drawn.setdefault(pairs.settings, pairs.path)
        else:
            missing.append(path)
    if len(splits) > 1:
        raise UserError(f"{paths[0]} and {paths[-1]} are of two splits; name the token files of one split")
    if len(drawn) > 1:
        (first, source), (second, other_source) = list(drawn.items())[:2]
        raise UserError(
            f"{other_source} has {second}, but {source} has {first}; delete what is not wanted, or use the settings "
            "that the files have"
        )
    return next(iter(drawn), default), missing


def ensure_pairs(
    files: Sequence[Path],
    default: PairSettings,
    map_in_order: Callable[..., Iterable[Any]] = map,
    *,
    is_exact: bool = False,
) -> tuple[PairSettings, Counter[str]]:
    """Draws the missing pairs of token files of one split, with the settings of those that exist.

    It may run in several processes at once: they write the same bytes, and each file as a whole.

    Args:
      default: the length and kind, and the other settings if no file has pairs yet.
      map_in_order: like `map`, which draws in this process; another may use several processes.
      is_exact: whether existing pairs must have the `default` settings.
    Returns: the settings of all pairs, and the counts of those drawn by this call.
    Raises: UserError if a file contains too little, the folder cannot be written, or pairs differ.
    """
    default.check()
    if SPLITS[TokenFile(files[0]).shard.split] == "test":  # held-out text is passed over only once
        default = default._replace(dupe_factor=1)
    settings, missing = _find_pair_settings(files, default, is_exact)
    counts: Counter[str] = Counter()
    make = functools.partial(make_pairs, settings=settings)
    progress = Progress(missing, unit="shards", description=f"drawing {default.kind}", disable=not missing)
    for _, file_counts in zip(progress, map_in_order(make, missing)):
        counts.update(file_counts)
    return settings, counts
