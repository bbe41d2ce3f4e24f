"""Trains a WordPiece vocabulary on formatted text, the same from run to run.

Hugging Face's trainer does the work. It counts in hash maps whose order changes from process to
process, and where counts are equal the order decides; so the alphabet is chosen here, and the
trainer gets every piece of one character with its number fixed beforehand.
"""
from __future__ import annotations

import collections
import hashlib
from pathlib import Path
from typing import Counter, Dict, Iterator, List, Sequence, Set

from bert_tf.errors import UserError
from bert_tf.progress import progress
from data.manifest import Stage, atomic_file

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
DEFAULT_VOCAB_SIZE = 30522
PREFIX = "##"
# English needs some hundred characters; the rest are names in other scripts, [UNK] in the text.
MAX_ALPHABET = 1000
MIN_PIECE_COUNT = 2
# More text changes the vocabulary little, and the trainer holds every distinct word in memory.
MAX_TRAINING_BYTES = 1 << 30


def _sampled_lines(paths: Sequence[Path], description: str) -> Iterator[str]:
    """The documents, or every k-th where the text is larger than what is trained on."""
    total_bytes = sum(path.stat().st_size for path in paths)
    step = -(-total_bytes // MAX_TRAINING_BYTES)
    with progress(total=total_bytes, unit="B", description=description) as bar:
        for path in paths:
            with open(path, "rb") as file:
                for number, line in enumerate(file):
                    bar.update(len(line))
                    if number % step == 0:
                        yield line.decode("utf-8", "replace")


def _choose_alphabet(counts: Counter[str], normalize) -> Set[str]:
    """The most frequent characters after normalising, ties by code point."""
    normal: Counter[str] = collections.Counter()
    for character, count in counts.items():
        for part in normalize(character):
            if not part.isspace():
                normal[part] += count
    ranked = sorted(normal, key=lambda character: (-normal[character], character))
    return set(ranked[:MAX_ALPHABET])


def _replacements(counts: Counter[str], alphabet: Set[str], normalize) -> Dict[int, str]:
    """For `str.translate`: characters outside the alphabet become spaces."""
    return {
        ord(character): " " for character in counts
        if any(part not in alphabet and not part.isspace() for part in normalize(character))
    }


def train_vocabulary(paths: Sequence[Path], vocab_size: int, do_lower_case: bool) -> List[str]:
    """The pieces in the order of their ids: special tokens first, then characters, then merges.

    Fewer than `vocab_size` where the text has fewer pieces that occur twice.

    Raises:
      UserError: `vocab_size` is too small for the special tokens and the text's characters.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=do_lower_case)
    counts: Counter[str] = collections.Counter()
    for line in _sampled_lines(paths, "counting characters"):
        counts.update(line)
    alphabet = _choose_alphabet(counts, normalizer.normalize_str)
    replacements = _replacements(counts, alphabet, normalizer.normalize_str)
    fixed = [*SPECIAL_TOKENS, *sorted(alphabet), *(PREFIX + c for c in sorted(alphabet))]
    if vocab_size <= len(fixed):
        raise UserError(f"vocab_size={vocab_size}: must be over {len(fixed)}, the special tokens "
                        "and the text's characters")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=MIN_PIECE_COUNT, special_tokens=fixed,
        continuing_subword_prefix=PREFIX, show_progress=False,
    )
    lines = (line.translate(replacements) for line in _sampled_lines(paths, "training"))
    tokenizer.train_from_iterator(lines, trainer)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def create_vocab(
    stage: Stage, output: Path, paths: Sequence[Path], vocab_size: int, do_lower_case: bool
) -> Dict[str, int]:
    """Writes the vocabulary, a piece a line, and completes `stage`; returns the counts."""
    pieces = train_vocabulary(paths, vocab_size, do_lower_case)
    content = "".join(piece + "\n" for piece in pieces).encode()
    with atomic_file(output) as file:
        file.write(content)
    entry = {"file": output.name, "bytes": len(content),
             "sha256": hashlib.sha256(content).hexdigest(), "num_pieces": len(pieces)}
    counts = {"num_pieces": len(pieces)}
    stage.complete(counts, {"vocabulary": [entry]})
    return counts
