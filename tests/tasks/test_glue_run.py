"""Fine-tuning on sentences: files that come out, scores, predictions, resuming, own labels, what is refused."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.model.heads import ClassifierModel
from bert_tf.tasks.finetuning import EVAL, PREDICT, TRAIN
from bert_tf.tasks.glue.metrics import describe_predictions
from bert_tf.tasks.glue.task import GlueTask
from bert_tf.tasks.glue.tasks import custom_task, find_files, find_task
from tests.exported import write_run
from tests.glue_data import BAD, GOOD, VOCAB, write_cola, write_lines, write_model
from tests.jobs import events, scores_in, short_training, small_job
from tests.refusals import refused

ALL = (TRAIN, EVAL, PREDICT)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_model(folder / "model")
    write_cola(folder / "CoLA")
    return folder


def settings(**changes):
    return short_training(**{"num_train_epochs": 1.5, "display_loss_steps": 2, **changes})


def job(data, model_dir, uses=ALL, task="CoLA", folder=None, **changes):
    task = find_task(task) if isinstance(task, str) else task
    data_dir = str(data / task.name if folder is None else folder)
    files = {use: paths for each in uses for use, paths in find_files(task, each, data_dir, None).items()}
    common = dict(training=settings(), task=task, files=files, max_seq_length=8)
    return small_job(GlueTask, data / "model", model_dir, **{**common, **changes})


def trained_job(data, model_dir, uses, **changes):
    """One that takes the model's files from a checkpoint."""
    return job(data, model_dir, uses, **{**dict(bert_config_file=None, vocab_file=None), **changes})


def predictions(model_dir, name="test_results.tsv"):
    return [line.split("\t") for line in (model_dir / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """16 rows * 1.5 epochs / 4 = 6 updates."""
    model_dir = tmp_path_factory.mktemp("finished")
    assert job(data, model_dir).run()
    return model_dir


def test_a_run_leaves_what_is_promised(finished):
    assert set(scores_in(finished)) == {"matthews_correlation", "accuracy", "eval_loss", "global_step"}
    assert scores_in(finished)["global_step"] == 6
    header, *lines = predictions(finished)
    assert header == ["index", "prediction"]
    assert [index for index, _ in lines] == [str(number) for number in range(len(GOOD + BAD))]
    assert {label for _, label in lines} <= {"0", "1"}
    described = {"task_name": "CoLA", "labels": ["0", "1"], "is_regression": False, "text_columns": ["sentence"]}
    assert json.loads((finished / "task.json").read_text()) == described
    assert json.loads((finished / "config.json").read_text())["settings"]["train_file"].endswith("train.tsv")
    assert "matthews correlation" in (finished / "report.html").read_text()


def test_scoring_and_predicting_later_gives_the_same(finished, data, tmp_path, capsys):
    later = trained_job(data, tmp_path, (EVAL, PREDICT), init_checkpoint=str(finished), predict_batch_size=8)
    assert later.run()
    assert scores_in(tmp_path) == pytest.approx(scores_in(finished), abs=1e-6)
    assert predictions(tmp_path) == predictions(finished)
    shown = capsys.readouterr().out
    assert "dev.tsv: 8 rows (1: 4, 0: 4)" in shown and "warning" not in shown


def test_rows_unlike_those_of_the_training_are_a_warning(finished, data, tmp_path, capsys):
    assert trained_job(data, tmp_path, [PREDICT], init_checkpoint=str(finished), max_seq_length=5).run()
    difference = rf"{finished} was trained with other rows (max_seq_length: 8 there, 5 now)"
    assert f"warning: {difference}; pass the settings that it was trained with" in capsys.readouterr().out


def test_weights_in_the_current_folder_predict(finished, data, tmp_path, monkeypatch):
    """By a short relative path, above which there is no folder of a run."""
    shutil.copytree(max((finished / "checkpoints").iterdir()), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    for name in ("model", "bert_model.ckpt"):
        assert trained_job(data, tmp_path / "out", [PREDICT], init_checkpoint=name).run()
        monkeypatch.chdir(tmp_path / "model")
    assert predictions(tmp_path / "out") == predictions(finished)


def save_untrained(folder, data, task, task_file="task.json"):
    """A run folder with a checkpoint of a model for the task, as new."""
    config = BertConfig.from_json_file(data / "model/bert_config.json")
    described = GlueTask({}, 8, task).output_meaning()
    companions, model = {task_file: json.dumps(described)}, ClassifierModel(config, task.num_classes)
    write_run(folder, model.variables, config=config, vocab=VOCAB, companions=companions)
    return folder


def test_mnli_is_scored_and_predicted_twice(data, tmp_path):
    columns = "sentence1 | sentence2 | gold_label"
    lines = [f"{a} | {b} | {label}" for a, b, label in zip(GOOD, BAD, ("neutral", "entailment", "contradiction", "-"))]
    for part, num_lines in (("matched", 4), ("mismatched", 2)):
        write_lines(tmp_path / f"MNLI/dev_{part}.tsv", columns, *lines[:num_lines])
        write_lines(tmp_path / f"MNLI/test_{part}.tsv", columns, *lines[:num_lines])
    model_dir = save_untrained(tmp_path / "run", data, find_task("MNLI"))
    options = dict(task="MNLI", folder=tmp_path / "MNLI", predict_batch_size=2)
    assert trained_job(data, model_dir, (EVAL, PREDICT), **options).run()
    (evaluation,) = events(model_dir, "evaluation")
    assert "latency_50_ms" in evaluation  # of all parts: the last one has too few rows for a batch after the first
    names = [f"{part}_{name}" for part in ("matched", "mismatched") for name in ("accuracy", "eval_loss")]
    assert list(scores_in(model_dir)) == [*names, "global_step"]
    labels = {"contradiction", "entailment", "neutral"}
    for name, num_lines in (("test_results.tsv", 4), ("test_results_mismatched.tsv", 2)):
        _, *lines = predictions(model_dir, name)
        assert len(lines) == num_lines and {label for _, label in lines} <= labels


def test_numbers_are_predicted_within_their_range(data, tmp_path):
    columns = "index | sentence1 | sentence2 | score"
    lines = [f"{10 + number} | {a} | {b} | {number}.5" for number, (a, b) in enumerate(zip(GOOD, BAD))]
    for name in ("dev", "test"):
        write_lines(tmp_path / f"STS-B/{name}.tsv", columns, *lines)
    model_dir = save_untrained(tmp_path / "run", data, find_task("STS-B"))
    assert trained_job(data, model_dir, (EVAL, PREDICT), task="STS-B", folder=tmp_path / "STS-B").run()
    assert set(scores_in(model_dir)) == {"pearson", "spearman", "eval_loss", "global_step"}
    _, *lines = predictions(model_dir)
    assert [index for index, _ in lines] == ["10", "11", "12", "13"]
    assert all(0 <= float(number) <= 5 for _, number in lines)
    task, logits = find_task("STS-B"), np.array([[-1.0], [2.34567], [7.0]])
    assert describe_predictions(task, list("abc"), logits).splitlines()[1:] == ["a\t0.000", "b\t2.346", "c\t5.000"]
    own = custom_task("text", None, True)
    assert describe_predictions(own, ["0"], logits[:1]) == "index\tprediction\n0\t-1\n"


OWN = custom_task("text", "kind", False)


def write_own(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, "kind": kind}) + "\n" for text, kind in rows))
    return path


def test_own_labels_are_kept_beside_the_weights(data, tmp_path):
    rows = [(text, kind) for kind, texts in (("bad order", BAD), ("fine", GOOD), ("odd", GOOD[:1])) for text in texts]
    write_own(tmp_path / "own/train.jsonl", *rows)
    once, run_dir = settings(num_train_epochs=1.0), tmp_path / "run"
    assert job(data, run_dir, (TRAIN,), task=OWN, folder=tmp_path / "own", training=once).run()
    assert json.loads((run_dir / "task.json").read_text())["labels"] == ["bad order", "fine", "odd"]
    new = {PREDICT: [write_own(tmp_path / "new.jsonl", ("the cat", None), ("sat the", None))]}
    assert trained_job(data, run_dir, (), task=custom_task("text", None, False), files=new).run()
    header, *lines = predictions(run_dir)
    assert header == ["index", "prediction", "bad order", "fine", "odd"]
    for line in lines:
        values = [float(value) for value in line[2:]]
        assert header[2 + int(np.argmax(values))] == line[1] and math.isclose(sum(values), 1, abs_tol=1e-5)

    dev = {EVAL: [write_own(tmp_path / "dev.jsonl", ("the cat", "fine"), ("sat the", "worse"))]}
    nameless = save_untrained(tmp_path / "bare", data, find_task("RTE"), task_file="other.json")
    message = "dev.jsonl, line 2: the label is 'worse': must be one of bad order, fine, odd"
    refused(message, trained_job(data, run_dir, (), task=OWN, files=dev).run)
    message = "task.json, with the model's labels, does not exist"
    refused(message, trained_job(data, nameless, (), task=OWN, files=dev).run)


def test_a_run_goes_on_with_the_same_meaning_of_quotation_marks(data, tmp_path):
    lines = [f'"{text}"\t{label}' for label, texts in enumerate((BAD, GOOD)) for text in texts]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tkind", *lines]))
    of_file = dict(task=OWN, folder=tmp_path, training=settings(num_train_epochs=1.0))
    assert job(data, tmp_path / "run", (TRAIN,), **of_file, quoting="csv").run()
    refused("quoting: 'csv' there, None now", job(data, tmp_path / "run", (TRAIN,), **of_file).run)


def test_relations_are_scored_without_the_class_of_none(data, tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    task = find_task("ChemProt")
    labels = [task.labels[number % 6] for number in range(24)]
    lines = [f"1.T{number}.T2 | {(GOOD + BAD)[number % 8]} | {label}" for number, label in enumerate(labels)]
    for name in ("dev", "test"):
        write_lines(tmp_path / f"ChemProt/{name}.tsv", "index | sentence | label", *lines)
    # Whatever the order of a model's classes: this one finds its last class everywhere.
    other_order = dataclasses.replace(task, labels=(*task.labels[-1:], *task.labels[:-1]))
    model_dir = save_untrained(tmp_path / "run", data, other_order)
    assert trained_job(data, model_dir, (EVAL, PREDICT), task="ChemProt", folder=tmp_path / "ChemProt").run()
    _, *predicted = predictions(model_dir)
    assert [index for index, _ in predicted] == [f"1.T{number}.T2" for number in range(24)]
    scores, scored = scores_in(model_dir), list(task.labels[:5])
    expected = metrics.f1_score(labels, [label for _, label in predicted], labels=scored, average="micro")
    assert scores["f1"] == pytest.approx(expected) and 0 < expected < 1
    names = ("precision", "recall", "f1")
    of_each = [f"{prefix}{name}" for prefix in ("", *(f"{label}_" for label in scored)) for name in names]
    assert list(scores) == ["accuracy", *of_each, "eval_loss", "global_step"]


def test_a_label_of_evaluation_is_checked_before_the_training(data, tmp_path):
    folder = write_cola(tmp_path / "CoLA")
    write_lines(folder / "dev.tsv", "x01 |  1 |  | the cat sat", "x01 | 1 |  | a dog", "x01 | 3 |  | a cat")
    refused("dev.tsv, line 3: the label is '3'", job(data, tmp_path / "run", folder=folder).run)
    assert not (tmp_path / "run/checkpoints").exists()
