"""Small SentencePiece models, trained for the tests."""

from __future__ import annotations

import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece

WORDS = "the river flows from the mountain through a town into the sea where people live".split()
# Five scripts and more, with what a model changes first: ligatures, full width, half width, fractions, emoji.
SCRIPTS = [
    "Été à Québec : l’œuvre d’une sœur coûte 12 €… ﬁn ½",
    "Nguyễn Ái Quốc, Việt Nam; Łódź, İstanbul, Straße",
    "Съешь ещё этих мягких булок, й Й ё",
    "Ο ΟΔΥΣΣΕΑΣ ταξίδεψε στην Ιθάκη.",
    "السلام عليكم ورحمة الله، أهلاً ١٢٣",
    "中文维基百科，自２００２年１０月２４日。「飯館」",
    "日本語の文章です。ﾊﾝｶｸｶﾅ ｶﾞｷﾞ ﾊﾟﾋﾟ",
    "한국어 위키백과는 시작되었다.",
    "हिन्दी क़लम लड़का। ভালোবাসা কো",
    "ภาษาไทย เขาไม่ได้พูดสักคำ น้ำ",
    "😀 👍🏽 👩‍👩‍👧 🇩🇪 1️⃣ ❤️ ☃",
    "a\u200bb\u00adc  wide\u3000space\ttab \u00a0 end ",
]
BERT = {"pad_id": 0, "unk_id": 1, "pad_piece": "[PAD]", "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}


@functools.cache
def _train(options: str) -> bytes:  # JSON
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=8)) + "." for _ in range(200)] + 3 * SCRIPTS[:-2]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **json.loads(options),
    )
    return model.getvalue()


def write_model(path: Path, **options: Any) -> Path:
    """A model of English words and some other scripts, by default with BERT's special tokens and no others."""
    special = {} if "control_symbols" in options else BERT
    path.write_bytes(_train(json.dumps({"vocab_size": 500, "bos_id": -1, "eos_id": -1, **special, **options})))
    return path
