"""Answers to a file's questions by this project, as run_squad.py finds them; settings: scope, precision.

Lengths are chosen as if compiling cost nothing, since it is over when the clock starts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tensorflow as tf
from protocol import read_questions, serve, span_head

from bert_tf.config import compute_dtype
from bert_tf.interchange.initialise import find_weights
from bert_tf.model.blocks import Blocks
from bert_tf.model.heads import SpanModel
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import load_weights
from bert_tf.tasks.predict import Rows, compile_model, predict_rows
from bert_tf.tasks.squad.decode import DecodeSettings, decode
from bert_tf.tasks.squad.examples import Example, Paragraph
from bert_tf.tasks.squad.features import FeatureSettings, make_features
from bert_tf.text.wordpiece import FullTokenizer


def make_answers(settings: dict[str, Any]) -> Callable[[], list[str]]:
    weights = find_weights(settings["model"])
    model = SpanModel(weights.config, Blocks(settings["scope"], compute_dtype(settings["precision"])), seed=1)
    load_weights(weights, model.variables, weights.config.vocab_size)
    model.span.output_weights.assign(span_head(weights.config.hidden_size))
    tokenizer = FullTokenizer(weights.vocab_file)
    windows = FeatureSettings(settings["max_seq_length"])
    decoding = DecodeSettings(max_answer_length=settings["max_answer_length"])
    examples = [
        Example(str(number), question, Paragraph(context), None)
        for number, (question, context) in enumerate(read_questions(settings))
    ]
    compute = compile_model(model)

    def answer() -> list[str]:
        features = make_features(examples, tokenizer, windows, is_training=False)
        rows = Rows(features.batch, features.num_tokens, windows.max_seq_length, rows_per_compilation=1)
        logits = predict_rows(compute, rows, settings["batch_size"], Workers(), by_position=True).outputs
        return list(decode(examples, features, *logits, tokenizer, decoding).predictions.values())

    return answer


if __name__ == "__main__":
    serve(make_answers, lambda: {"tensorflow": tf.__version__})
