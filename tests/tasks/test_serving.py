"""A trained model in use: exported and predicting from its folder alone, and answering at a prompt."""

import dataclasses
import io
import json
import re
import shutil
import sys

import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.saved_model import load_exported, triton_config
from bert_tf.model.heads import SpanModel
from bert_tf.ranks.workers import Workers
from bert_tf.tasks.job import export_task, predict_with_export
from bert_tf.tasks.prompt import typed_lines
from bert_tf.tasks.squad.settings import DecodeSettings, FeatureSettings, SquadOptions
from bert_tf.tasks.squad.task import SquadTask
from tests import processes
from tests.exported import write_run
from tests.jobs import command_of, from_checkpoint, short_training, typed
from tests.refusals import refusal, refused
from tests.squad_data import GOLDEN, write_squad
from tests.tasks.test_finetuning import job as squad_job


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with questions, and a run folder (random weights answer just as well)."""
    folder = write_squad(tmp_path_factory.mktemp("trained"), hidden_size=32)
    config = BertConfig.from_json_file(folder / "bert_config.json")
    write_run(folder / "run", SpanModel(config, seed=3).variables, update=7, config=config, vocab=GOLDEN["vocab"])
    return folder


def job(folder, model_dir, **changes):
    """One that predicts with the run's model and its files."""
    decoding = DecodeSettings(n_best_size=5, version_2_with_negative=True)
    of_run = from_checkpoint(folder / "run", decoding=decoding, predict_batch_size=8)
    return squad_job(folder, model_dir, **{**of_run, **changes})


@pytest.fixture(scope="module")
def predicted(trained, tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("predicted")
    assert job(trained, model_dir).run()
    return model_dir


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "bert"
    export_task(job(trained, folder.parent / "run"), Workers(), folder, batch_size=None)
    return folder


def answers(model_dir):
    read = {name: json.loads((model_dir / f"{name}.json").read_text()) for name in ("predictions", "null_odds")}
    scores = dict(line.split(" = ") for line in (model_dir / "eval_results.txt").read_text().splitlines())
    return read["predictions"], read["null_odds"], float(scores["f1"])


@pytest.mark.parametrize("batch_size", [None, 5])
def test_an_export_alone_gives_the_same_answers(trained, predicted, exported, tmp_path, batch_size, caplog, capsys):
    folder = exported
    if batch_size:
        folder = tmp_path / "fixed"
        with caplog.at_level("INFO", "absl"):  # as in the programs
            export_task(job(trained, tmp_path / "run"), Workers(), folder, batch_size)
        assert not caplog.text
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    # Neither checkpoint nor vocabulary, and other flags: all comes from the folder.
    other = job(trained, tmp_path / "sm", init_checkpoint=None, decoding=DecodeSettings(), features=FeatureSettings())
    capsys.readouterr()
    predict_with_export(other, Workers(), moved)
    assert f"predicting with {moved}, as its settings.json says" in capsys.readouterr().out
    (texts, odds, f1), (expected_texts, expected_odds, expected_f1) = answers(tmp_path / "sm"), answers(predicted)
    assert texts == expected_texts and f1 == expected_f1
    assert odds == pytest.approx(expected_odds, abs=1e-5)


def test_what_an_export_cannot_follow_is_refused(trained, exported, tmp_path):
    decoding, features = DecodeSettings(null_score_diff_threshold=-2.5), FeatureSettings(48, 13, 10)
    about = job(trained, tmp_path / "run", decoding=decoding, features=features)
    for name in ("null_score_diff_threshold", "doc_stride"):
        words = rf"^--{name}=\S+ has no effect, as .* was exported with {name}="
        refused(words, predict_with_export, about, Workers(), exported, [name])


def test_another_tokenizer_than_the_export_s_is_refused_or_warned_of(trained, exported, tmp_path, capsys):
    for flags in (dict(do_lower_case=False), dict(strip_accents=False)):
        about = job(trained, tmp_path / "run", **flags)
        refused(f"^--{next(iter(flags))}=0: .* says that its text has", predict_with_export, about, Workers(), exported)
    other = tmp_path / "vocab.txt"
    other.write_text((exported / "vocab.txt").read_text().replace("##", "#"))
    predict_with_export(job(trained, tmp_path / "run", vocab_file=str(other)), Workers(), exported)
    assert f"warning: {other}: " in capsys.readouterr().out


def test_a_typed_default_is_refused_as_any_other_value(trained, exported, tmp_path):
    flags = dict(max_seq_length=384, predict_file=trained / "squad.json", model_export_path=exported)
    command = command_of("run_squad.py", trained, tmp_path / "run", mode="sm_predict", **flags)
    ended = processes.run(command)
    assert "error: --max_seq_length=384 has no effect" in refusal(ended)


def test_predicting_with_a_configuration_that_computes_otherwise(trained, tmp_path, capsys):
    """Nothing but the configuration beside the weights shows it: all shapes are the same."""
    config = BertConfig.from_json_file(trained / "bert_config.json")
    other = tmp_path / "bert_config.json"
    other.write_text(dataclasses.replace(config, hidden_act="gelu_exact").to_json())
    assert job(trained, tmp_path / "run", bert_config_file=str(other)).run()
    assert "hidden_act=gelu, the model computes gelu_exact; the configuration beside it" in capsys.readouterr().err
    other.write_text(dataclasses.replace(config, num_attention_heads=2 * config.num_attention_heads).to_json())
    refused("was trained with num_attention_heads", job(trained, tmp_path / "run", bert_config_file=str(other)).run)


def test_signature_and_settings_say_what_a_server_needs(exported):
    model = load_exported(exported, "squad")
    for tensors, names, dtype in (
        (model.signature.structured_input_signature[1], ("input_ids", "input_mask", "segment_ids"), "int32"),
        (model.signature.structured_outputs, ("start_logits", "end_logits"), "float32"),
    ):
        found = {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in tensors.items()}
        assert found == dict.fromkeys(names, ([None, 48], dtype))
    expected = {"doc_stride": 12, "do_lower_case": True, "updates_applied": 7}
    assert {name: model.settings[name] for name in expected} == expected
    assert BertConfig.from_json_file(exported / "bert_config.json").vocab_size == len(GOLDEN["vocab"])


def test_triton_config_has_its_fields(exported):
    """Fields and types as in ModelConfig of Triton's model_config.proto."""
    text = (exported / "config.pbtxt").read_text()
    assert 'platform: "tensorflow_savedmodel"' in text and "max_batch_size: 64" in text
    tensors = re.findall(r'^(input|output) { name: "(\w+)" data_type: (TYPE_\w+) dims: \[([\d, ]+)\] }$', text, re.M)
    assert tensors == [
        *(("input", name, "TYPE_INT32", "48") for name in ("input_ids", "input_mask", "segment_ids")),
        *(("output", name, "TYPE_FP32", "48") for name in ("start_logits", "end_logits")),
    ]
    fixed = triton_config(5, 48, {"logits": [5, 3]})
    assert "max_batch_size: 0" in fixed and "dynamic_batching" not in fixed
    assert 'output { name: "logits" data_type: TYPE_FP32 dims: [5, 3] }' in fixed


def test_nothing_is_overwritten_and_what_is_no_export_is_refused(trained, exported, tmp_path):
    about, before = job(trained, tmp_path / "run"), sorted(exported.rglob("*"))
    refused("already exists; name another folder", export_task, about, Workers(), exported, None)
    assert sorted(exported.rglob("*")) == before
    for folder in (tmp_path / "absent", trained):
        about = job(trained, tmp_path / f"of_{folder.name}", init_checkpoint=None)
        refused("settings.json cannot be read .*; write one with", predict_with_export, about, Workers(), folder)


def other_settings(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes})


@pytest.mark.parametrize(
    "file, change, message",
    [
        ("settings.json", other_settings(task="glue"), "holds a model for 'glue', not for 'squad'"),
        ("settings.json", other_settings(max_query_length="x"), "max_query_length=x: must be a whole number"),
        ("settings.json", other_settings(max_query_length=-1), "json: max_query_length=-1: must be .*; export"),
        ("settings.json", other_settings(max_seq_length=10**30), "json has another max_seq_length than the model"),
        ("settings.json", other_settings(sha256=[1]), "does not hold the sha256 of files by their names"),
        ("vocab.txt", str.upper, r"as it was exported \(vocab.txt does not match its sha256\); copy it again"),
        ("vocab.txt", None, r"is not as it was exported \(.*vocab.txt cannot be read"),
        ("1/model.savedmodel/saved_model.pb", lambda _: "rubbish", "model.savedmodel cannot be read"),
    ],
)
def test_a_damaged_export_is_refused(trained, exported, tmp_path, file, change, message):
    folder = shutil.copytree(exported, tmp_path / "damaged")
    if change:
        (folder / file).write_text(change((folder / file).read_text("utf-8", "replace")), encoding="utf-8")
    else:
        (folder / file).unlink()
    refused(message, predict_with_export, job(trained, tmp_path / "run"), Workers(), folder)


def test_questions_at_a_prompt(trained, predicted, tmp_path, monkeypatch, capsys):
    def ask(*lines, **changes):
        chat = job(trained, tmp_path / "run", predict_file=None, **changes)
        return "\n".join(typed(chat, lines, monkeypatch, capsys))

    paragraph = GOLDEN["squad"]["data"][0]["paragraphs"][0]
    nbest = json.loads((predicted / "nbest_predictions.json").read_text())
    out = ask(*(question["question"] for question in paragraph["qas"][:2]), context=paragraph["context"])
    for question in paragraph["qas"][:2]:
        for entry in nbest[question["id"]][:4]:
            assert f"{entry['probability']:7.3f}  {entry['text'] or '(no answer)'}" in out
    assert out.count("null odds") == 2
    # The text can be typed first; an empty line ends it.
    out = ask("Anna was born", "in Rome.", "", "Where was Anna born?", "", "Who was?")
    assert out.count("null odds") == 2
    refused("^what was typed: the text is empty", ask)


@pytest.mark.parametrize("is_terminal, are_last, read", [(False, True, 3), (False, False, 1), (True, True, 1)])
def test_an_empty_line_ends_what_is_typed_at_a_terminal_or_before_more(monkeypatch, is_terminal, are_last, read):
    lines = io.StringIO("one\n\ntwo\n \nthree")
    lines.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stdin", lines)
    assert list(typed_lines("", are_last=are_last)) == ["one", "two", "three"][:read]


def test_what_is_typed_or_named_must_be_text(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Z\xfcrich is large.\n"), "utf-8"))
    refused("^what was typed is not UTF-8", list, typed_lines(""))
    options = SquadOptions(mode="interactive", context_file=str(tmp_path / "text.txt"))
    for content, message in ((b"\xff", "is not UTF-8"), (b"\n", "^--context_file=.*text.txt: the text is empty")):
        (tmp_path / "text.txt").write_bytes(content)
        refused(message, SquadTask.from_settings, short_training(), options)
