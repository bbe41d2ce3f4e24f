"""run_ner.py: files that come out, scores, other modes, resuming, what is refused."""

import functools
import itertools
import json
import re

import numpy as np
import pytest

from bert_tf.contrib.entities.task import EntityTask
from bert_tf.interchange.export import export
from tests import jobs, processes
from tests.entity_data import LABELS, SENTENCES, columns, write_model
from tests.preparation import write
from tests.refusals import refused


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("data"))
    write(folder / "train.tsv", columns(SENTENCES * 4))
    write(folder / "test.tsv", columns())
    return folder


def job(data, model_dir, **changes):
    common = dict(train_file=data / "train.tsv", predict_file=data / "test.tsv", max_seq_length=10)
    return jobs.small_job(EntityTask, data, model_dir, **{**common, **changes})


def predicted_in(model_dir):
    """The lines of each sentence, as lists of columns."""
    blocks = (model_dir / "predictions.tsv").read_text(encoding="utf-8").removesuffix("\n\n").split("\n\n")
    return [[line.split("\t") for line in block.split("\n")] for block in blocks]


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """16 sentences / 4 = 4 updates."""
    model_dir = tmp_path_factory.mktemp("finished")
    assert job(data, model_dir).run()
    return model_dir


def test_a_run_leaves_what_is_promised(finished):
    for (words, labels), lines in zip(SENTENCES, predicted_in(finished)):
        assert [line[:2] for line in lines] == [list(pair) for pair in zip(words.split(), labels.split())]
        assert all(len(line) == 3 and line[2] in LABELS for line in lines)
    parts = ("", "strict_"), ("", "P_", "T_"), ("precision", "recall", "f1")
    measures = set(map("".join, itertools.product(*parts)))
    assert measures | {"accuracy", "eval_loss", "global_step"} == set(jobs.scores_in(finished))
    assert json.loads((finished / "task.json").read_text()) == {"task_name": "entities", "labels": LABELS}
    assert any("strict_f1" in line for line in jobs.events(finished, "evaluation"))
    assert jobs.events(finished, "train")[0]["total_loss"] == pytest.approx(np.log(5), abs=0.3), "any of 5 labels"


def test_labelling_later_and_from_hugging_faces_format_gives_the_same(finished, data, tmp_path, capsys):
    export(str(finished), tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    assert config["id2label"] == {str(number): label for number, label in enumerate(LABELS)}
    assert "problem_type" not in config
    for name, start, update in (("ours", finished, 4), ("back", tmp_path / "theirs", 0)):
        assert job(data, tmp_path / name, **jobs.from_checkpoint(start, predict_batch_size=8)).run()
        assert predicted_in(tmp_path / name) == predicted_in(finished)
        expected = {**jobs.scores_in(finished), "global_step": update}
        assert jobs.scores_in(tmp_path / name) == pytest.approx(expected)
    said = capsys.readouterr().out
    assert "test.tsv: 4 sentences, 25 tokens, labels by IOB2 (9 entities)" in said
    assert "processed 25 tokens with 9 phrases; found: " in said


def test_tokens_without_labels_and_without_pieces_and_long_sentences(finished, data, tmp_path, capsys):
    words = ["Anna", "\u200d", "a\tlamp", ".", *" ".join(words for words, _ in SENTENCES * 2).split()]
    file = write(tmp_path / "new.jsonl", json.dumps({"tokens": words}) + "\n")
    assert job(data, tmp_path / "run", **jobs.from_checkpoint(finished, predict_file=file)).run()
    [lines] = predicted_in(tmp_path / "run")
    assert [token for token, _ in lines] == ["Anna", "\u200d", "a lamp", *words[3:]] and lines[1][1] == "O"
    said = capsys.readouterr().out
    assert "1 token(s) of which the tokenizer leaves nothing: labelled O" in said and "not scored" in said
    assert not (tmp_path / "run/eval_results.txt").exists()


def test_an_export_says_what_it_is(finished, data, tmp_path):
    about = job(data, tmp_path / "run", **jobs.from_checkpoint(finished, predict_file=None))
    model = jobs.exported(about, tmp_path / "export", "entities")
    assert model.settings["labels"] == LABELS and model.settings["max_seq_length"] == 10
    assert model.signature.structured_outputs["logits"].shape.as_list() == [None, 10, len(LABELS)]


def test_a_classifier_goes_on_with_its_order_of_labels_or_is_made_anew(finished, data, tmp_path, capsys):
    export(str(finished), tmp_path / "theirs")
    other_order = LABELS[::-1]
    jobs.changed_json(tmp_path / "theirs/config.json", id2label=dict(enumerate(other_order)))
    files = dict(bert_config_file=None, vocab_file=None)
    assert job(data, tmp_path / "run", init_checkpoint=str(tmp_path / "theirs"), **files).run()
    assert json.loads((tmp_path / "run/task.json").read_text())["labels"] == other_order
    assert "a new classifier is made" not in capsys.readouterr().out
    names = ["O", "B-P", "I-P", "B-T", "I-T", "B-Z"]
    assert job(data, tmp_path / "more", init_checkpoint=str(finished), label_names=",".join(names)).run()
    assert json.loads((tmp_path / "more/task.json").read_text())["labels"] == names
    assert "was fine-tuned for entities (B-P, B-T, I-P, I-T, O): a new classifier is made" in capsys.readouterr().out
    jobs.changed_json(tmp_path / "theirs/config.json", id2label=None)
    unnamed = job(data, tmp_path / "none", **jobs.from_checkpoint(tmp_path / "theirs"))
    refused("config.json: the label is 'LABEL_0': must be O, or B-TYPE", unnamed.run)


def test_entities_at_a_prompt(finished, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(EntityTask, "labels_of", lambda self, rows, _: ["B-P", "O", "B-T", "I-T", "O"])
    chat = job(data, tmp_path / "run", **jobs.from_checkpoint(finished, predict_file=None))
    said = jobs.typed(chat, ["\u200d", "", "Anna buys lamp-chair"], monkeypatch, capsys)
    patterns = (r"\(no entity\)", r"  0\.\d{3}  P: Anna", r"  0\.\d{3}  T: lamp-")
    assert all(map(re.fullmatch, patterns, said[-3:]))


REFUSED = [
    ("a\tO\nb\tO\n", None, "train.tsv: all labels are O: nothing to learn"),
    (columns(SENTENCES * 4), "a\tI-P\nb\tI-P\nc\tB-P\n", "test.tsv has labels by IOB1 .*, .*train.tsv by IOB2"),
    (columns(SENTENCES * 4), "a\tO\n\nb\tB-Z\n", "test.tsv, line 3: the label is 'B-Z', the model's are B-P"),
]


@pytest.mark.parametrize("train, test, message", REFUSED)
def test_what_does_not_fit_is_refused_before_the_training(data, tmp_path, train, test, message):
    train_file, predict_file = write(tmp_path / "train.tsv", train), write(tmp_path / "test.tsv", test or train)
    refused(message, job(data, tmp_path / "run", train_file=train_file, predict_file=predict_file).run)
    assert not (tmp_path / "run/checkpoints").exists()


def test_the_program_asks_at_a_prompt(finished, data):
    command = jobs.command_of("run_ner.py", data, finished, mode="interactive", max_seq_length=10)
    done = processes.run(command, input="Anna sees the lamp.\n")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\n(\(no entity\)|  0\.\d{3}  [PT]: \w.*)\n$", done.stdout), done.stdout


def test_parts_of_speech(data, tmp_path, monkeypatch, capsys):
    parts = dict(zip(SENTENCES[0][0].split(), "NOUN VERB DET ADJ NOUN .".split()))
    text = "".join(f"{word}\t{part}\n" for word, part in parts.items()) + "\n"
    files = dict(train_file=write(tmp_path / "a.tsv", text * 16), predict_file=write(tmp_path / "b.tsv", text))
    trained = tmp_path / "run"
    assert job(data, trained, task_name="pos", **files).run()
    [lines] = predicted_in(trained)
    assert [line[:2] for line in lines] == [list(pair) for pair in parts.items()]
    scores = jobs.scores_in(trained)
    assert scores["accuracy"] == np.mean([line[1] == line[2] for line in lines]) and "NOUN_f1" in scores
    assert json.loads((trained / "config.json").read_text())["main_score"] == "accuracy"
    assert "strict_f1" not in scores and "phrases" not in capsys.readouterr().out
    again = jobs.from_checkpoint(trained, predict_file=None)
    refused("task.json: the label is '.': must be O, .*--task_name=pos", job(data, tmp_path / "a", **again).run)
    export(str(trained), tmp_path / "theirs")
    jobs.changed_json(tmp_path / "theirs/config.json", id2label=None)
    unnamed = job(data, tmp_path / "c", task_name="pos", **jobs.from_checkpoint(tmp_path / "theirs"))
    refused("config.json: the labels have no names; give the model's labels there", unnamed.run)
    monkeypatch.setattr(EntityTask, "labels_of", lambda self, rows, _: ["NOUN", "VERB"])
    said = jobs.typed(job(data, tmp_path / "b", task_name="pos", **again), ["Anna sees"], monkeypatch, capsys)
    assert all(map(re.fullmatch, (r"  0\.\d{3}  NOUN: Anna", r"  0\.\d{3}  VERB: sees"), said[-2:]))


def test_the_loss_does_not_depend_on_the_split(finished, data, tmp_path):
    """Micro-batches of 4 sentences or of 2, with their different numbers of tokens, give the same updates."""
    jobs.assert_split_does_not_matter(finished, functools.partial(job, data), tmp_path)
