"""Trains a WordPiece or SentencePiece vocabulary on formatted text; the same text gives the same vocabulary.

WordPiece vocabularies are made by Hugging Face's trainer. It breaks ties between characters by the
order of hash maps, which changes from process to process; so the alphabet is chosen here, and the
trainer gets every single-character piece with a fixed id.

SentencePiece vocabularies (unigram) are made by the library sentencepiece, from sentences, with a fixed
number of threads, because its sums depend on that number.
"""

from __future__ import annotations

import hashlib
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file, write_text
from bert_tf.base.progress import print_beside_bars
from bert_tf.prepare.corpora.text_files import decoded, formatted_lines, total_size
from bert_tf.prepare.corpora.words import WORD_MARKS
from bert_tf.prepare.running.stage import StageResult
from bert_tf.prepare.sharding.sentences import PARAGRAPH_SEPARATOR, SENTENCE_END, split_by_rules
from bert_tf.records.manifest import FileEntry
from bert_tf.text.basic_tokenizer import Casing, is_ideograph
from bert_tf.text.hugging_face import TOKENIZER
from bert_tf.text.sentencepiece import import_sentencepiece, with_exact_sums
from bert_tf.text.tokenizer import is_pipeline, open_tokenizer
from bert_tf.text.vocabulary import (
    CONTINUATION,
    SENTENCEPIECE_MODEL,
    SETTINGS,
    SPECIAL_TOKENS,
    VOCABULARY,
    is_sentencepiece_model,
    vocabulary_text,
)

# English needs about a hundred characters; the others are rare, from names in other scripts.
MAX_ALPHABET = 1000
# For scripts with more characters: any that makes up more than this fraction of the text is in the alphabet, too.
RARE_SHARE = 1e-6
MIN_PIECE_COUNT = 2
# More text changes the vocabulary little, and the trainer holds every distinct word in memory.
MAX_TRAINING_BYTES = 1 << 30
# The trainer takes 1.1 kB for each distinct word.
MOST_WORDS = 400_000
# `_WORD` is a word of the trainer's. It excludes ideographs: each is a separate word, and there are few distinct ones.
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_WORD = re.compile(f"[^\\W{_IDEOGRAPHS}]+(?:[{WORD_MARKS}]+[^\\W{_IDEOGRAPHS}]*)*")
# Longer words are base64, DNA and the like, and the trainer's time grows with the square of a word's length.
LONGEST_WORD = 1000
_LONG_WORD = re.compile(f"[!-~]{{{LONGEST_WORD + 1},}}|[^\\W{_IDEOGRAPHS}]{{{LONGEST_WORD + 1},}}")
# Shares of letters above which stripping accents is warned of. Accents: few letters have them in French or Czech, a
# quarter in Vietnamese. Marks that are no accents: 6 % of the letters in Japanese, a fifth in Hindi and Thai, all in
# Korean.
_MANY_ACCENTS, _MANY_OTHER_MARKS = 0.15, 0.02
_WITH_ACCENTS = re.compile("(LATIN|GREEK|CYRILLIC) |COMBINING (?!KATAKANA)")  # Unicode names of characters
# SentencePiece takes some 15 bytes of memory per byte of text.
MAX_SENTENCEPIECE_BYTES = 1 << 25
SENTENCEPIECE_THREADS = 4


def _sampled_lines(paths: Sequence[Path], description: str, max_bytes: int) -> Iterator[str]:
    """The paragraphs of all documents, or of every k-th of each file if the text exceeds `max_bytes`; without words
    longer than `LONGEST_WORD`.

    Raises: UserError where a file is not UTF-8.
    """
    step = -(-total_size(paths) // max_bytes)
    number = 0
    for path, offset, line in formatted_lines(paths, description):
        number = number + 1 if offset else 0
        if number % step == 0:
            # The trainer buffers 256 texts, so they should be paragraphs, not large documents.
            text = decoded(line, path, offset).replace(SENTENCE_END, PARAGRAPH_SEPARATOR)
            if max(map(len, text.split()), default=0) > LONGEST_WORD:
                text = _LONG_WORD.sub(" ", text)
            yield from text.strip().split(PARAGRAPH_SEPARATOR)


def _announcing_training(texts: Iterable[str]) -> Iterator[str]:
    """The texts; when they are read, the libraries train, and say nothing about how far they are."""
    yield from texts
    print("training the vocabulary (seconds, or minutes for much text) ...", flush=True)


def _count_characters(paths: Sequence[Path], max_bytes: int, casing: Casing) -> Counter[str]:
    """Counts characters, of lower-cased lines if `casing` says so: only in a word does a sigma become a final one.

    Warns of lost marks.
    """
    counts: Counter[str] = Counter()
    for line in _sampled_lines(paths, "counting characters", max_bytes):
        counts.update(line.lower() if casing.lower_case else line)
    if casing.strip_accents:
        _warn_of_lost_marks(counts)
    return counts


def _warn_of_lost_marks(counts: Counter[str]) -> None:
    """Warns if stripping accents changes a large share of the text's letters, or marks that are no accents."""
    letters = {char: count for char, count in counts.items() if unicodedata.category(char)[0] in "LM"}
    changed = {char: count for char, count in letters.items() if Casing(False, True).apply(char) != char}
    others = {char: count for char, count in changed.items() if not _WITH_ACCENTS.match(unicodedata.name(char, ""))}
    share, other_share = (sum(subset.values()) / max(sum(letters.values()), 1) for subset in (changed, others))
    if share > _MANY_ACCENTS or other_share > _MANY_OTHER_MARKS:
        print_beside_bars(
            f"warning: strip_accents=1 changes {share:.0%} of the text's letters: it takes tones, vowel signs and the "
            "marks of kana away, and breaks Hangul up; --strip_accents 0 keeps them"
        )


def _normal_counts(counts: Counter[str], normalize) -> Counter[str]:
    """Counts of the characters after normalisation, without white space."""
    normal: Counter[str] = Counter()
    for character, count in counts.items():
        for part in normalize(character):
            if not part.isspace():
                normal[part] += count
    return normal


def _choose_alphabet(normal: Counter[str]) -> set[str]:
    """The frequent characters, from their counts after normalisation; ties are broken by code point."""
    ranked = sorted(normal, key=lambda character: (-normal[character], character))
    rare = RARE_SHARE * sum(normal.values())
    return {character for rank, character in enumerate(ranked) if rank < MAX_ALPHABET or normal[character] > rare}


def _replacements(counts: Counter[str], alphabet: set[str], normalize) -> dict[int, str]:
    """A table for `str.translate` that replaces characters outside the alphabet by spaces."""
    return {
        ord(character): " "
        for character in counts
        if any(part not in alphabet and not part.isspace() for part in normalize(character))
    }


def _frequent_words(lines: Iterable[str]) -> set[str] | None:
    """The `MOST_WORDS` most frequent words; None if there are no more words than that."""
    counts: Counter[str] = Counter()
    floor = 0
    for line in lines:
        counts.update(_WORD.findall(line))
        if len(counts) > 4 * MOST_WORDS:
            # Drops rare words to bound the memory; a frequent word that is dropped is soon counted again.
            while len(counts) > 2 * MOST_WORDS:
                floor += 1
                counts = Counter({word: count for word, count in counts.items() if count > floor})
    if not floor and len(counts) <= MOST_WORDS:
        return None
    return set(sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS])


def train_vocabulary(paths: Sequence[Path], vocab_size: int, casing: Casing) -> list[str]:
    """The pieces in the order of their ids: special tokens first, then characters, then merges.

    Fewer than `vocab_size` if fewer pieces occur twice in the text.

    Raises: UserError where `vocab_size` is too small for the special tokens and the text's characters.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=casing.lower_case, strip_accents=casing.strip_accents)
    counts = _count_characters(paths, MAX_TRAINING_BYTES, casing)
    alphabet = _choose_alphabet(_normal_counts(counts, normalizer.normalize_str))
    replacements = _replacements(counts, alphabet, normalizer.normalize_str)
    # An ideograph is a separate word, so it never continues a word.
    inside = (character for character in sorted(alphabet) if not is_ideograph(character))
    fixed = [*SPECIAL_TOKENS, *sorted(alphabet), *(CONTINUATION + character for character in inside)]
    if vocab_size <= len(fixed):
        raise UserError(
            f"vocab_size={vocab_size}: must be over {len(fixed)}, the special tokens and the text's characters"
        )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_PIECE_COUNT,
        special_tokens=fixed,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    frequent = _frequent_words(_sampled_lines(paths, "counting words", MAX_TRAINING_BYTES))
    lines: Iterable[str] = _sampled_lines(paths, "reading", MAX_TRAINING_BYTES)
    if frequent is not None:
        lines = (_WORD.sub(lambda word: word[0] if word[0] in frequent else " ", line) for line in lines)
    if casing.lower_case:
        lines = map(str.lower, lines)  # as the tokenizer does; the trainer makes no final sigma of a capital one
    lines = (line.translate(replacements) for line in lines)
    tokenizer.train_from_iterator(_announcing_training(lines), trainer)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def train_sentencepiece(paths: Sequence[Path], vocab_size: int, casing: Casing) -> bytes:
    """The contents of a model file: special tokens first, at most `vocab_size` pieces in all.

    Raises: UserError where `vocab_size` does not suit the text, or the library is missing.
    """
    sentencepiece = import_sentencepiece(SENTENCEPIECE_MODEL)
    normal = _normal_counts(_count_characters(paths, MAX_SENTENCEPIECE_BYTES, casing), casing.apply)
    coverage = sum(normal[character] for character in _choose_alphabet(normal)) / max(sum(normal.values()), 1)
    sentences = (
        unicodedata.normalize("NFC", casing.apply(sentence))  # as the tokenizer does
        for line in _sampled_lines(paths, "reading", MAX_SENTENCEPIECE_BYTES)
        for sentence in split_by_rules(line)
    )
    pad, unknown, *controls = SPECIAL_TOKENS
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_announcing_training(sentences),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="unigram",
            pad_id=0,
            pad_piece=pad,
            unk_id=1,
            unk_piece=unknown,
            bos_id=-1,
            eos_id=-1,
            control_symbols=controls,
            character_coverage=coverage,
            max_sentence_length=MAX_SENTENCEPIECE_BYTES,  # its default leaves out what is longer than 4,192 bytes
            hard_vocab_limit=False,
            num_threads=SENTENCEPIECE_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(f"vocab_size={vocab_size}: SentencePiece refuses it for this text ({error})") from error
    return with_exact_sums(model.getvalue())


def copy_name(vocab_file: Path) -> str:
    if is_pipeline(vocab_file):
        return TOKENIZER
    return SENTENCEPIECE_MODEL if is_sentencepiece_model(vocab_file) else VOCABULARY


def copy_vocab(vocab_file: Path, folder: Path) -> None:
    """Copies a vocabulary to the folder of a stage; of a vocab.model or tokenizer.json, also makes a vocab.txt.

    Removes a model or tokenizer.json of another kind that an earlier run copied: it would be taken for the original.
    """
    name = copy_name(vocab_file)
    with atomic_file(folder / name) as copy:
        copy.write(vocab_file.read_bytes())
    if name != VOCABULARY:
        write_text(folder / VOCABULARY, open_tokenizer(vocab_file).files()[VOCABULARY])
    for other in {SENTENCEPIECE_MODEL, TOKENIZER} - {name}:
        (folder / other).unlink(missing_ok=True)


def create_vocab(output: Path, paths: Sequence[Path], vocab_size: int, casing: Casing) -> StageResult:
    """Writes the vocabulary (SentencePiece if `output` ends in .model)."""
    if is_sentencepiece_model(output):
        content = train_sentencepiece(paths, vocab_size, casing)
    else:
        content = vocabulary_text(train_vocabulary(paths, vocab_size, casing)).encode()
    with atomic_file(output) as file:
        file.write(content)
    tokenizer = open_tokenizer(output, *casing)
    if output.name == VOCABULARY:
        write_text(output.with_name(SETTINGS), tokenizer.files()[SETTINGS])
    counts = {"num_pieces": tokenizer.vocab_size}
    entry = FileEntry(output.name, len(content), hashlib.sha256(content).hexdigest(), counts)
    if counts["num_pieces"] < vocab_size:
        print_beside_bars(
            f"warning: vocab_size={vocab_size}: the text is too small for it and gave only {counts['num_pieces']:,} "
            "pieces: add text, or use this vocabulary as it is"
        )
    return counts, {"vocabulary": [entry]}
