"""run_swag.py: files that come out, scores, other modes, Hugging Face, the split, two ranks, refusals."""

import functools
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.contrib.choices.read import read_questions
from bert_tf.contrib.choices.rows import make_choice_rows
from bert_tf.contrib.choices.settings import ChoiceOptions
from bert_tf.contrib.choices.task import ChoiceTask
from bert_tf.interchange.export import export
from bert_tf.memory.split import show_plan
from bert_tf.run.checkpoint import PREFIX
from bert_tf.settings.training import FinetuningConfig
from bert_tf.text.wordpiece import FullTokenizer
from tests import jobs
from tests.choice_data import json_lines, make_questions, swag, write_model
from tests.preparation import write
from tests.refusals import refused


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("data"))
    write(folder / "train.csv", swag(make_questions(1, 16)))
    write(folder / "val.csv", swag(make_questions(2, 7)))
    return folder


def job(data, model_dir, **changes):
    common = dict(train_file=data / "train.csv", predict_file=data / "val.csv", max_seq_length=18)
    return jobs.small_job(ChoiceTask, data, model_dir, **{**common, **changes})


def predicted_in(model_dir):
    """The columns of the file with the predictions: index, choice, right one, probabilities."""
    _, *lines = (model_dir / "predictions.tsv").read_text().splitlines()
    return np.array([[float(value) for value in line.split("\t")] for line in lines])


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """16 questions / 4 = 4 updates."""
    model_dir = tmp_path_factory.mktemp("finished")
    assert job(data, model_dir).run()
    return model_dir


def test_a_run_leaves_what_is_promised(finished):
    header = (finished / "predictions.tsv").read_text().splitlines()[0]
    assert header.split("\t") == ["index", "prediction", "label", "0", "1", "2", "3"]
    index, prediction, label, *probabilities = predicted_in(finished).T
    assert index.tolist() == list(range(7)) and label.tolist() == [each[3] for each in make_questions(2, 7)]
    np.testing.assert_allclose(np.sum(probabilities, axis=0), 1, atol=1e-5)
    chosen = [probabilities[int(number)][row] for row, number in enumerate(prediction)]
    np.testing.assert_allclose(chosen, np.max(probabilities, axis=0), atol=2e-6)
    scores = jobs.scores_in(finished)
    assert set(scores) == {"accuracy", "eval_loss", "global_step"}
    assert scores["accuracy"] == pytest.approx(np.mean(prediction == label))
    right = [probabilities[int(number)][row] for row, number in enumerate(label)]
    assert scores["eval_loss"] == pytest.approx(-np.mean(np.log(right)), abs=1e-4)
    assert jobs.events(finished, "train")[0]["total_loss"] == pytest.approx(np.log(4), abs=0.1), "any of 4 choices"
    config = json.loads((finished / "config.json").read_text())
    assert (config["settings"]["num_choices"], config["identity"]["task"]) == (4, "choices")


def test_answering_later_and_from_hugging_faces_format_gives_the_same(finished, data, tmp_path, capsys):
    """The head of another class is none for choices, also where it has the same names and shapes."""
    theirs = tmp_path / "theirs"
    export(str(finished), theirs)
    assert "id2label" not in json.loads((theirs / "config.json").read_text())
    for name, start in (("ours", finished), ("back", theirs)):
        assert job(data, tmp_path / name, **jobs.from_checkpoint(start, predict_batch_size=8)).run()
        np.testing.assert_allclose(predicted_in(tmp_path / name), predicted_in(finished), atol=2e-6)
        losses = [jobs.scores_in(run)["eval_loss"] for run in (tmp_path / name, finished)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert "val.csv: 7 questions with 4 choices each" in capsys.readouterr().out
    for other in ("BertForSequenceClassification", "BertForTokenClassification"):
        jobs.changed_json(theirs / "config.json", architectures=[other])
        about = job(data, tmp_path / other, **jobs.from_checkpoint(theirs))
        refused(rf"has no multiple choice head .* but is a {other}, and .* holds no checkpoint", about.run)


def test_questions_with_another_number_of_choices_than_in_training(finished, data, tmp_path, capsys):
    """From each question the right choice and the one after it, without labels."""
    questions = list(make_questions(2, 7))
    objects = [
        dict(context=context, question=start, choices=[choices[label], choices[(label + 1) % 4]])
        for context, start, choices, label in questions
    ]
    probabilities_7x2 = answered(data, finished, tmp_path, objects)[:, 2:]
    assert "not scored: not all right choices are known" in capsys.readouterr().out
    columns = [row[3:] for row in predicted_in(finished)]
    expected = [each[label] / each[(label + 1) % 4] for each, (*_, label) in zip(columns, questions)]
    np.testing.assert_allclose(np.divide(*probabilities_7x2.T), expected, rtol=1e-4)


def test_a_file_to_answer_has_field_names_of_its_own(data, tmp_path, capsys):
    assert job(data, tmp_path / "run", fields="context=sent1", predict_file=None).run()
    file = write(tmp_path / "new.jsonl", json_lines(dict(premise="the", question="who", choices=["anna", "bob"])))
    start = jobs.from_checkpoint(tmp_path / "run", predict_file=file, fields="context=premise")
    assert job(data, tmp_path / "answers", **start).run()
    assert "warning" not in capsys.readouterr().out


def answered(data, finished, tmp_path, objects):
    """The columns of the predictions for questions in JSON lines."""
    file = write(tmp_path / "new.jsonl", json_lines(*objects))
    assert job(data, tmp_path / "run", **jobs.from_checkpoint(finished, predict_file=file)).run()
    return predicted_in(tmp_path / "run")


def test_choices_that_are_cut_until_they_are_alike(finished, data, tmp_path, capsys):
    """They are counted, their scores are the same, and the first of them is the one that is chosen."""
    alike = dict(context="the", question="sees " * 40, choices=["anna", "bob", "carl", "dora"], label=1)
    some = dict(context="the", question="who", choices=["anna", "bob", "lamp", "bob"], label=3)
    other = dict(context="the", question="who", choices=["anna", "bob", "lamp", "dora"], label=2)
    first, _, last = answered(data, finished, tmp_path, [alike, other, some])
    said = "new.jsonl: 2 question(s) have choices that are alike within 18 tokens; the first of them counts; a larger"
    assert said in capsys.readouterr().out
    assert first[1] == 0 and first[3:].tolist() == [0.25] * 4
    assert last[4] == last[6]
    questions = read_questions(tmp_path / "new.jsonl", needs_labels=True)[0]
    rows = make_choice_rows(questions, FullTokenizer(data / "vocab.txt"), 18)
    assert rows.first_alike_FxN().tolist() == [[0, 0, 0, 0], [0, 1, 2, 3], [0, 1, 2, 1]]


def test_export_scores_single_choices(finished, data, tmp_path):
    about = job(data, tmp_path / "run", **jobs.from_checkpoint(finished, predict_file=None))
    model = jobs.exported(about, tmp_path / "export", "choices")
    tokenizer = FullTokenizer(tmp_path / "export/vocab.txt", model.settings["do_lower_case"])
    questions = read_questions(data / "val.csv", needs_labels=True)[0]
    rows = make_choice_rows(questions, tokenizer, model.settings["max_seq_length"]).sequences
    [scores] = model({name: tf.constant(value) for name, value in rows.batch(np.arange(28)).items()})
    assert scores.shape == (28, 1)
    expected = predicted_in(finished)[:, 3:]
    np.testing.assert_allclose(tf.nn.softmax(tf.reshape(scores, [7, 4])), expected, atol=2e-6)


def test_choosing_at_a_prompt(finished, data, tmp_path, monkeypatch, capsys):
    lines = ["anna sees the lamp .", "who likes bob", "who likes table", "", "one context", "", ""]
    chat = job(data, tmp_path / "run", **jobs.from_checkpoint(finished, predict_file=None))
    said = jobs.typed(chat, lines, monkeypatch, capsys)[-2:]
    found = [re.fullmatch(r"  (0\.\d{3})  (who likes (?:bob|table))", line).groups() for line in said]
    assert float(found[0][0]) >= float(found[1][0]) and len({text for _, text in found}) == 2
    assert sum(float(value) for value, _ in found) == pytest.approx(1, abs=0.002)


def test_the_update_does_not_depend_on_the_split(finished, data, tmp_path):
    jobs.assert_split_does_not_matter(finished, functools.partial(job, data), tmp_path)
    weights = tf.train.load_checkpoint(str(tmp_path / "checkpoints/ckpt-00000004" / PREFIX))
    assert weights.get_tensor("cls/choice/output_bias") == 0, "what only rounding errors would move stays"


def test_the_plan_counts_the_sequences_of_the_questions(data, tmp_path):
    def told(**files):
        options = ChoiceOptions(bert_config_file=str(data / "bert_config.json"), gpu_memory_gib=16.0, **files)
        model = ChoiceTask.plan_config(options)
        return show_plan(FinetuningConfig(), options, lambda config: ChoiceTask.workload(config, options, model))

    two = write(tmp_path / "two.jsonl", json_lines(dict(context="a", choices=["b", "c"], label=0)))
    assert "classifying (2 sequences to a question)" in told(train_file=str(two))
    assert "classifying (4 sequences to a question)" in told(train_file=str(data / "train.csv")) == told()
