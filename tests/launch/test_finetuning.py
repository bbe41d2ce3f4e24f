"""Launchers of fine-tuning: which programs they would start, and with which flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.launch.helpers import flags_of, launch
from tests.refusals import refused

SQUAD = "4 2e-5 fp32 false 1 128 64 tiny 2.0 {} 1.5"
GLUE = "CoLA 4 2e-5 fp32 false 1 16 64 tiny 1.5 0.2 {}"
BIOBERT = "{} 4 2e-5 true fp32 false 1 16 tiny 6 1.5"


# Of which the launchers only ask whether they are there.
FILES = """
train-v2.0.json dev-v2.0.json glue/CoLA/train.tsv glue/CoLA/dev.tsv glue/CoLA/test.tsv BC5CDR/chem/train.tsv
BC5CDR/chem/devel.tsv BC5CDR/chem/test.tsv ChemProt/train.tsv ChemProt/dev.tsv ChemProt/test.tsv
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The tasks' files, and a checkpoint of the tiny model, by their names, in `data` and in `tiny`."""
    data = tmp_path / "data"
    for file in (*(data / name for name in FILES.split()), tmp_path / "tiny/bert_model.ckpt.index"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (data / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *map(str, range(45))]) + "\n")
    (tmp_path / "tiny/bert_config.json").write_text(BertConfig.preset("tiny", 50).to_json())
    places = {"RESULTS_DIR": tmp_path / "results", "SQUAD_DIR": data, "GLUE_DIR": data / "glue", "BIOBERT_DIR": data}
    for name, value in {**places, "DEVICE": "cpu"}.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path


def expected(model_dir, **flags):
    common = dict(train_batch_size=4, learning_rate=2e-5, num_train_epochs=1.5, max_seq_length=16, precision="fp32")
    places = dict(model_dir=model_dir, dllog_path=model_dir / "dllogger.json")
    values = {**common, **places, "enable_xla": "false", "device": "cpu", **flags}
    return {name: str(value) for name, value in values.items()}


OWN_FLAGS = {
    "squad": "predict_batch_size=4 max_seq_length=128 doc_stride=64 version_2_with_negative=true "
    "train_file=DATA/train-v2.0.json predict_file=DATA/dev-v2.0.json",
    "classifier": "predict_batch_size=4 warmup_proportion=0.2 task_name=CoLA data_dir=DATA/glue/CoLA",
    "ner": "predict_batch_size=6 do_lower_case=false predict_file=DATA/BC5CDR/chem/test.tsv "
    "train_file=DATA/BC5CDR/chem/train.tsv,DATA/BC5CDR/chem/devel.tsv",
}


@pytest.mark.parametrize(
    "name, typed, program, title, place",
    [
        ("squad", SQUAD, "squad", "SQuAD, train_and_predict", "squad"),
        ("glue", GLUE, "classifier", "CoLA, train_and_eval", "glue"),
        ("biobert/ner_bc5cdr-chem", BIOBERT, "ner", "BC5CDR-chem, train_and_predict", "entities"),
    ],
)
def test_a_training(folder, started, capsys, name, typed, program, title, place):
    assert launch(name, typed.format(folder / "tiny")) == 0
    [(said, command, num_ranks)], results = started, folder / "results" / place
    assert (said, num_ranks, command[:2]) == (title, 1, ["-m", f"bert_tf.programs.{program}"])
    own = OWN_FLAGS[program].replace("DATA", str(folder / "data"))
    flags = dict(pair.split("=", 1) for pair in own.split())
    assert flags_of(command) == expected(results, init_checkpoint=folder / "tiny", mode=title.split()[-1], **flags)
    shown = capsys.readouterr().out
    assert "global_batch_size = 4\n" in shown and f"curves: {results}/report.html" in shown


def test_relations_are_trained_and_scored_on_one_file_then_scored_and_labelled_on_another(folder, started, capsys):
    assert launch("biobert/rel_chemprot", BIOBERT.format(folder / "tiny")) == 0
    assert [what for what, *_ in started] == [f"ChemProt, {mode}" for mode in ("train_and_eval", "eval", "predict")]
    data, results = folder / "data/ChemProt", folder / "results"
    common = dict(task_name="ChemProt", data_dir=data, do_lower_case="false", predict_batch_size=6)
    start = {"init_checkpoint": folder / "tiny", "mode": "train_and_eval"}
    tested = {**common, "init_checkpoint": results / "relations"}
    assert [flags_of(command) for _, command, _ in started] == [
        expected(results / "relations", **common, **start),
        expected(results / "test", **tested, mode="eval", eval_file=data / "test.tsv"),
        expected(results / "test", **tested, mode="predict"),
    ]
    assert f"scores of test.tsv: {results}/test/eval_results.txt" in capsys.readouterr().out


def test_inference(folder, started, capsys):
    """GLUE's scores the development file, and predicts the test file if there is one."""
    checkpoint = folder / "tiny/bert_model.ckpt"
    assert launch("squad_inference", f"{checkpoint} 4 fp32 false 128 64 tiny 2.0") == 0
    flags = flags_of(started[0][1])
    assert (flags["mode"], flags["model_dir"]) == ("predict", str(folder / "results")) and "train_file" not in flags
    assert (flags["init_checkpoint"], flags["predict_batch_size"]) == (str(checkpoint), "4")
    for expected_modes in (["eval", "predict"], ["eval"]):
        started.clear()
        assert launch("glue_inference", f"cola {checkpoint} 8 fp32 false 16 64 tiny") == 0
        assert [flags_of(command)["mode"] for _, command, _ in started] == expected_modes
        (folder / "data/glue/CoLA/test.tsv").unlink(missing_ok=True)
    assert "nothing is predicted, only scored: " in capsys.readouterr().out


def test_each_checkpoint_and_version_answers_into_a_folder_of_its_own(folder, capsys, monkeypatch):
    monkeypatch.delenv("RESULTS_DIR")
    monkeypatch.setenv("DRY_RUN", "1")
    for name, version in (("tiny", "2.0"), ("tiny", "2.0"), ("tiny/bert_model.ckpt", "2.0"), ("tiny", "1.1")):
        launch("squad_inference", f"{folder / name} 4 fp32 false 128 64 tiny {version}")
    first, same, *others = re.findall("results_dir = .*_bs4_(.*)_(.*)", capsys.readouterr().out)
    assert first == same and [name for name, _ in (first, *others)] == ["tiny", "bert_model.ckpt", "tiny"]
    assert len({first, *others}) == 3


def test_a_folder_of_hugging_face_is_a_checkpoint(folder, started):
    theirs = folder / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text('{"num_hidden_layers": 2, "hidden_size": 128}')
    assert launch("squad", SQUAD.format(theirs)) == 0
    assert flags_of(started[0][1])["init_checkpoint"] == str(theirs)
    message = "bert_model .* is base, .* 12 .* 768, but .*config.json has .* 2 .* 128; .* the program itself"
    refused(message, launch, "squad", SQUAD.replace("tiny", "base").format(theirs))
    (theirs / "config.json").write_text('{"n_layers": 6, "dim": 768}')
    refused("config.json has num_hidden_layers None", launch, "squad", SQUAD.format(theirs))
    (theirs / "config.json").unlink()
    message = "bert_config.json cannot be read .*; name the folder .* that is phase_2"
    refused(message, launch, "squad", SQUAD.format(theirs))


def test_random_weights_need_a_vocabulary(folder, started, monkeypatch):
    refused("VOCAB_FILE", launch, "squad", SQUAD.format("none"))
    monkeypatch.setenv("VOCAB_FILE", str(folder / "data/vocab.txt"))
    for _ in range(2):  # the second time it replaces its own file
        assert launch("squad", SQUAD.format("none")) == 0
    flags = flags_of(started[0][1])
    assert "init_checkpoint" not in flags
    assert BertConfig.from_json_file(Path(flags["bert_config_file"])) == BertConfig.preset("tiny", 50)
    Path(flags["bert_config_file"]).write_text('{"hidden_size": 128, "directionality": "bidi"}')
    refused("bert_config.json is a file that this program has not written", launch, "squad", SQUAD.format("none"))
