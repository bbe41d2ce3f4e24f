"""The model card tells what the model is, and nothing of the machine."""

from __future__ import annotations

import json
import re

import pytest

from bert_tf.interchange.export import data_of, write_card
from bert_tf.text.basic_tokenizer import Casing
from tests.exported import CONFIG, ENCODER_ONLY, make_variables, write_run
from tests.refusals import refused


@pytest.mark.parametrize(
    ("architecture", "call"),
    [
        ("BertForPreTraining", '"A sentence with a [MASK] in it."'),
        ("BertForQuestionAnswering", "AutoModelForQuestionAnswering.from_pretrained"),
        ("BertForSequenceClassification", 'pipeline("text-classification"'),
        ("BertModel", 'pipeline("feature-extraction"'),
    ],
)
def test_what_it_is_and_how_to_use_it(architecture, call):
    casing, data = Casing(True, False), "sample" if architecture == "BertModel" else ""
    text = write_card("my-model", architecture, CONFIG, casing=casing, num_weights=12345, data=data)
    assert "# my-model\n" in text and f"({architecture}): 2 layers of width 16" in text and "12,345 weights" in text
    assert "lower-cased, accents kept, up to 32 tokens" in text and ("trained on sample." in text) == bool(data)
    assert call in text and text.endswith("\n") and not re.search(r"\{[{%]|None|Undefined", text)
    compile(text.partition("```python\n")[2].partition("```")[0], "card", "exec")


def test_the_data_without_its_path(tmp_path):
    checkpoint = write_run(tmp_path / "run", make_variables(ENCODER_ONLY)[:1])
    config_file = tmp_path / "run/config.json"
    for data, expected in (
        ({"dataset": "sample", "first_file": "/x/secret/f"}, "sample"),
        ({"first_file": "/x/secret/train-v1.1.json"}, "train-v1.1.json"),
        ({}, ""),
        ("", ""),
    ):
        config_file.write_text(json.dumps({"identity": {}, "data": data}))
        assert data_of(checkpoint) == expected
    config_file.unlink()
    refused("no config.json", data_of, checkpoint)
    assert data_of(tmp_path) == ""
