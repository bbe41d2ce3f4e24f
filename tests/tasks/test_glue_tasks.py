"""The registry: names, files, columns of one's own."""

import dataclasses

import pytest

from bert_tf.tasks.glue.metrics import METRICS
from bert_tf.tasks.glue.tasks import EVAL, PREDICT, TASKS, TRAIN, custom_task, find_files, find_task
from tests.glue_data import write_lines
from tests.refusals import refused

OWN = custom_task("a", "b", False)


def test_names_in_any_case_and_the_nearest_for_others():
    assert [find_task(name).name for name in ("cola", "MRPC", "Sst-2", "stsb")] == ["CoLA", "MRPC", "SST-2", "STS-B"]
    refused("--task_name=MRCP: must be one of CoLA, .*, custom; did you mean MRPC?", find_task, "MRCP")
    refused("WNLI, ChemProt, custom$", find_task, "xyz")
    for task in map(find_task, TASKS):
        assert set(task.metrics) <= set(METRICS) and task.num_classes == (len(task.labels) or 1)


def test_files_of_a_folder_or_as_given(tmp_path):
    mrpc, mnli, cola = map(find_task, ("MRPC", "MNLI", "CoLA"))
    raw = write_lines(tmp_path / "msr_paraphrase_train.txt", "x")
    assert find_files(mrpc, TRAIN, str(tmp_path), None) == {TRAIN: [raw]}
    processed = write_lines(tmp_path / "train.tsv", "x")
    assert find_files(mrpc, TRAIN, str(tmp_path), None) == {TRAIN: [processed]}
    assert find_files(cola, TRAIN, None, str(raw)) == {TRAIN: [raw]}
    parts = {f"eval_{part}": [write_lines(tmp_path / f"dev_{part}.tsv", "x")] for part in ("matched", "mismatched")}
    assert find_files(mnli, EVAL, str(tmp_path), None) == parts
    folder, absent = str(tmp_path / "sub"), str(tmp_path / "absent.tsv")
    for message, *arguments in (
        ("has no test_matched.tsv; name a file with --predict_file, .* MNLI", mnli, PREDICT, str(tmp_path), None),
        ("has no dev.tsv; .* --action text_formatting --dataset ChemProt", find_task("chemprot"), EVAL, folder, None),
        ("--data_dir, or --eval_file, is required", cola, EVAL, None, None),
        ("absent.tsv does not exist; name a file with --train_file", cola, TRAIN, None, absent),
        ("is not a file", cola, TRAIN, None, str(tmp_path)),
        ("has no train.tsv or train.csv or train.jsonl; .*another folder$", OWN, TRAIN, folder, None),
    ):
        refused(message, find_files, *arguments)


@pytest.mark.parametrize(
    "columns, label", [(None, "c"), ("", "c"), ("a,", "c"), ("a,b,d", "c"), ("a,a", "c"), ("a,c", "c")]
)
def test_columns_of_ones_own_must_be_named(columns, label):
    refused("needs the name of one column, or of two", custom_task, columns, label, False)


def test_labels_without_a_score_are_some_of_the_labels():
    task = dataclasses.replace(custom_task("a", "b", False, "none,other"), labels=("none", "other", "yes"))
    task.check_unscored()
    assert task.no_score_for == ("none", "other") and find_task("ChemProt").no_score_for == ("false",)
    for labels in (("none", "other"), ("none", "yes")):
        other = dataclasses.replace(task, labels=labels)
        refused(f"=none,other: must be some labels, not all: {', '.join(labels)}$", other.check_unscored)
    refused("--no_score_for=none is for labels, not for --regression", custom_task, "a", "b", True, "none")
