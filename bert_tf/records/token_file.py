"""A shard of tokenised text, from which training makes instances of any length.

``<shard>.tokens`` contains, little-endian: a header; the ids of all tokens (uint16, or int32 for vocabularies over
65,536); the first token of each sentence, and the number of tokens (uint32); the first sentence of each document,
and the number of sentences (uint32); a CRC32C of every 64 KiB of all that; and a CRC32C of these checksums.

Shape letter: T tokens of the shard.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file, naming_unreadable
from bert_tf.records.raw_file import CHECKSUM_BYTES, RawFile, checksum, read_pieces

TOKENS_SUFFIX = ".tokens"
SPLITS = ("training", "test")
REMEDY = "find all such files with data/bertPrep.py --action verify, and make them again with --action verify --repair"
_MAGIC = b"BERTtok1"
# Magic, bytes per id, split, shard's number in the split, vocabulary size; numbers of tokens, sentences, documents.
_HEADER = struct.Struct("<8s4I3Q")
_BLOCK_BYTES = 1 << 16
_LARGEST_UINT16_VOCABULARY = 1 << 16


class TokenizedText(NamedTuple):
    """The tokens of documents and sentences in one flat array; no sentence and no document is empty."""

    token_ids: np.ndarray  # uint16 or int32 [T]
    sentence_starts: np.ndarray  # integers [sentences + 1]: first token of each, then T
    document_starts: np.ndarray  # integers [documents + 1]: first sentence of each, then the number of sentences

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_starts) - 1


class Shard(NamedTuple):
    """Which shard of a dataset a token file is: `number` of the split ``SPLITS[split]``."""

    split: int
    number: int


def choose_id_type(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= _LARGEST_UINT16_VOCABULARY else "<i4")


def write_tokens(path: Path, text: TokenizedText, shard: Shard, vocab_size: int) -> str:
    """Writes a token file and returns its sha256. Raises: OSError."""
    kind = choose_id_type(vocab_size)
    sizes = (len(text.token_ids), text.num_sentences, text.num_documents)
    digest = hashlib.sha256()
    with atomic_file(path) as file:
        file.write(_HEADER.pack(_MAGIC, kind.itemsize, *shard, vocab_size, *sizes))
        file.write(np.ascontiguousarray(text.token_ids, kind).data)
        file.write(np.ascontiguousarray(text.sentence_starts, "<u4").data)
        file.write(np.ascontiguousarray(text.document_starts, "<u4").data)
        file.seek(0)
        checksums = bytearray()
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            checksums += checksum(block)
        checksums += checksum(checksums)
        file.write(checksums)
        digest.update(checksums)
    return digest.hexdigest()


class TokenFile:
    """A token file open for reading.

    Attributes:
      path, shard, vocab_size, num_tokens, num_sentences, num_documents: as in the header.
      id_type: the type of the ids.
      raw_file: the file, for reading its bytes.
      checksum: the checksum of the whole content.

    Raises: UserError if it cannot be read or is incomplete.
    """

    def __init__(self, path: Path):
        self.path = path
        with naming_unreadable(f"token file {path}", REMEDY):
            self.raw_file = RawFile(self.path)
        header = _HEADER.unpack(self.raw_file.read(0, _HEADER.size))
        magic, id_bytes, split, number, self.vocab_size, *sizes = header
        self.shard = Shard(split, number)
        self.num_tokens, self.num_sentences, self.num_documents = sizes
        self.id_type = np.dtype("<u2" if id_bytes == 2 else "<i4")
        self._sentences_at = _HEADER.size + id_bytes * self.num_tokens
        self._documents_at = self._sentences_at + 4 * (self.num_sentences + 1)
        self._body_bytes = self._documents_at + 4 * (self.num_documents + 1)
        checksum_at = self._body_bytes + CHECKSUM_BYTES * -(-self._body_bytes // _BLOCK_BYTES)
        if magic != _MAGIC or split >= len(SPLITS) or self.raw_file.size != checksum_at + CHECKSUM_BYTES:
            raise UserError(f"{path} is no token file of data/bertPrep.py, or was cut short; {REMEDY}")
        self.checksum = int.from_bytes(self.raw_file.read(checksum_at, CHECKSUM_BYTES), "little")

    def verify(self) -> None:
        """Compares every block with its checksum. Raises: UserError, which names the first damaged block."""
        stored = self.raw_file.read(self._body_bytes, self.raw_file.size - self._body_bytes)
        checksums = bytearray()
        for first in range(0, self._body_bytes, _BLOCK_BYTES):
            checksums += checksum(self.raw_file.read(first, min(_BLOCK_BYTES, self._body_bytes - first)))
        checksums += checksum(checksums)
        differ = np.frombuffer(checksums, "<u4") != np.frombuffer(stored, "<u4")
        if differ.any():
            number = np.argmax(differ)
            raise UserError(f"token file {self.path}: block {number} of 64 KiB is damaged; {REMEDY}")

    def text(self) -> TokenizedText:
        """The whole text, verified."""
        content = self.raw_file.read(_HEADER.size, self._sentences_at - _HEADER.size)
        return self.boundaries()._replace(token_ids=np.frombuffer(content, self.id_type))

    def boundaries(self) -> TokenizedText:
        """Like `text`, but with an empty array for the ids, which drawing pairs does not need."""
        self.verify()
        content = self.raw_file.read(self._sentences_at, self._body_bytes - self._sentences_at)
        starts, documents = np.split(np.frombuffer(content, "<u4"), [self.num_sentences + 1])
        return TokenizedText(np.zeros(0, self.id_type), starts, documents)


def read_tokens(
    files: Sequence[TokenFile], file_numbers: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The ids of many ranges of tokens, concatenated and not verified.

    Range i is `counts[i]` tokens of ``files[file_numbers[i]]`` from `starts[i]` on.

    All files must have the same id type; the arrays are int64.
    """
    kind = files[0].id_type
    pieces = read_pieces(
        [file.raw_file for file in files], file_numbers, _HEADER.size + kind.itemsize * starts, kind.itemsize * counts
    )
    return pieces.view(kind)
