"""What a classifier's outputs mean is what the file beside its weights says: the values are those of transformers'
pipeline("text-classification") 5.24 on such folders, which shows id2label[argmax]."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.export import export
from bert_tf.interchange.heads import SPANS
from bert_tf.interchange.hugging_face import is_transposed, to_their_name
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.labels import labels_in_trained_order, read_task
from bert_tf.model.heads import ClassifierModel
from bert_tf.run.checkpoint import MANIFEST
from bert_tf.tasks.glue.classes import adapt_for_prediction
from bert_tf.tasks.glue.tasks import EVAL, PREDICT, TRAIN, custom_task, find_task
from tests.glue_data import BAD, GOOD, VOCAB, write_lines, write_model
from tests.jobs import changed_json, exported, scores_in
from tests.refusals import refused
from tests.tasks.test_glue_run import predictions, save_untrained, settings, trained_job, write_own

NLI = ("entailment", "neutral", "contradiction")  # another order than that of Google's run_classifier.py


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_model(folder / "model")
    return folder


def write_classifier(folder, data, labels, answer=0, **changes):
    """A folder as transformers saves it, of a classifier that gives every text the class `answer`."""
    config = BertConfig.from_json_file(data / "model/bert_config.json")
    model, tensors = ClassifierModel(config, len(labels), seed=7), {}
    model.classifier.output_weights.assign(tf.zeros_like(model.classifier.output_weights))
    model.classifier.output_bias.assign(3 * tf.one_hot(answer, len(labels)))
    for variable in model.variables:
        name, value = variable.name.split(":")[0], variable.numpy()
        value = value[: config.vocab_size] if name.endswith("word_embeddings") else value
        tensors[to_their_name(name)] = np.ascontiguousarray(value.T if is_transposed(name) else value)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    described = dict(config.to_dict(), hidden_act="gelu", architectures=["BertForSequenceClassification"])
    described["id2label"] = dict(enumerate(labels))
    (folder / "config.json").write_text(json.dumps({**described, **changes}))
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return folder


def write_pairs(path, column, labels):
    rows = [f"{a} | {b} | {label}" for a, b, label in zip(GOOD, BAD, labels)]
    return [write_lines(path, f"sentence1 | sentence2 | {column}", *rows)]


def carry_out(data, model_dir, start, task, files, **changes):
    job = trained_job(data, model_dir, (), task=task, files=files, **changes)
    assert job.starting_from(start).run()


@pytest.mark.parametrize(
    "name, labels, answer, accuracy",
    [
        ("MNLI", NLI, "entailment", 2 / 3),
        ("RTE", ("Not Entailment", "Entailment"), "not_entailment", 1 / 3),
        ("RTE", ("NOT-ENTAILMENT", "ENTAILMENT"), "not_entailment", 1 / 3),
    ],
)
def test_another_order_than_the_tasks(data, tmp_path, name, labels, answer, accuracy):
    folder, task = write_classifier(tmp_path / "model", data, labels), find_task(name)
    truths = ("entailment", "entailment", "contradiction" if name == "MNLI" else "not_entailment")
    files = {use: write_pairs(tmp_path / f"{use}.tsv", task.label_column, truths) for use in (EVAL, PREDICT)}
    carry_out(data, tmp_path / "run", folder, name, files)
    assert [label for _, label in predictions(tmp_path / "run")[1:]] == [answer] * 3
    assert scores_in(tmp_path / "run")["accuracy"] == pytest.approx(accuracy)


def test_the_loss_and_f1_are_those_of_the_labels(data, tmp_path):
    """With the label 1 in the first class; all are predicted as 1, of which three in four are right: F1 6/7."""
    folder = write_classifier(tmp_path / "model", data, ("equivalent", "not_equivalent"))
    lines = [f"{label} | {a} | {b}" for a, b, label in zip(GOOD, BAD, (1, 1, 1, 0))]
    file = write_lines(tmp_path / "dev.tsv", "Quality | #1 String | #2 String", *lines)
    carry_out(data, tmp_path / "run", folder, "MRPC", {EVAL: [file]})
    found, loss = scores_in(tmp_path / "run"), np.log(1 + np.exp(-3.0))
    assert (found["accuracy"], found["f1"]) == pytest.approx((0.75, 6 / 7))
    assert found["eval_loss"] == pytest.approx((3 * loss + loss + 3) / 4, abs=1e-5)


def test_a_custom_task_has_the_folders_labels(data, tmp_path):
    folder, own = write_classifier(tmp_path / "model", data, NLI), custom_task("text", "kind", False)
    rows = [("the cat", "entailment"), ("sat", "neutral")]
    files = {use: [write_own(tmp_path / f"{use}.jsonl", *rows)] for use in (EVAL, PREDICT)}
    carry_out(data, tmp_path / "run", folder, own, files)
    header, first, _ = predictions(tmp_path / "run")
    assert header == ["index", "prediction", *NLI] and first[1] == "entailment"
    assert scores_in(tmp_path / "run")["accuracy"] == 0.5


NUMBER, ONE_LABEL, SEVERAL = "regression", "single_label_classification", "multi_label_classification"


@pytest.mark.parametrize(
    ("labels", "problem", "task", "words"),
    [
        (["LABEL_0"], NUMBER, custom_task("text", None, False), r"\(numbers\), not for custom \(labels\); .*pass --re"),
        (NLI, ONE_LABEL, custom_task("text", None, True), r"not for custom \(numbers\); .*, or omit --regression$"),
        (NLI, SEVERAL, custom_task("text", None, False), r"\(multi_label_classification: .*; no task here is of that"),
        (NLI, ONE_LABEL, "STS-B", r"not for STS-B \(numbers\); name a checkpoint of that task$"),
        (NLI, ONE_LABEL, "RTE", r"not for RTE \(.*; .*, or, if the labels mean .*, rename them in .*/config.json$"),
    ],
)
def test_weights_of_another_task_are_refused_with_the_way_out(data, tmp_path, labels, problem, task, words):
    weights = find_weights(write_classifier(tmp_path / "model", data, labels, problem_type=problem))
    refused(words, adapt_for_prediction, find_task(task) if isinstance(task, str) else task, weights)


def test_nobody_is_told_to_edit_a_file_with_a_hash(data, tmp_path):
    weights = find_weights(save_untrained(tmp_path / "run", data, find_task("QNLI")))
    refused("not for CoLA .*; name a checkpoint of that task$", adapt_for_prediction, find_task("CoLA"), weights)


def test_a_task_file_with_values_of_another_kind(data, tmp_path):
    weights = find_weights(save_untrained(tmp_path / "run", data, find_task("CoLA")))
    (weights.folder / MANIFEST).unlink()  # as in a folder that was put together by hand
    lists = (("labels", [None, "1"]), ("labels", [1, 1]), ("text_columns", [["sentence"]]))
    for field, value in (("labels", 2), ("labels", "01"), ("text_columns", 1), *lists):
        (weights.folder / "task.json").write_text(json.dumps({"labels": ["0", "1"], field: value}))
        message = f"task.json: {field} is {value!r}: must be a list of different texts; correct it, or use another"
        refused(re.escape(message), adapt_for_prediction, find_task("CoLA"), find_weights(weights.folder))
    (weights.folder / "task.json").write_text('{"labels": ["0", "1"], "text_columns": [1, 2]}')
    message = "was fine-tuned on the text columns 1, 2, not on sentence"
    refused(message, adapt_for_prediction, find_task("CoLA"), find_weights(weights.folder))
    (weights.folder / "task.json").write_text('{"labels": ["0", "1"], "task_name": 5}')
    assert adapt_for_prediction(find_task("CoLA"), find_weights(weights.folder))[1] == ""


def test_the_columns_that_were_trained_on_are_refused_in_another_order(data, tmp_path):
    """The second text in place of the first would be predicted in silence; columns of other names may mean the same."""
    weights = find_weights(save_untrained(tmp_path / "run", data, find_task("CoLA")))
    (weights.folder / MANIFEST).unlink()
    (weights.folder / "task.json").write_text('{"labels": ["0", "1"], "text_columns": ["question", "answer"]}')
    adapt_for_prediction(custom_task("query,reply", None, False), find_weights(weights.folder))
    turned = custom_task("answer,question", None, False)
    refused("text columns question, answer, not on answer, question; .*order$", adapt_for_prediction, turned, weights)


def test_a_single_text_is_refused_where_pairs_were_trained_on(data, tmp_path):
    weights = find_weights(save_untrained(tmp_path / "run", data, find_task("MRPC")))
    words = "text columns #1 string, #2 string, not on sentence; name "
    refused(f"{words}as many with --text_columns", adapt_for_prediction, custom_task("sentence", None, False), weights)
    refused(f"{words}a checkpoint of that task", adapt_for_prediction, find_task("SST-2"), weights)


def test_weights_of_another_task_with_the_same_labels_are_told(data, tmp_path):
    folder = write_classifier(tmp_path / "model", data, ("0", "1"), finetuning_task="mrpc")
    for task, said in (("QQP", "config.json says that these weights are for MRPC, .* not for QQP$"), ("MRPC", "^$")):
        assert re.search(said, adapt_for_prediction(find_task(task), find_weights(folder))[1])


def test_labels_that_say_nothing(data, tmp_path, capsys):
    folder = write_classifier(tmp_path / "model", data, ("LABEL_0", "LABEL_1"), answer=1)
    files = {PREDICT: write_pairs(tmp_path / "test.tsv", "label", ("x", "x"))}
    carry_out(data, tmp_path / "run", folder, "RTE", files)
    assert [label for _, label in predictions(tmp_path / "run")[1:]] == ["not_entailment"] * 2
    line = "config.json does not say what the classes mean, so they are taken in this order: entailment, not_entailment"
    assert line in capsys.readouterr().out
    own = {PREDICT: [write_own(tmp_path / "new.jsonl", ("the cat", None))]}
    carry_out(data, tmp_path / "own", folder, custom_task("text", None, False), own)
    assert predictions(tmp_path / "own")[1][1] == "LABEL_1"


@pytest.mark.parametrize(
    "id2label, words",
    [
        ({"1": "a", "2": "b", "3": "c"}, "id2label=.*: must give each number from 0 on a label of its"),
        ({"0": "a", "1": "a", "2": "c"}, "id2label=.*: must give each number"),
        (["a", "b", "c"], "id2label=.*: must give each number"),
        ({"0": "a", "1": "b"}, "names 2 labels, the weights have 3 classes"),
        ({"0": "a", "1": "b\0", "2": "c"}, "has the label .*a control character"),
    ],
)
def test_labels_that_are_no_labels_are_refused(data, tmp_path, id2label, words):
    weights = find_weights(write_classifier(tmp_path / "model", data, NLI, id2label=id2label))
    refused(f"config.json: {words}", read_task, weights)


@pytest.mark.parametrize("changes", [{}, {"problem_type": "regression"}])
def test_the_one_number_of_a_cross_encoder(data, tmp_path, capsys, changes):
    """The pipeline shows the sigmoid of it where there is no problem_type, which an export must leave so."""
    folder = write_classifier(tmp_path / "model", data, ("LABEL_0",), **changes)
    files = {PREDICT: [write_own(tmp_path / "new.jsonl", ("the cat", None))]}
    carry_out(data, tmp_path / "run", folder, custom_task("text", None, True), files)
    assert predictions(tmp_path / "run")[1][1] == "3"
    is_said = "config.json has no problem_type: numbers are the model's outputs" in capsys.readouterr().out
    export(str(folder), tmp_path / "out", replace=False)
    exported = json.loads((tmp_path / "out/config.json").read_text())
    assert is_said == ("problem_type" not in exported) == (not changes)


def test_in_trained_order():
    def ordered(trained, labels, names=()):
        return labels_in_trained_order(trained.split(), labels.split(), names)

    assert ordered("b a", "a b") == ("b", "a")
    assert ordered("POSITIVE NEGATIVE", "0 1", ("negative", "positive")) == ("1", "0")
    assert ordered("1 0", "0 1", ("negative", "positive")) == ("1", "0")
    assert ordered("a_b ab", "ab a_b") == ("a_b", "ab"), "only the exact labels tell them apart"
    assert ordered("A_B ab", "ab a_b") is None
    assert ordered("1 0", "-1 0") is None and ordered("a b c", "a b") is None and ordered("a a", "a b") is None


def test_training_goes_on_in_the_order_of_the_same_labels(data, tmp_path, capsys):
    once = settings(num_train_epochs=1.0, learning_rate=1e-9)
    files = {TRAIN: write_pairs(tmp_path / "train.tsv", "label", ["entailment", "not_entailment"] * 2)}
    same = write_classifier(tmp_path / "same", data, ("not_entailment", "entailment"))
    carry_out(data, tmp_path / "run", same, "RTE", files, training=once)
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["labels"] == ["not_entailment", "entailment"]
    np.testing.assert_allclose(find_weights(tmp_path / "run").read("output_bias"), [3, 0], atol=1e-6)
    assert "a new classifier is made" not in capsys.readouterr().out

    export(str(tmp_path / "run"), tmp_path / "back", replace=False)
    described = json.loads((tmp_path / "back/config.json").read_text())
    assert described["id2label"] == {"0": "not_entailment", "1": "entailment"}
    job = trained_job(data, tmp_path / "export_run", (), task="RTE").starting_from(tmp_path / "back")
    assert exported(job, tmp_path / "saved", "classification").settings["labels"] == task["labels"]

    others = write_classifier(tmp_path / "others", data, ("yes", "no"))
    carry_out(data, tmp_path / "fresh", others, "RTE", files, training=once)
    said = capsys.readouterr().out
    assert f"{others} was fine-tuned for a task (yes, no): a new classifier is made" in said
    assert "in the checkpoint, not used: output_bias" in said
    fresh, pooler = find_weights(tmp_path / "fresh"), "bert/pooler/dense/kernel"
    np.testing.assert_allclose(fresh.read("output_bias"), [0, 0], atol=1e-6)
    np.testing.assert_allclose(fresh.read(pooler), find_weights(others).read(pooler), atol=1e-6)
    assert fresh.read("output_weights").any()
    assert json.loads((tmp_path / "fresh/task.json").read_text())["labels"] == ["entailment", "not_entailment"]


def test_only_a_model_for_questions_has_a_head_for_spans(data, tmp_path):
    folder = write_classifier(tmp_path / "model", data, NLI)
    spans = {"qa_outputs.weight": np.zeros([2, 16], np.float32), "qa_outputs.bias": np.zeros([2], np.float32)}
    save_file({**load_file(folder / "model.safetensors"), **spans}, folder / "model.safetensors")
    assert SPANS.variable not in find_weights(folder).shapes
    for architectures in (["BertForQuestionAnswering"], [], None):
        changed_json(folder / "config.json", architectures=architectures)
        if not architectures:
            save_file(spans, folder / "model.safetensors")
        assert find_weights(folder).shapes[SPANS.variable] == [2, 16]


@pytest.mark.parametrize("architectures", [None, [], ["BertForTokenClassification", "BertForMultipleChoice"]])
def test_whose_head_a_classifier_is_must_be_said(data, tmp_path, architectures):
    """A model for tokens would else be read, and exported, as one for texts."""
    folder = write_classifier(tmp_path / "model", data, NLI)
    changed_json(folder / "config.json", architectures=architectures)
    classes = " or ".join(architectures or ["BertForSequenceClassification or .*"])
    words = f"config.json: architectures must say .* classifier.weight is the head; put .* there: {classes}"
    refused(words, find_weights, folder)


def test_after_training_from_a_classifier_the_run_predicts_with_its_own(data, tmp_path):
    """With the same flags, as Google's run_classifier.py does; in another folder the classifier itself predicts."""
    folder = write_classifier(tmp_path / "model", data, ("no", "yes"), answer=0)
    rows = [(text, "yes" if number else "maybe") for number, text in enumerate(GOOD)]
    files = {use: [write_own(tmp_path / f"{use}.jsonl", *rows)] for use in (TRAIN, PREDICT)}
    once = settings(num_train_epochs=2.0)
    own = custom_task("text", "kind", False)
    carry_out(data, tmp_path / "run", folder, own, {TRAIN: files[TRAIN]}, training=once)
    for run, labels in (("run", ["maybe", "yes"]), ("other", ["no", "yes"])):
        carry_out(data, tmp_path / run, folder, own, {PREDICT: files[PREDICT]})
        assert predictions(tmp_path / run)[0][2:] == labels
