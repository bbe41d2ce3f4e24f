"""Our WordPiece tokenizer as one of Hugging Face's: ``tokenizer.json`` and ``tokenizer_config.json``.

The ids are the same as ours, except where their rules differ; docs/fine_tuning.md lists the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_tf.text.vocabulary import CONTINUATION, SPECIAL_TOKENS, UNKNOWN_TOKEN
from bert_tf.text.wordpiece import MAX_WORD_CHARS

_PAD, _, _CLS, _SEP, _MASK = SPECIAL_TOKENS


def fast_tokenizer(vocab: Mapping[str, int], do_lower_case: bool) -> tokenizers.Tokenizer:
    """A tokenizer for a WordPiece vocabulary (token to id), which puts [CLS] and [SEP] around one or two texts."""
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(
            dict(vocab),
            unk_token=UNKNOWN_TOKEN,
            max_input_chars_per_word=MAX_WORD_CHARS,
            continuing_subword_prefix=CONTINUATION,
        )
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=do_lower_case, lowercase=do_lower_case
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_CLS} $A {_SEP}",
        pair=f"{_CLS} $A {_SEP} $B:1 {_SEP}:1",
        special_tokens=[(token, vocab[token]) for token in (_CLS, _SEP)],
    )
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def tokenizer_config(do_lower_case: bool, max_length: int) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``; `max_length`: the largest number of tokens that the model takes."""
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return {
        # Not BertTokenizer, which takes only the vocabulary from tokenizer.json, and only 100 characters per word.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": do_lower_case,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **dict(zip(names, SPECIAL_TOKENS)),
    }
