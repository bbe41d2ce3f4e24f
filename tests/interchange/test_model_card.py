"""The model card tells what the runs recorded, and nothing of the machine."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from bert_tf.base.errors import UserError
from bert_tf.interchange.model_card import read_history, write_card
from tests.exported import CONFIG, ENCODER_ONLY, make_variables, write_run


def card(runs, architecture="BertForPreTraining"):
    return write_card("my-model", architecture, CONFIG, do_lower_case=True, num_weights=12345, runs=runs)


@pytest.fixture()
def phase_2(tmp_path):
    """The checkpoint of a run that began from another one."""
    variables = make_variables(ENCODER_ONLY)[:1]
    write_run(tmp_path / "runs" / "phase_1", variables, update=30, init_checkpoint="/x/secret/uncased/bert_model.ckpt")
    return write_run(
        tmp_path / "runs" / "phase_2", variables, update=20, init_checkpoint=str(tmp_path / "runs" / "phase_1")
    )


def test_history_and_figures(phase_2):
    runs = read_history(phase_2)
    assert [run.folder.name for run in runs] == ["phase_1", "phase_2"]
    text = card(runs)
    for line in (
        "pipeline_tag: fill-mask",
        "# my-model",
        "### phase_1",
        "### phase_2",
        "| documents | 5,000 |",
        "| tokens | 874,695 |",
        "| seed | 12345 |",
        "| sequences in an update | 64 |",
        "| updates | 40 |",
        "| updates done | 30 |",
        "| updates done | 20 |",
        "| masked lm loss, held out | 5.5 |",
    ):
        assert line in text.splitlines(), line
    assert "those of uncased at first" in text
    assert "secret" not in text, "paths of the machine stay out"
    assert "docs/DEVIATIONS.md" in text and text.endswith("\n")
    assert not re.search(r"\{[{%]|None|Undefined", text)


def test_only_what_led_to_the_checkpoint(phase_2):
    first, second = read_history(phase_2)
    assert (first.last_update, second.last_update) == (30, 20)
    text = card([second])
    assert "6.125" not in text
    assert "| updates done | 20 |" in text and "| masked lm loss, held out | 7.5 |" in text and "| event" not in text


def test_runs_that_were_moved_together_are_found(phase_2, tmp_path):
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    moved = tmp_path / "moved" / "phase_2" / "checkpoints" / phase_2.name
    assert [run.folder.name for run in read_history(moved)] == ["phase_1", "phase_2"]
    shutil.rmtree(tmp_path / "moved" / "phase_1")
    assert [run.folder.name for run in read_history(moved)] == ["phase_2"]
    assert "those of phase_1 at first" in card(read_history(moved))


def test_a_run_that_names_itself(tmp_path):
    path = write_run(tmp_path / "run", make_variables(ENCODER_ONLY)[:1], init_checkpoint=str(tmp_path / "run"))
    assert len(read_history(path)) == 1


def test_without_a_run(tmp_path):
    assert read_history(tmp_path / "alone") == []
    text = card([], "BertModel")
    assert "pipeline_tag: feature-extraction" in text and "without a record of their training" in text
    assert "###" not in text


def test_damage_and_strange_facts(phase_2):
    config_file = phase_2.parent.parent / "config.json"
    stored = json.loads(config_file.read_text())
    for data in ([1], {"counts": [1]}):
        config_file.write_text(json.dumps({**stored, "data": data}))
        assert "| seed | 12345 |" in card(read_history(phase_2))
    runs = read_history(phase_2)
    runs[0].config["identity"]["init_checkpoint"] = {"a": 1}  # no path
    assert "The weights were random at first." in card(runs)
    config_file.unlink()
    with pytest.raises(UserError, match="no config.json"):
        read_history(phase_2)


@pytest.mark.parametrize(
    ("architecture", "call"),
    [
        ("BertForPreTraining", '"A sentence with a [MASK] in it."'),
        ("BertForQuestionAnswering", "AutoModelForQuestionAnswering.from_pretrained"),
        ("BertForSequenceClassification", 'pipeline("text-classification"'),
        ("BertModel", 'pipeline("feature-extraction"'),
    ],
)
def test_use(architecture, call):
    text = card([], architecture)
    assert call in text
    compile(text.partition("```python\n")[2].partition("```")[0], "card", "exec")
