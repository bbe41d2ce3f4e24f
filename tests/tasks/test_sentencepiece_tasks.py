"""Tasks with a SentencePiece vocabulary: answers by their characters, labels on first pieces, and the whole way."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bert_tf.contrib.entities.rows import make_entity_rows
from bert_tf.interchange.export import export
from bert_tf.ranks.workers import Workers
from bert_tf.tasks.job import export_task, predict_with_export
from bert_tf.tasks.squad.examples import Answer, Example
from bert_tf.tasks.squad.features import FeatureSettings, make_windows
from bert_tf.text.tokenizer import open_tokenizer
from tests.jobs import from_checkpoint
from tests.refusals import refused
from tests.sentencepiece_models import write_model
from tests.small_models import write_small_model
from tests.tasks.test_finetuning import job, settings

# Contexts and the last place of an answer in them.
QUESTIONS = [
    ("日本語の文章です。日本語の日本", "日本語"),
    ("中文维基百科，自２００２年１０月２４日。", "１０月２４日"),
    ("ภาษาไทย เขาไม่ได้พูดสักคำ น้ำ", "พูดสักคำ"),
    ("한국어 위키백과는 시작되었다.", "시작"),
    ("Été à Québec : l’œuvre d’une sœur", "Québec"),
    ("the river flows. From the mountain", "mountain"),
]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    write_model(folder / "own.model", model_type=request.param)
    questions = []
    for context, text in QUESTIONS:
        answer = {"text": text, "answer_start": context.rindex(text)}
        questions.append({"context": context, "qas": [{"id": text, "question": "the?", "answers": [answer]}]})
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": questions}]}), encoding="utf-8")
    write_small_model(folder, open_tokenizer(folder / "own.model").inv_vocab)
    (folder / "vocab.txt").unlink()
    return folder


@pytest.mark.parametrize(("context", "text"), QUESTIONS)
def test_an_answers_tokens_have_its_characters(model, context, text):
    start, tokenizer = context.rindex(text), open_tokenizer(model / "own.model", do_lower_case=False)
    examples = [Example("q", "who?", context, (Answer(text, start),))]
    lengths = FeatureSettings(128, 32, 16)
    training, predicting = (make_windows(examples, tokenizer, lengths, is_training=on) for on in (True, False))
    first, last = training.start_positions[0], training.end_positions[0]
    starts, ends = predicting.token_starts[0], predicting.token_ends[0]
    assert 0 < first <= last and starts[first] <= start and start + len(text) <= ends[last]
    assert ends[last] - starts[first] <= len(text) + 3, "a token of several characters may hold more than the answer"
    is_mark = tokenizer.inv_vocab[training.input_ids[0, first]] == "▁"
    assert (ends[first - 1] <= start or is_mark) and starts[last] < start + len(text)


def test_labels_stand_on_the_first_piece_which_may_be_the_mark_alone(model):
    tokenizer = open_tokenizer(model / "own.model", do_lower_case=False)
    rows = make_entity_rows([["river", "東京", "QQ"]], np.array([3, 1, 2]), tokenizer, 40)
    pieces = tokenizer.convert_ids_to_tokens(rows.tokens)
    assert pieces[1].startswith("▁r") and rows.labels_P[1] == 3
    assert len(rows.positions_W) == 3 and all(pieces[place].startswith("▁") for place in rows.positions_W)
    assert rows.labels_P[rows.positions_W].tolist() == [3, 1, 2] and (rows.labels_P >= 0).sum() == 3


def predictions(folder):
    return json.loads((folder / "predictions.json").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["unigram"], indirect=True)
def test_trained_served_exported_and_read_back_it_answers_alike(model, tmp_path):
    trained, features = tmp_path / "trained", {"features": FeatureSettings(64, 16, 8)}
    trains = {**features, "training": settings(num_train_epochs=3.0)}
    assert job(model, trained, vocab_file=str(model / "own.model"), **trains).run()
    assert (trained / "tokenizer.json").is_file()
    export(str(trained), tmp_path / "theirs")
    only = {**features, **from_checkpoint(trained)}
    for name, start in (("again", trained), ("back", tmp_path / "theirs")):
        assert job(model, tmp_path / name, **{**only, "init_checkpoint": str(start)}).run()
    export_task(job(model, tmp_path / "made", **only), Workers(), tmp_path / "export", batch_size=None)
    predict_with_export(job(model, tmp_path / "served", **only), Workers(), tmp_path / "export")
    expected = predictions(trained)
    assert [predictions(tmp_path / name) for name in ("again", "back", "served")] == [expected] * 3
    more = job(model, tmp_path / "more", init_checkpoint=str(tmp_path / "theirs"), vocab_file=None, **trains)
    assert more.run(), "training goes on from the export"
    other = write_model(tmp_path / "other.model", vocab_size=900, user_defined_symbols=[f"<{n}>" for n in range(300)])
    wrong = job(model, tmp_path / "refused", **{**only, "vocab_file": str(other)})
    refused("other.model has ... pieces, but the model's configuration says vocab_size", wrong.run)
