"""Tokenizers of Hugging Face's: a folder's ``tokenizer.json``, or what `transformers` makes of its ``vocab.txt``.

They are run by the library `tokenizers`, so that a model gets the ids that it was trained with. Its rules for BERT
differ from Google's (`text.wordpiece`) in words over 100 characters, in characters for private use, in a capital
sigma at the end of a word, and in special tokens: one whose name stands in a text, such as [SEP] or a marker that was
added to the vocabulary, is that token. Only in text to pre-train on the names of BERT's five are text.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, read_json_object
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.vocabulary import (
    CONTINUATION,
    SETTINGS,
    SPECIAL_TOKENS,
    UNKNOWN_TOKEN,
    TokenizedLines,
    Tokenizer,
    TokenSpans,
    check_pieces,
    ids_of,
)

TOKENIZER = "tokenizer.json"
_ADDED_TOKENS, _MODEL_CONFIG = "added_tokens.json", "config.json"
_WAY_OUT = "fetch the model's tokenizer again"
# Longer words are unknown to Hugging Face's BERT.
_MAX_WORD_CHARS = 100
# BERT's own class, for which transformers takes the casing from tokenizer_config.json, and its names in other models.
_BERT_CLASSES = (
    None,
    *(
        f"{model}Tokenizer{fast}"
        for model in "Bert ConvBert DistilBert Electra LayoutLM Lxmert MobileBert SqueezeBert".split()
        for fast in ("", "Fast")
    ),
)
# Classes that stand for whatever tokenizer.json says.
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer")
_SPECIAL_NAME = re.compile(r"\[((?:PAD|UNK|CLS|SEP|MASK)\])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CASING_SETTINGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")


class FolderSettings(NamedTuple):
    """What ``tokenizer_config.json`` says; None: nothing."""

    tokenizer_class: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None

    @property
    def casing(self) -> Casing | None:
        return None if self.do_lower_case is None else Casing.of(self.do_lower_case, self.strip_accents)


def read_settings(folder: Path) -> FolderSettings:
    """The settings in a folder's ``tokenizer_config.json``, or none if there is no such file.

    Raises: UserError if it is damaged, or needs a tokenizer that is code of its own (MeCab, Jieba, custom code).
    """
    path = folder / SETTINGS
    content = read_json_object(path, _WAY_OUT) if path.is_file() else {}
    if "tokenizer_class" not in content and (folder / _MODEL_CONFIG).is_file():
        of_model = read_json_object(folder / _MODEL_CONFIG, _WAY_OUT).get("tokenizer_class")
        content = content if of_model is None else {**content, "tokenizer_class": of_model}
    name = content.get("tokenizer_class")
    splitter = content.get("word_tokenizer_type")
    has_library = (folder / TOKENIZER).is_file()
    is_known = name in (*_BERT_CLASSES, *_GENERIC_CLASSES) or (has_library and str(name).endswith("Fast"))
    own_code = content.get("auto_map")
    has_own_code = isinstance(own_code, dict) and "AutoTokenizer" in own_code
    if not is_known or splitter not in (None, "basic") or has_own_code:
        what = f"tokenizer_class {name!r:.60}" + (f" with word_tokenizer_type {splitter!r:.40}" if splitter else "")
        raise UserError(
            f"{path}: {what} finds words with code of its own, such as MeCab or Jieba, which is not supported here, "
            "and any other tokenizer would give the model other tokens; name a model whose tokenizer is in "
            f"{TOKENIZER}, or one with BertTokenizer"
        )
    if content.get("do_basic_tokenize", True) is not True or content.get("never_split"):
        raise UserError(
            f"{path}: do_basic_tokenize=false and never_split are not supported here; name a model whose tokenizer is "
            f"in {TOKENIZER}"
        )
    values = [content.get(setting) for setting in _CASING_SETTINGS]
    for setting, value in zip(_CASING_SETTINGS, values):
        if not isinstance(value, (bool, type(None))):
            raise UserError(f"{path}: {setting}={value!r:.40}: must be true or false; {_WAY_OUT}")
    return FolderSettings(name, *values)


class HuggingFaceTokenizer(Tokenizer):
    """A pipeline of the library `tokenizers`."""

    transformers_class = _GENERIC_CLASSES[0]

    def __init__(self, pipeline: tokenizers.Tokenizer, source: str):
        """Raises: UserError if a special token of BERT's is missing."""
        pipeline.no_truncation()
        pipeline.no_padding()
        self._pipeline = pipeline
        by_id = {token_id: token for token, token_id in pipeline.get_vocab().items()}
        self.inv_vocab = tuple(map(_as_line, (by_id.get(number, "") for number in range(max(by_id, default=-1) + 1))))
        self.vocab = ids_of(self.inv_vocab)
        check_pieces(self.inv_vocab, source)
        normalize = pipeline.normalizer.normalize_str if pipeline.normalizer else str
        self.casing = Casing(normalize("A") == "a", normalize("é") == "e")

    def files(self) -> dict[str, str]:
        return {**super().files(), TOKENIZER: self.pipeline_json()}

    def pipeline_json(self) -> str:
        """The content of ``tokenizer.json``."""
        return self._pipeline.to_str(pretty=True) + "\n"

    def is_google_wordpiece(self, casing: Casing) -> bool:
        """Whether it has BERT's own steps, so that `text.wordpiece` with this `casing` gives its ids for all but the
        rare text that the head of this module names."""
        content = json.loads(self.pipeline_json())
        normalizer, model = content["normalizer"] or {}, content["model"]
        lower_case, strip_accents = normalizer.get("lowercase"), normalizer.get("strip_accents")
        return (
            (normalizer.get("type"), normalizer.get("clean_text")) == ("BertNormalizer", True)
            and normalizer.get("handle_chinese_chars") is True
            and casing == (lower_case, lower_case if strip_accents is None else strip_accents)
            and (content["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
            and model["type"] == "WordPiece"
            and (model.get("continuing_subword_prefix"), model.get("unk_token")) == (CONTINUATION, UNKNOWN_TOKEN)
            and {token["content"] for token in content["added_tokens"]} <= set(SPECIAL_TOKENS)
        )

    def tokenize_to_ids(self, text: str) -> list[int]:
        return self._pipeline.encode(_without_surrogates(text), add_special_tokens=False).ids

    def tokenize_with_spans(self, text: str) -> TokenSpans:
        encoded = self._pipeline.encode(_without_surrogates(text), add_special_tokens=False)
        starts, ends = [], []
        for start, end in encoded.offsets:
            # Some pipelines count the space before a word as part of it.
            while start < end - 1 and text[start].isspace():
                start += 1
            # Accents and vowel signs that the pipeline takes away belong to the letter before them.
            while self.casing.strip_accents and end < len(text) and unicodedata.category(text[end]) == "Mn":
                end += 1
            starts.append(start)
            ends.append(end)
        return TokenSpans(encoded.ids, starts, ends)

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        """For text to pre-train on, where a literal [MASK] is no gap to fill, and a literal [SEP] ends no segment."""
        text = _SPECIAL_NAME.sub(r"[ \1", lines.decode("utf-8", "surrogatepass"))
        # No threads: preparation has processes.
        return _join([self.tokenize_to_ids(line) for line in text.split("\n")[:-1]])

    def encode_lines(self, lines: Sequence[str]) -> TokenizedLines:
        encoded = self._pipeline.encode_batch(list(map(_without_surrogates, lines)), add_special_tokens=False)
        return _join([of_line.ids for of_line in encoded])


def _join(ids_of_lines: Sequence[Sequence[int]]) -> TokenizedLines:
    sizes = np.fromiter(map(len, ids_of_lines), np.int64, len(ids_of_lines))
    return TokenizedLines(np.fromiter(itertools.chain.from_iterable(ids_of_lines), np.int32, sizes.sum()), sizes)


def _as_line(piece: str) -> str:
    """A piece as it may stand in a vocabulary file."""
    return "" if "\n" in piece or "\r" in piece else piece


def _without_surrogates(text: str) -> str:
    """JSON may contain a lone UTF-16 surrogate, which the library refuses; it becomes U+FFFD, which BERT drops."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def wordpiece_pipeline(
    vocab: Mapping[str, int], casing: Casing, max_word_chars: int = _MAX_WORD_CHARS, split_ideographs: bool = True
) -> tokenizers.Tokenizer:
    """BERT's pipeline for a vocabulary, which puts [CLS] and [SEP] around one or two texts."""
    cls, sep = SPECIAL_TOKENS[2:4]
    pipeline = tokenizers.Tokenizer(
        models.WordPiece(
            dict(vocab),
            unk_token=UNKNOWN_TOKEN,
            max_input_chars_per_word=max_word_chars,
            continuing_subword_prefix=CONTINUATION,
        )
    )
    pipeline.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_ideographs,
        strip_accents=casing.strip_accents,
        lowercase=casing.lower_case,
    )
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, vocab[token]) for token in (cls, sep)],
    )
    pipeline.decoder = decoders.WordPiece(prefix=CONTINUATION)
    pipeline.add_special_tokens(list(SPECIAL_TOKENS))
    return pipeline


def open_vocabulary(
    pieces: Sequence[str], casing: Casing, settings: FolderSettings, folder: Path | None
) -> HuggingFaceTokenizer:
    """What `transformers` makes of a vocab.txt, with the tokens of ``added_tokens.json`` in `folder`, if any.

    Raises: UserError if the added tokens do not follow the vocabulary.
    """
    split_ideographs = settings.tokenize_chinese_chars is not False
    pipeline = wordpiece_pipeline(ids_of(pieces), casing, split_ideographs=split_ideographs)
    path = folder / _ADDED_TOKENS if folder else None
    added: dict[str, Any] = read_json_object(path, _WAY_OUT) if path and path.is_file() else {}
    new = sorted((token for token in added if token not in pieces), key=lambda token: str(added[token]))
    new.sort(key=lambda token: added[token] if isinstance(added[token], int) else -1)
    pipeline.add_tokens(new)
    for token, token_id in added.items():
        if pipeline.token_to_id(token) != token_id:
            raise UserError(
                f"{path}: {token!r:.40} has id {token_id!r:.40}, but comes to {pipeline.token_to_id(token)} after the "
                f"{len(pieces):,} tokens of the vocabulary; {_WAY_OUT}"
            )
    return HuggingFaceTokenizer(pipeline, str(folder or "vocab.txt"))


def open_json(path: Path, settings: FolderSettings = FolderSettings()) -> HuggingFaceTokenizer:  # noqa: B008
    """The tokenizer in a ``tokenizer.json``.

    As in `transformers`, what ``tokenizer_config.json`` says of capitals and accents overrides BERT's normalizer where
    the folder's tokenizer is of BERT's own class.

    Raises: UserError if the file is damaged, or lacks a special token.
    """
    try:
        check_file(path, _WAY_OUT)
        pipeline = tokenizers.Tokenizer.from_file(str(path))
    except UserError:
        raise
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path} is no tokenizer of Hugging Face's ({error}); {_WAY_OUT}") from None
    normalizer = pipeline.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer) and settings.tokenizer_class in _BERT_CLASSES:
        said = dict(zip(("lowercase", "strip_accents", "handle_chinese_chars"), settings[1:]))
        for name, value in said.items():
            if value is not None:
                setattr(normalizer, name, value)
        pipeline.normalizer = normalizer
    return HuggingFaceTokenizer(pipeline, str(path))
