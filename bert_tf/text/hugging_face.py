"""Tokenizers of Hugging Face's: a folder's ``tokenizer.json``, or what `transformers` makes of its ``vocab.txt``.

They are run by the library `tokenizers`, so that a model gets the ids that it was trained with. Its rules for BERT
differ from Google's (`text.wordpiece`) in words over 100 characters, in characters for private use, in a capital
sigma at the end of a word, and in special tokens: one whose name stands in a text, such as [SEP] or a marker that was
added to the vocabulary, is that token. Only in text to pre-train on, the names of BERT's five are plain text.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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
    TOKENIZER,
    UNKNOWN_TOKEN,
    WORD_START,
    TokenizedLines,
    Tokenizer,
    TokenSpans,
    check_pieces,
    continues_word,
    ids_by_piece,
)
from bert_tf.text.wordpiece import WordCache

ADDED_TOKENS, _SPECIAL_NAMES, _MODEL_CONFIG = "added_tokens.json", "special_tokens_map.json", "config.json"
_REMEDY = "fetch the model's tokenizer again"
# A vocabulary may have as many ids without a piece as it has pieces, and this many more; beyond, it is damaged.
_FREE_IDS = 10_000
# The parts of a pipeline that decide how it cuts text, and their types in BERT's pipeline.
_STEPS, _BERT_STEPS = ("normalizer", "pre_tokenizer", "model"), ["BertNormalizer", "BertPreTokenizer", "WordPiece"]
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
# Classes for which transformers gives a model no token types, unless tokenizer_config.json names its inputs.
_WITHOUT_TYPES = ("TokenizersBackend", "DistilBertTokenizer", "DistilBertTokenizerFast")
_SPECIAL_NAME = re.compile(r"\[((?:PAD|UNK|CLS|SEP|MASK)\])")
_SURROGATE = re.compile("[\ud800-\udfff]")
SPECIAL_FIELDS = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS))
_CASING_SETTINGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
# Settings of BERT's tokenizer in Python, which transformers does not read beside a tokenizer.json.
_PYTHON_SETTINGS = ("do_basic_tokenize", "never_split")
# Settings that only transformers reads, so that exports keep them.
_TRANSFORMERS_SETTINGS = ("padding_side", "truncation_side", "clean_up_tokenization_spaces")
# Settings with the values that mean the same here as in transformers; None: not there.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "word_tokenizer_type": (None, "basic"),  # others are code such as MeCab or Jieba
    "do_basic_tokenize": (None, True),
    "never_split": (None, []),
    **dict.fromkeys(_CASING_SETTINGS, (None, True, False)),
    **{field: (None, token) for field, token in SPECIAL_FIELDS.items()},
}


class FolderSettings(NamedTuple):
    """What ``tokenizer_config.json``, and ``added_tokens.json``, say; None: nothing."""

    tokenizer_class: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    added_tokens: tuple[tuple[str, str], ...] = ()  # tokens that are no part of vocab.txt, and their ids
    # Markers besides BERT's; their ids are the vocabulary's, or new if it lacks them.
    special_tokens: tuple[str, ...] = ()
    kept: Mapping[str, Any] = MappingProxyType({})  # settings that exports keep, because transformers reads them

    @property
    def needs_library(self) -> bool:
        """Whether these settings need more than Google's rules can do."""
        tokens = {*dict(self.added_tokens), *self.special_tokens}
        return not (self.splits_ideographs and tokens.issubset(SPECIAL_TOKENS))

    @property
    def splits_ideographs(self) -> bool:
        return self.tokenize_chinese_chars is not False

    @property
    def casing(self) -> Casing | None:
        return None if self.do_lower_case is None else Casing.from_flags(self.do_lower_case, self.strip_accents)


def read_settings(folder: Path) -> FolderSettings:
    """The settings in a folder's ``tokenizer_config.json``, or none if there is no such file.

    Raises: UserError if it is damaged, needs a tokenizer that is code of its own (MeCab, Jieba, custom code), or gives
      the special tokens other names than BERT's.
    """
    settings, special_names, config = (_read(folder / name) for name in (SETTINGS, _SPECIAL_NAMES, _MODEL_CONFIG))
    name = settings.get("tokenizer_class", config.get("tokenizer_class"))
    has_library = (folder / TOKENIZER).is_file()
    is_known = name in (*_BERT_CLASSES, *_GENERIC_CLASSES) or (has_library and str(name).endswith("Fast"))
    if not is_known or "AutoTokenizer" in (settings.get("auto_map") or {}):
        raise _unsupported_tokenizer(
            f"{folder / SETTINGS}: tokenizer_class {name!r:.60} is code of its own, or not known here"
        )
    for file, content in ((SETTINGS, settings), (_SPECIAL_NAMES, special_names)):
        for setting, allowed in _ALLOWED.items():
            if has_library and setting in _PYTHON_SETTINGS:
                continue
            value = content.get(setting)
            if setting in SPECIAL_FIELDS:
                value = _name_of_token(value)
            _, *supported = possible = list(map(json.dumps, allowed))  # as texts, because 0 is not false
            if json.dumps(value) not in possible:
                rule = " or ".join(supported)
                raise _unsupported_tokenizer(f"{folder / file}: {setting}={value!r:.40}: only {rule} is supported")
    decoder, special = settings.get("added_tokens_decoder"), _read_special(folder / SETTINGS, settings)
    if not (special or decoder):  # as in transformers
        special = _read_special(folder / _SPECIAL_NAMES, special_names)
    casing = {setting: settings.get(setting) for setting in _CASING_SETTINGS}
    kept = {setting: settings[setting] for setting in _TRANSFORMERS_SETTINGS if setting in settings}
    kept.update({"additional_special_tokens": list(special)} if special else {})
    return FolderSettings(name, **casing, added_tokens=_read_added(folder, decoder), special_tokens=special, kept=kept)


def gives_token_types(folder: Path) -> bool:
    """Whether transformers gives the two texts of a pair different token types; else both are of the first type."""
    settings, config = (_read(folder / name) for name in (SETTINGS, _MODEL_CONFIG))
    names = settings.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return settings.get("tokenizer_class", config.get("tokenizer_class")) not in _WITHOUT_TYPES


def _read(path: Path) -> dict[str, Any]:
    """A file's object; {} if it is not there. Raises: UserError, also for a link to a file that is not there."""
    return read_json_object(path, _REMEDY) if os.path.lexists(path) else {}


def _unsupported_tokenizer(difference: str) -> UserError:
    return UserError(
        f"{difference}, and another tokenizer would give the model other tokens; name a model whose tokenizer is in "
        f"{TOKENIZER}, or one with BertTokenizer"
    )


def _read_added(folder: Path, decoder: Any) -> tuple[tuple[str, str], ...]:
    """The tokens of ``added_tokens.json``, and of ``added_tokens_decoder`` in the settings, with their ids."""
    try:
        decoder_ids = {token["content"]: number for number, token in (decoder or {}).items()}
    except (AttributeError, KeyError, TypeError):
        raise UserError(f"{folder / SETTINGS}: added_tokens_decoder names no content of a token; {_REMEDY}") from None
    added = (*_read(folder / ADDED_TOKENS).items(), *decoder_ids.items())
    return tuple((token, str(number)) for token, number in added)


def _read_special(file: Path, content: Mapping[str, Any]) -> tuple[str, ...]:
    """The markers that are listed beside BERT's own."""
    listed = content.get("additional_special_tokens") or content.get("extra_special_tokens") or []
    tokens = list(listed.values()) if isinstance(listed, dict) else listed
    names = tuple(map(_name_of_token, tokens)) if isinstance(tokens, list) else (None,)
    if not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{file}: a special token has no content; {_REMEDY}")
    return names


def _name_of_token(token: Any) -> Any:
    """A token in a settings file is its name, or an object that holds that."""
    return token.get("content") if isinstance(token, dict) else token


def _add_tokens(pipeline: tokenizers.Tokenizer, settings: FolderSettings, source: str) -> None:
    """Adds a folder's markers to its pipeline.

    Raises: UserError if the settings add another token, which the pipeline does not have as an added one with that id.
    """
    pipeline.add_special_tokens(list(settings.special_tokens))
    added = {token.content: str(number) for number, token in pipeline.get_added_tokens_decoder().items()}
    for token, number in settings.added_tokens:
        if added.get(token) != number:
            raise UserError(
                f"{source} has no added token {token!r:.40} with id {number:.40}, unlike {SETTINGS} or {ADDED_TOKENS} "
                f"beside it; make one {TOKENIZER} of them (transformers does: AutoTokenizer.from_pretrained(...)"
                ".save_pretrained(...))"
            )


class HuggingFaceTokenizer(Tokenizer):
    """A pipeline of the library `tokenizers`."""

    transformers_class = _GENERIC_CLASSES[0]

    def __init__(
        self,
        pipeline: tokenizers.Tokenizer,
        source: str,
        has_separate_words: bool | None = None,
        settings: FolderSettings = FolderSettings(),  # noqa: B008
    ):
        """
        Args:
          settings: those of the folder.
          has_separate_words: whether the ids of what stands between two spaces do not depend on the rest of the text;
            None: they do not if the steps are BERT's own, and no marker contains a space.

        Raises: UserError if a special token of BERT's is missing or has another meaning, if the pipeline puts other
          tokens around texts, or if two pieces have one id.
        """
        pipeline.no_truncation()
        pipeline.no_padding()
        self._pipeline = pipeline
        self.other_settings = settings.kept
        self.inv_vocab = _pieces_by_id(pipeline.get_vocab(), source)
        self.vocab = ids_by_piece(self.inv_vocab)
        check_pieces(self.inv_vocab, source)
        if pipeline.post_processor is None:
            pipeline.post_processor = _bert_markers(self.vocab)
        _check_markers(pipeline, source)
        content = json.loads(self.pipeline_json())
        _check_unknown(content["model"], source)
        normalize = pipeline.normalizer.normalize_str if pipeline.normalizer else str
        self.casing = Casing(normalize("A").endswith("a"), normalize("é").endswith("e"))
        if has_separate_words is None:
            has_space = any(" " in marker for marker in self.markers)
            has_separate_words = not has_space and [(content[name] or {}).get("type") for name in _STEPS] == _BERT_STEPS
        self._has_separate_words = has_separate_words
        self._word_ids = WordCache(self.tokenize_to_ids)

    @property
    def markers(self) -> Collection[str]:
        return {token.content for token in self._pipeline.get_added_tokens_decoder().values()} | set(SPECIAL_TOKENS)

    def continues_word(self) -> np.ndarray | None:
        content = json.loads(self.pipeline_json())
        if prefix := content["model"].get("continuing_subword_prefix"):
            return continues_word(self.vocab, prefix)
        pre_tokenizer = content["pre_tokenizer"] or {}
        splitters = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
        marks_words = any(splitter.get("replacement") == WORD_START for splitter in splitters)
        return continues_word(self.vocab, "") if marks_words else None

    def files(self) -> dict[str, str]:
        return {**super().files(), TOKENIZER: self.pipeline_json()}

    def pipeline_json(self) -> str:
        """The content of ``tokenizer.json``."""
        return self._pipeline.to_str(pretty=True) + "\n"

    def is_google_wordpiece(self, casing: Casing) -> bool:
        """Whether `text.wordpiece` with this `casing` gives the same ids, but for the rare text that this module's
        docstring names."""
        bert = wordpiece_pipeline(ids_by_piece(SPECIAL_TOKENS), casing)
        has_bert_steps = self.casing == casing and _steps(self.pipeline_json()) == _steps(bert.to_str())
        return has_bert_steps and set(self.markers) == set(SPECIAL_TOKENS)

    def tokenize_to_ids(self, text: str) -> list[int]:
        return self._pipeline.encode(_without_surrogates(text), add_special_tokens=False).ids

    def tokenize_with_spans(self, text: str) -> TokenSpans:
        encoded = self._pipeline.encode(_without_surrogates(text), add_special_tokens=False)
        starts, ends = [], []
        following = [start for start, _ in encoded.offsets[1:]]
        for (start, end), limit in zip(encoded.offsets, (*following, len(text))):
            # Accents, vowel signs and letters of Hangul that were removed, or joined to the letter before them.
            while end < limit and unicodedata.category(text[end])[0] in "LM":
                end += 1
            # The space before a word is not part of it; a token for the space alone gets the character after it.
            start = next((position for position in range(start, len(text)) if not _is_blank(text[position])), start)
            starts.append(start)
            ends.append(max(end, start + 1))
        return TokenSpans(encoded.ids, starts, ends)

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        """For text to pre-train on, where a literal [MASK] is no gap to fill, and a literal [SEP] ends no segment."""
        text = _SPECIAL_NAME.sub(r"[ \1", lines.decode("utf-8", "surrogatepass"))
        # Without `encode_batch`, which starts threads: preparation uses a process for each core.
        return TokenizedLines.from_ids(list(map(self._line_to_ids, text.split("\n")[:-1])))

    def encode_lines(self, lines: Sequence[str]) -> TokenizedLines:
        if self._has_separate_words:
            return TokenizedLines.from_ids(list(map(self._line_to_ids, lines)))
        encoded = self._pipeline.encode_batch(list(map(_without_surrogates, lines)), add_special_tokens=False)
        return TokenizedLines.from_ids([encoding.ids for encoding in encoded])

    def _line_to_ids(self, line: str) -> list[int]:
        if not self._has_separate_words:
            return self.tokenize_to_ids(line)
        return list(itertools.chain.from_iterable(map(self._word_ids.__getitem__, line.split(" "))))


def _steps(pipeline_json: str) -> list[dict[str, Any]]:
    """The steps of a pipeline, apart from its casing, its vocabulary, and the length of the longest word."""
    content = json.loads(pipeline_json)
    ignored = {"lowercase", "strip_accents", "vocab", "max_input_chars_per_word"}
    steps = (content[name] or {} for name in _STEPS)
    return [{name: value for name, value in step.items() if name not in ignored} for step in steps]


def tokenize_alike(pipeline_json: str | None, other: str | None) -> bool:
    """Whether two ``tokenizer.json`` give the same tokens, however they are written; None: BERT's own rules."""
    if pipeline_json is None or other is None:
        return pipeline_json is other
    return _rules(pipeline_json) == _rules(other)


def _rules(pipeline_json: str) -> dict[str, Any]:
    """The parts of a pipeline that decide the tokens; a `strip_accents` of null becomes `lowercase`, which it means."""
    content = json.loads(pipeline_json)
    normalizer = content["normalizer"] or {}
    if normalizer.get("strip_accents", "") is None:
        normalizer["strip_accents"] = normalizer["lowercase"]
    return {name: content[name] for name in (*_STEPS, "added_tokens")}


def _is_blank(char: str) -> bool:
    """Whether a character is white space, or a control character, which BERT's tokenizers leave out."""
    return char.isspace() or unicodedata.category(char).startswith("C")


def _without_surrogates(text: str) -> str:
    """JSON may contain a lone UTF-16 surrogate, which the library refuses; it becomes U+FFFD, which BERT drops."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _bert_markers(vocab: Mapping[str, int]) -> processors.TemplateProcessing:
    """The step that puts [CLS] and [SEP] around one or two texts."""
    cls, sep = SPECIAL_TOKENS[2:4]
    return processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, vocab[token]) for token in (cls, sep)],
    )


def _pieces_by_id(ids: Mapping[str, int], source: str) -> tuple[str, ...]:
    """The pieces by id; "" for an id without one, or whose piece has a line break, which a vocabulary file cannot hold.

    Raises: UserError if two pieces have the same id, or if one lies far beyond the number of pieces.
    """
    by_id = {token_id: piece for piece, token_id in ids.items()}
    largest = max(by_id, default=-1)
    if len(by_id) < len(ids) or largest > 2 * len(ids) + _FREE_IDS:
        raise UserError(
            f"{source}: its {len(ids)} pieces have {len(by_id)} different ids up to {largest}; each needs its own, and "
            f"hardly more can be free; {_REMEDY}"
        )
    pieces = (by_id.get(number, "") for number in range(largest + 1))
    return tuple("" if set("\n\r").intersection(piece) else piece for piece in pieces)


def _check_unknown(model: Mapping[str, Any], source: str) -> None:
    """Raises: UserError if the token for letters outside the vocabulary is not [UNK]."""
    number = model.get("unk_id")
    unknown = model.get("unk_token") if number is None else model["vocab"][number][0]
    # A BPE that has a piece for every byte needs no unknown token.
    if unknown != UNKNOWN_TOKEN and (unknown, model["type"]) != (None, "BPE"):
        fault = f"its token for unknown words is {unknown!r:.40}, BERT's is {UNKNOWN_TOKEN!r}"
        raise UserError(f"{source}: {fault}; name a model with that")


def _check_markers(pipeline: tokenizers.Tokenizer, source: str) -> None:
    """Raises: UserError if it does not put BERT's [CLS] and [SEP] around one or two texts."""
    inside = pipeline.encode("a", add_special_tokens=False).ids
    cls, sep = map(pipeline.token_to_id, SPECIAL_TOKENS[2:4])
    one, two = pipeline.encode("a"), pipeline.encode("a", "a")
    first, second = [cls, *inside, sep], [*inside, sep]
    segments = [0] * len(first) + [1] * len(second)
    if (one.ids, two.ids, two.type_ids) != (first, first + second, segments):
        raise UserError(
            f"{source}: its post_processor makes {' '.join(two.tokens)} with ids {two.ids} and segments {two.type_ids} "
            f"of two texts 'a', BERT's is [CLS] a [SEP] a [SEP] with ids {first + second} and segments {segments}; "
            "name a model with that"
        )


def wordpiece_pipeline(
    vocab: Mapping[str, int], casing: Casing, max_word_chars: int = _MAX_WORD_CHARS, split_ideographs: bool = True
) -> tokenizers.Tokenizer:
    """BERT's pipeline for a vocabulary, which puts [CLS] and [SEP] around one or two texts."""
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
    pipeline.post_processor = _bert_markers(vocab)
    pipeline.decoder = decoders.WordPiece(prefix=CONTINUATION)
    pipeline.add_special_tokens(list(SPECIAL_TOKENS))
    return pipeline


def open_vocabulary(
    vocab: Mapping[str, int], casing: Casing, settings: FolderSettings, source: str
) -> HuggingFaceTokenizer:
    """What `transformers` makes of a vocab.txt. Raises: UserError if the folder's `settings` add tokens to it."""
    pipeline = wordpiece_pipeline(vocab, casing, split_ideographs=settings.splits_ideographs)
    _add_tokens(pipeline, settings, source)
    return HuggingFaceTokenizer(pipeline, source, settings=settings)


def open_json(path: Path, settings: FolderSettings = FolderSettings()) -> HuggingFaceTokenizer:  # noqa: B008
    """The tokenizer in a ``tokenizer.json``.

    As in `transformers`, do_lower_case, strip_accents and tokenize_chinese_chars in ``tokenizer_config.json`` override
    BERT's normalizer; if do_lower_case is given, so do the defaults of the other two. Not so if the folder's class
    takes all from ``tokenizer.json``.

    Raises: UserError if the file is damaged, lacks a special token, or puts other markers around texts than BERT.
    """
    check_file(path, _REMEDY)
    try:
        pipeline = tokenizers.Tokenizer.from_file(str(path))
        pipeline.encode("a", "a")  # only here a post_processor without its markers fails
    except BaseException as error:  # the library raises no narrower class than Exception, and panics beside it
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{path} is no tokenizer of Hugging Face's ({error}); {_REMEDY}") from None
    _add_tokens(pipeline, settings, str(path))
    normalizer = pipeline.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer) and settings.tokenizer_class not in _GENERIC_CLASSES:
        if settings.casing:
            normalizer.lowercase, normalizer.strip_accents = settings.casing
        elif settings.strip_accents is not None:
            normalizer.strip_accents = settings.strip_accents
        if settings.casing or settings.tokenize_chinese_chars is not None:
            normalizer.handle_chinese_chars = settings.splits_ideographs
        pipeline.normalizer = normalizer
    return HuggingFaceTokenizer(pipeline, str(path), settings=settings)
