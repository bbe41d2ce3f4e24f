"""From nothing to answers with the programs and launchers that people type, on the sample."""

import json
import math
import sys

import pytest

from tests.jobs import ROOT, events
from tests.processes import answer

RECORDS = "create_tfrecord_files --vocab_file {1} --dupe_factor 1"
VOCAB_SIZE = 1500


def run(command, *paths, **environment):
    """`command` is split at spaces; `paths` take the place of its {}."""
    words = [part.format(*paths) for part in command.split()]
    done = answer(*words, cwd=ROOT, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", **environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.slow
def test_sample_from_raw_text_to_scores(tmp_path):
    data, results = tmp_path / "data", tmp_path / "results"
    for arguments in (
        "download",
        "text_formatting",
        "sharding --n_training_shards 8 --n_test_shards 2 --fraction_test_set 0.02",
        f"create_vocab --vocab_size {VOCAB_SIZE} --vocab_file {{1}}",
        f"{RECORDS} --max_seq_length 128 --max_predictions_per_seq 20",
        f"{RECORDS} --max_seq_length 512 --max_predictions_per_seq 80",
    ):
        prepare = "{0} data/bertPrep.py --dataset sample --n_processes 2 --action " + arguments
        run(prepare, sys.executable, data / "vocab.txt", BERT_PREP_WORKING_DIR=str(data))

    places = {"BERT_PREP_WORKING_DIR": str(data), "RESULTS_DIR": str(results / "pretraining")}
    run("bash scripts/run_pretraining_lamb.sh 32 8 8 1e-2 5e-3 fp32 false 1 3 1 30 10 1 1 tiny", **places)
    phase_1, phase_2 = (results / "pretraining" / name for name in ("phase_1", "phase_2"))
    losses = [record["mlm_loss"] for record in events(phase_1, "train")]
    assert losses[0] == pytest.approx(math.log(VOCAB_SIZE), rel=0.1) and losses[-1] < losses[0] - 0.3
    assert "global_step = 27" in (phase_1 / "eval_results.txt").read_text()
    assert "global_step = 12" in (phase_2 / "eval_results.txt").read_text()

    questions = data / "download" / "sample"
    places = {"SQUAD_DIR": str(questions), "RESULTS_DIR": str(results / "squad")}
    output = run("bash scripts/run_squad.sh 16 3e-4 fp32 true 1 128 64 tiny 1.1 {} 0.2", phase_2, **places)
    assert '"exact_match"' in output and '"f1"' in output
    (predictions,) = results.glob("squad/**/predictions.json")
    asked = json.loads((questions / "dev-v1.1.json").read_text())["data"]
    identities = {question["id"] for entry in asked for part in entry["paragraphs"] for question in part["qas"]}
    assert set(json.loads(predictions.read_text())) == identities
