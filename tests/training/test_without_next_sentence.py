"""run_pretraining.py without next sentence (--no_next_sentence), with single segments."""

import json
import math

import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.contrib.replay.replay import replay
from bert_tf.interchange.export import export
from bert_tf.memory.plan import Workload
from bert_tf.model.backends import make_backend
from bert_tf.run.variables import open_checkpoint
from bert_tf.tasks.pretraining.task import PretrainingTask
from tests.jobs import events, scores_in
from tests.pretraining_data import TINY, write_dataset
from tests.training.test_training import run

SINGLE = dict(no_next_sentence=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Token files without single segments, which the first run draws."""
    return write_dataset(tmp_path_factory.mktemp("tokens"), data_format="tokens")


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory):
    """With LARS and gradients that would travel in float16, too."""
    model_dir = tmp_path_factory.mktemp("finished")
    run(dataset, model_dir, dropout=0, optimizer_type="lars", allreduce_compression="fp16", **SINGLE)
    return model_dir


def test_nothing_is_learned_or_said_of_next_sentences(finished, tmp_path):
    evaluation = scores_in(finished)
    assert list(evaluation) == ["masked_lm_accuracy", "masked_lm_loss", "loss", "global_step"]
    assert evaluation["loss"] == evaluation["masked_lm_loss"]
    logged = events(finished, "train")
    assert all(record["total_loss"] == record["mlm_loss"] for record in logged)
    assert logged[0]["mlm_loss"] == pytest.approx(math.log(TINY.vocab_size), abs=0.1)
    assert logged[0]["loss_scaler"] == 2.0**15, "half precision gradients need a scale"
    names = open_checkpoint(finished / "checkpoints/ckpt-00000020/bert_model.ckpt").shapes
    assert not [name for name in [*names, *logged[0]] if "pooler" in name or "seq_" in name or "nsp" in name]
    config = json.loads((finished / "config.json").read_text())
    work = Workload(TINY, 16, 3, config["settings"]["xla_scope"], no_next_sentence=True)
    assert config["planned"]["num_parameters"] == work.num_parameters
    assert config["data"]["pairs"]["single_segments"] and config["identity"]["no_next_sentence"]
    assert (config["identity"]["optimizer_type"], config["identity"]["allreduce_compression"]) == ("lars", "fp16")
    # The run's own record says what kind of run it is.
    _, (attempt,) = replay(finished, 20)
    assert attempt.is_finite and set(attempt.figures) >= {"mlm_loss"} and "nsp_loss" not in attempt.figures
    for folder, architecture in ((finished, "BertForMaskedLM"), (finished / "pretrained", "BertModel")):
        export(str(folder), tmp_path / architecture)
        exported = json.loads((tmp_path / architecture / "config.json").read_text())
        assert exported["architectures"] == [architecture]


def test_dropout_of_the_training_alone(finished):
    """The model that it leaves has its own rates, for fine-tuning."""
    assert BertConfig.from_json_file(finished / "pretrained" / "bert_config.json") == TINY
    assert json.loads((finished / "config.json").read_text())["identity"]["dropout"] == 0
    models = (PretrainingTask(True, rate).make_model(TINY, make_backend("off"), 1) for rate in (0.0, None))
    without, usual = (model.config for model in models)
    assert (without.hidden_dropout_prob, without.attention_probs_dropout_prob) == (0, 0) and usual == TINY


def test_it_belongs_to_the_run_and_is_none_of_records(finished, dataset, tmp_path):
    refused = run(dataset, finished, expect=2)
    assert "no_next_sentence: True there, None now" in refused.stderr
    records = write_dataset(tmp_path / "records")
    refused = run(records, tmp_path / "run", expect=2, bert_config_file=dataset / "bert_config.json", **SINGLE)
    assert "--no_next_sentence=True: the records of --input_files=" in refused.stderr
    assert not (tmp_path / "run" / "config.json").exists()
