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
    start = context.rindex(text)
    tokenizer = open_tokenizer(model / "own.model", do_lower_case=False)
    examples = [Example("q", "who?", context, (Answer(text, start),))]
    made = [make_windows(examples, tokenizer, FeatureSettings(128, 32, 16), is_training=on) for on in (True, False)]
    first, last = made[0].start_positions[0], made[0].end_positions[0]
    begin, end = made[1].token_starts[0, first], made[1].token_ends[0, last]
    assert 0 < first <= last and begin <= start and start + len(text) <= end
    assert len(context[begin:end]) <= len(text) + 3, "a token of several characters may hold more than the answer"
    one_less = made[1].token_ends[0, first - 1] <= start or tokenizer.inv_vocab[made[0].input_ids[0, first]] == "▁"
    assert one_less and made[1].token_starts[0, last] < start + len(text)


def test_labels_stand_on_the_first_piece_which_may_be_the_mark_alone(model):
    tokenizer = open_tokenizer(model / "own.model", do_lower_case=False)
    rows = make_entity_rows([["river", "東京", "QQ"]], np.array([3, 1, 2]), tokenizer, 40)
    pieces = tokenizer.convert_ids_to_tokens(rows.tokens)
    labelled = {pieces[place]: int(rows.labels_P[place]) for place in np.flatnonzero(rows.labels_P >= 0)}
    assert pieces[1].startswith("▁r") and labelled.pop(pieces[1]) == 3
    assert len(rows.positions_W) == 3 and all(pieces[place].startswith("▁") for place in rows.positions_W)


def predictions(folder):
    return json.loads((folder / "predictions.json").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["unigram"], indirect=True)
def test_trained_served_exported_and_read_back_it_answers_alike(model, tmp_path):
    features = {"features": FeatureSettings(64, 16, 8)}
    trained, again, back = tmp_path / "trained", tmp_path / "again", tmp_path / "back"
    trains = {**features, "training": settings(num_train_epochs=3.0)}
    assert job(model, trained, vocab_file=str(model / "own.model"), **trains).run()
    assert (trained / "tokenizer.json").is_file()
    export(str(trained), tmp_path / "theirs")
    only = {**features, "train_file": None, "vocab_file": None, "bert_config_file": None}
    assert job(model, again, init_checkpoint=str(trained), **only).run()
    assert job(model, back, init_checkpoint=str(tmp_path / "theirs"), **only).run()
    about = job(model, tmp_path / "made", init_checkpoint=str(trained), **only)
    export_task(about, Workers(), tmp_path / "export", batch_size=None)
    served = job(model, tmp_path / "served", **only)
    predict_with_export(served, Workers(), tmp_path / "export")
    assert predictions(trained) == predictions(again) == predictions(back) == predictions(tmp_path / "served")
    more = job(model, tmp_path / "more", init_checkpoint=str(tmp_path / "theirs"), vocab_file=None, **trains)
    assert more.run(), "training goes on from the export"
    other = write_model(tmp_path / "other.model", vocab_size=900, user_defined_symbols=[f"<{n}>" for n in range(300)])
    wrong = job(model, tmp_path / "refused", init_checkpoint=str(trained), **{**only, "vocab_file": str(other)})
    refused("other.model has ... pieces, but the model's configuration says vocab_size", wrong.run)
