"""SentencePiece models, run by the library `tokenizers` like all of Hugging Face's tokenizers.

So a token's characters are known, the tokenizer can be stored as ``tokenizer.json``, and `transformers` gives the same
ids. They are those of the library sentencepiece, but for rare text: between two equally good ways to cut a word (runs
of dots), that library decides by rounding errors of its sums; and only here are several marks on a letter put into
Unicode's order. A special token's name in a text is treated as by all of Hugging Face's tokenizers (`hugging_face`).
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.hugging_face import HuggingFaceTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS, UNKNOWN_TOKEN, WORD_START, check_pieces, ids_by_piece

# The fields read from sentencepiece_model.proto. The library's module for it needs a newer protobuf than TensorFlow
# 2.15 has.
_FORMAT = """
name: "sentencepiece"
message_type { name: "Piece"
  field { number: 1 name: "piece" type: TYPE_STRING label: LABEL_OPTIONAL }
  field { number: 2 name: "score" type: TYPE_FLOAT label: LABEL_OPTIONAL }
  field { number: 3 name: "type" type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "1" } }
message_type { name: "Trainer"
  field { number: 3 name: "model_type" type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "1" }
  field { number: 35 name: "byte_fallback" type: TYPE_BOOL label: LABEL_OPTIONAL } }
message_type { name: "Normalizer"
  field { number: 1 name: "name" type: TYPE_STRING label: LABEL_OPTIONAL }
  field { number: 2 name: "precompiled_charsmap" type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { number: 3 name: "add_dummy_prefix" type: TYPE_BOOL label: LABEL_OPTIONAL default_value: "true" }
  field { number: 4 name: "remove_extra_whitespaces" type: TYPE_BOOL label: LABEL_OPTIONAL default_value: "true" } }
message_type { name: "Model"
  field { number: 1 name: "pieces" type: TYPE_MESSAGE type_name: ".Piece" label: LABEL_REPEATED }
  field { number: 2 name: "trainer" type: TYPE_MESSAGE type_name: ".Trainer" label: LABEL_OPTIONAL }
  field { number: 3 name: "normalizer" type: TYPE_MESSAGE type_name: ".Normalizer" label: LABEL_OPTIONAL } }
"""
# Types of models, and of pieces.
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
# Other names that models give to the special tokens.
_OTHER_NAMES = {"[PAD]": ("<pad>",), "[CLS]": ("<cls>", "<s>"), "[SEP]": ("<sep>", "</s>"), "[MASK]": ("<mask>",)}
# The score of a user-defined piece for each byte but its first; pieces of text have scores below 0. The library scores
# so from 0.2.2 on; before, longer pieces of text won against such a piece inside words.
_USER_DEFINED_SCORE = 0.1
# A sum of such scores up to 8,000 is exact in single precision, too.
_SCORES_PER_UNIT = 1 << 10


def open_model(model_file: str | Path, casing: Casing) -> HuggingFaceTokenizer:
    """The tokenizer of a SentencePiece model, unigram or BPE.

    The special tokens have BERT's names here, whatever the model calls them. Pieces that text never produces are called
    [unusedN].

    Raises: UserError if the library is missing, or if the model is damaged, lacks a special token, or treats text as no
      tokenizer of Hugging Face's can.
    """
    path = Path(model_file)
    library = import_sentencepiece(path).SentencePieceProcessor()
    check_file(path, "make one by bertPrep.py --action create_vocab --vocab_file <name>.model")
    try:
        library.LoadFromSerializedProto(path.read_bytes())  # the constructor treats an empty file as no file
        model = parse_model(path.read_bytes())
        pipeline = _pipeline(library, model, casing, f"SentencePiece model {path}")
    except UserError:
        raise
    except Exception as error:  # the libraries raise no narrower class
        remedy = "a WordPiece vocabulary is called .txt"
        raise UserError(f"{path} is no SentencePiece model ({error}); {remedy}") from None
    spaces = model.normalizer
    has_separate_words = spaces.add_dummy_prefix and spaces.remove_extra_whitespaces and pipeline.pre_tokenizer.split
    return HuggingFaceTokenizer(pipeline, str(path), has_separate_words)


def import_sentencepiece(path: str | Path) -> Any:
    """The library sentencepiece. Raises: UserError, naming the vocabulary `path` that needs it, if it is missing."""
    try:
        import sentencepiece
    except ImportError:
        raise UserError(
            f"vocabulary {path} needs the package sentencepiece: install it (pip install sentencepiece, or bash "
            "scripts/setup.sh), or name a .txt for WordPiece"
        ) from None
    return sentencepiece


def with_exact_sums(content: bytes) -> bytes:
    """A unigram model with its scores rounded, by 0.0005 at most, so that every library adds them up without an error
    and decides alike between equally good ways to cut a word."""
    model = parse_model(content)
    for piece in model.pieces:
        piece.score = round(piece.score * _SCORES_PER_UNIT) / _SCORES_PER_UNIT
    return model.SerializeToString()


def parse_model(content: bytes) -> Any:
    """A model file's message ``ModelProto``, of which `_FORMAT` names what is read here."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_FORMAT, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Model")).FromString(content)


def _pipeline(library: Any, model: Any, casing: Casing, source: str) -> tokenizers.Tokenizer:
    """A pipeline that does what the model does.

    Args:
      library: the model, opened by the library sentencepiece.

    Raises: UserError if no pipeline can do that, or the model is incomplete.
    """
    if not model.HasField("normalizer"):  # at the end of the file
        raise UserError(f"{source} is only the beginning of one; copy it again")
    names = _names(model)
    check_pieces(names, source)
    pipeline = tokenizers.Tokenizer(_cutting_step(model, names, source))
    is_within_words = not any(WORD_START in name[1:] for name in names)
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme="never", split=is_within_words)
    pipeline.decoder = decoders.Metaspace(WORD_START)
    steps = list(_character_steps(library, model.normalizer))
    pipeline.normalizer = normalizers.Sequence(steps)
    _check_steps(library, pipeline, (piece.piece for piece in model.pieces if piece.type == _USER_DEFINED), source)
    pipeline.normalizer = normalizers.Sequence([*_casing_steps(casing), *steps])
    pipeline.add_special_tokens(list(SPECIAL_TOKENS))
    return pipeline


def _names(model: Any) -> list[str]:
    """What the pieces are called here, by id."""
    symbols = {piece.piece: n for n, piece in enumerate(model.pieces) if piece.type in (_CONTROL, _USER_DEFINED)}
    special = {n: UNKNOWN_TOKEN for n, piece in enumerate(model.pieces) if piece.type == _UNKNOWN}
    for token, other_names in _OTHER_NAMES.items():
        if ids := [symbols[name] for name in (token, *other_names) if name in symbols]:
            special[ids[0]] = token
    names = []
    for number, piece in enumerate(model.pieces):
        is_text = piece.type in (_NORMAL, _USER_DEFINED, _BYTE) and piece.piece not in SPECIAL_TOKENS
        names.append(special.get(number, piece.piece if is_text else f"[unused{number}]"))
    return names


def _cutting_step(model: Any, names: Sequence[str], source: str) -> models.Model:
    """The step that cuts text into pieces as the model does, after `_character_steps`."""
    kind, byte_fallback = model.trainer.model_type, model.trainer.byte_fallback
    types = {name: piece.type for name, piece in zip(names, model.pieces)}
    normal = {name: piece.score for name, piece in zip(names, model.pieces) if piece.type == _NORMAL}
    if kind == _UNIGRAM:
        scores = {**dict.fromkeys(names, min(normal.values())), **normal}
        for name in names:
            if types[name] == _USER_DEFINED:
                scores[name] = _USER_DEFINED_SCORE * (len(name.encode()) - 1)
        return models.Unigram(list(scores.items()), names.index(UNKNOWN_TOKEN), byte_fallback)
    if kind != _BPE or any(types[name] in (_USER_DEFINED, _UNUSED) for name in set(names) - set(SPECIAL_TOKENS)):
        raise UserError(
            f"{source} is neither of unigrams nor of BPE without user-defined and unused pieces; train one of unigrams"
        )
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(normal, key=normal.__getitem__, reverse=True)
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    return models.BPE(ids_by_piece(names), merges, unk_token=UNKNOWN_TOKEN, fuse_unk=True, byte_fallback=byte_fallback)


def _casing_steps(casing: Casing) -> Iterator[normalizers.Normalizer]:
    if casing.lower_case:  # a sigma that ends a word has a form of its own, which `Lowercase` does not know
        final_sigma = normalizers.Replace(Regex(r"(?<=[\p{L}\p{M}])\u03a3(?!\p{L})"), "\u03c2")
        yield from (final_sigma, normalizers.Lowercase())
    if casing.strip_accents:  # the library's StripAccents removes category Mc, too, such as Hindi's vowel signs
        yield from (normalizers.NFD(), normalizers.Replace(Regex(r"\p{Mn}"), ""))


def _character_steps(library: Any, normalizer: Any) -> Iterator[normalizers.Normalizer]:
    """The steps that change characters as the message `normalizer` of the model says."""
    if normalizer.precompiled_charsmap:
        # `Precompiled` looks up only single characters in the table, sentencepiece also sequences that can be written
        # as one character: a letter with its accents, the parts of a syllable of Hangul.
        composes = library.normalize("e\u0301") == library.normalize("\u00e9")
        nfc = [normalizers.NFC()] if composes else []
        yield from (*nfc, normalizers.Precompiled(normalizer.precompiled_charsmap), *nfc)
    if normalizer.remove_extra_whitespaces:
        yield from (normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " "))
    if normalizer.add_dummy_prefix:  # not by `Metaspace`, which omits it where a text begins with a space
        yield normalizers.Prepend(WORD_START)


def _check_steps(library: Any, pipeline: tokenizers.Tokenizer, symbols: Iterable[str], source: str) -> None:
    """Raises: UserError if a pipeline changes characters otherwise than the library.

    Args:
      symbols: pieces that the library leaves as they are.
    """
    text = " ".join([_probe(), *symbols])
    parts = pipeline.pre_tokenizer.pre_tokenize_str(pipeline.normalizer.normalize_str(text))
    ours, theirs = ("".join(part for part, _ in parts), library.normalize(text))
    for our_word, their_word in itertools.zip_longest(*(words.split(WORD_START) for words in (ours, theirs))):
        if our_word != their_word:
            raise UserError(
                f"{source} changes characters as no tokenizer of Hugging Face's can (one makes {our_word!r:.40} where "
                f"it makes {their_word!r:.40}); train one with sentencepiece's own rule nmt_nfkc, and without "
                "user-defined symbols that this would change"
            )


@functools.lru_cache(1)
def _probe() -> str:
    """Each character up to U+FFFF that has a decomposition, composed and decomposed, and blanks in all positions."""
    chars = [char for char in map(chr, range(1 << 16)) if unicodedata.decomposition(char)]
    words = " ".join(char for char in chars if not unicodedata.combining(char))
    return f"  {words} {unicodedata.normalize('NFD', words)} \t a  "
