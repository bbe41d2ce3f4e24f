"""Pre-training without next sentence (--no_next_sentence): the update, and run_pretraining.py with single segments."""

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
from tests.jobs import events
from tests.pretraining_data import TINY, write_dataset
from tests.training import test_packed_update
from tests.training.test_packed_update import WITHOUT_DROPOUT, assert_same_training
from tests.training.test_train_step import WORDS, assert_same_weights, train
from tests.training.test_training import run

SINGLE = dict(no_next_sentence=True)


@pytest.mark.computes
def test_an_update_does_not_know_its_split():
    """With dropout on."""
    results, expected = train(1, 8, num_updates=1, kind=WORDS)
    assert results[0].metrics.shape == [2]
    assert_same_weights(train(4, 2, num_updates=1, kind=WORDS)[1], expected)


@pytest.mark.computes
def test_a_packed_update_is_that_of_the_instances_unpacked():
    assert_same_training(
        *(test_packed_update.train(4, 2, packed, config=WITHOUT_DROPOUT, kind=WORDS) for packed in (True, False))
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Token files without single segments, which the first run draws."""
    return write_dataset(tmp_path_factory.mktemp("tokens"), data_format="tokens")


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("finished")
    run(dataset, model_dir, dropout=0, **SINGLE)
    return model_dir


def test_nothing_is_learned_or_said_of_next_sentences(finished, tmp_path):
    evaluation = dict(line.split(" = ") for line in (finished / "eval_results.txt").read_text().splitlines())
    assert list(evaluation) == ["masked_lm_accuracy", "masked_lm_loss", "loss", "global_step"]
    assert evaluation["loss"] == evaluation["masked_lm_loss"]
    logged = events(finished, "train")
    assert all(record["total_loss"] == record["mlm_loss"] for record in logged)
    assert logged[0]["mlm_loss"] == pytest.approx(math.log(TINY.vocab_size), abs=0.1)
    names = open_checkpoint(finished / "checkpoints/ckpt-00000020/bert_model.ckpt").shapes
    assert not [name for name in [*names, *logged[0]] if "pooler" in name or "seq_" in name or "nsp" in name]
    config = json.loads((finished / "config.json").read_text())
    work = Workload(TINY, 16, 3, config["settings"]["xla_scope"], no_next_sentence=True)
    assert config["planned"]["num_parameters"] == work.num_parameters
    assert config["data"]["pairs"]["single_segments"] and config["identity"]["no_next_sentence"]
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
    rates = [
        (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob)
        for dropout in (0.0, None)
        for model in [PretrainingTask(True, dropout).make_model(TINY, make_backend("off"), 1)]
    ]
    assert rates == [(0, 0), (TINY.hidden_dropout_prob, TINY.attention_probs_dropout_prob)]


def test_it_belongs_to_the_run_and_is_none_of_records(finished, dataset, tmp_path):
    refused = run(dataset, finished, expect=2)
    assert "no_next_sentence: True there, None now" in refused.stderr
    records = write_dataset(tmp_path / "records")
    refused = run(records, tmp_path / "run", expect=2, bert_config_file=dataset / "bert_config.json", **SINGLE)
    assert "--no_next_sentence=True: the records of --input_files=" in refused.stderr
    assert not (tmp_path / "run" / "config.json").exists()
