"""--eval_steps and --class_weights in fine-tuning: scores, the best weights, kills, two ranks, what is refused."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.pretrained import from_pretrained
from bert_tf.run.checkpoint import PREFIX
from bert_tf.run.evaluations import EVALUATIONS
from bert_tf.tasks.glue.classes import make_class_weights
from bert_tf.tasks.glue.settings import BALANCED
from tests import choice_data, entity_data, glue_data, processes
from tests.jobs import command_of, events, killed_and_finished, scores_in, weights_in
from tests.preparation import write
from tests.refusals import refused
from tests.squad_data import GOLDEN, write_squad

# Of each program: its files and settings, and the main score.
PROGRAMS = {
    "run_classifier.py": (dict(task_name="CoLA", data_dir="{}", max_seq_length=8), "matthews_correlation"),
    "run_ner.py": (dict(train_file="{}/train.tsv", predict_file="{}/test.tsv", max_seq_length=10), "f1"),
    "run_swag.py": (dict(train_file="{}/train.csv", predict_file="{}/val.csv", max_seq_length=18), "accuracy"),
    "run_squad.py": (dict(train_file="{}/squad.json", predict_file="{}/squad.json", **GOLDEN["settings"]), "f1"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders = {program: tmp_path_factory.mktemp("data") for program in PROGRAMS}
    glue_data.write_cola(glue_data.write_model(folders["run_classifier.py"]))
    folder = entity_data.write_model(folders["run_ner.py"])
    write(folder / "train.tsv", entity_data.columns(entity_data.SENTENCES * 4))
    write(folder / "test.tsv", entity_data.columns())
    folder = choice_data.write_model(folders["run_swag.py"])
    for name, seed, number in (("train", 1, 64), ("val", 2, 32)):
        write(folder / f"{name}.csv", choice_data.swag(choice_data.make_questions(seed, number)))
    write_squad(folders["run_squad.py"], version_2=False)
    return folders


def command(folders, program, model_dir, **changes):
    flags = {name: str(value).format(folders[program]) for name, value in PROGRAMS[program][0].items()}
    common = dict(num_train_epochs=2.0, eval_steps="epoch", keep_checkpoints=1)
    return command_of(program, folders[program], model_dir, **{**flags, **common, **changes})


def evaluations_in(model_dir):
    stored = json.loads((model_dir / "checkpoints" / EVALUATIONS).read_text())
    return stored["score"], {int(update): score for update, score in stored["by_update"].items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "program, write, training, last, least",
    [
        ("run_classifier.py", glue_data.write_model, dict(learning_rate=2e-3, num_train_epochs=30), 120, 1.0),
        ("run_ner.py", entity_data.write_model, dict(learning_rate=3e-3, num_train_epochs=30), 120, 1.0),
        ("run_swag.py", choice_data.write_model, dict(learning_rate=3e-3, num_train_epochs=4), 64, 1.0),
        ("run_squad.py", write_squad, dict(learning_rate=3e-3, num_train_epochs=50, train_batch_size=5), 250, 80),
    ],
)
def test_every_task_is_learned_and_its_best_weights_used(folders, tmp_path, program, write, training, last, least):
    """By heart: a larger model than that of the other tests. Learning, decoding and scoring together, as a program."""
    (tmp_path / "model").mkdir()
    larger = write(tmp_path / "model", hidden_size=64, dropout=0.0) / "bert_config.json"
    shown = dict(eval_steps=(last + 1) // 2, save_checkpoint_steps=100, display_loss_steps=30)
    done = processes.run(command(folders, program, tmp_path, bert_config_file=larger, **training, **shown))
    assert done.returncode == 0, done.stdout + done.stderr
    (name, scores), main_score = evaluations_in(tmp_path), PROGRAMS[program][1]
    assert name == main_score and list(scores) == [(last + 1) // 2, last]
    best = max(scores, key=scores.get)
    assert scores[best] >= least
    assert events(tmp_path, "evaluation")[-1]["update"] == scores_in(tmp_path)["global_step"] == best
    assert scores_in(tmp_path)[main_score] == pytest.approx(scores[best], abs=1e-4)
    assert find_weights(tmp_path).source == str(tmp_path / f"checkpoints/ckpt-{best:08d}" / PREFIX)
    kept = sorted(path.name for path in tmp_path.glob("checkpoints/ckpt-*"))
    assert kept == [f"ckpt-{update:08d}" for update in sorted({best, last})]


# So small a rate that no prediction changes: all scores are the same, and the first is the best.
STEADY = dict(num_train_epochs=25, save_checkpoint_steps=10, eval_steps=15, learning_rate=1e-9)


@pytest.mark.slow
def test_killed_and_started_again_it_ends_with_the_same_bits_which_are_those_without_scores(folders, tmp_path):
    def run(name, **changes):
        return command(folders, "run_classifier.py", tmp_path / name, **{**STEADY, **changes})

    for started in (run("whole"), run("unscored", eval_steps=None)):
        assert processes.run(started).returncode == 0
    done = killed_and_finished(run("killed"), tmp_path / "killed")
    assert done.returncode == 0 and "going on from" in done.stdout, done.stderr
    assert evaluations_in(tmp_path / "killed") == evaluations_in(tmp_path / "whole")
    assert list(evaluations_in(tmp_path / "whole")[1]) == [15, 30, 45, 60, 75, 90, 100]
    for update in (15, 100):
        assert weights_in(tmp_path / "killed", update) == weights_in(tmp_path / "whole", update)
    assert weights_in(tmp_path / "unscored", 100) == weights_in(tmp_path / "whole", 100)
    for name in ("eval_results.txt", f"checkpoints/{EVALUATIONS}"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    # Predictions, exports and from_pretrained take the best.
    best = find_weights(tmp_path / "whole")
    assert "ckpt-00000015" in best.source
    predicted = processes.run(run("whole", mode="predict", eval_steps=None))
    assert f"predicting with {best.source}" in predicted.stdout, predicted.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pooler = from_pretrained(tmp_path / "whole").encoder.pooler.variables[0]
    np.testing.assert_array_equal(pooler.numpy(), best.read(pooler.name.split(":")[0]))


@pytest.mark.slow
def test_two_ranks_score_and_stop_as_one(folders, tmp_path):
    scored = dict(num_train_epochs=12, early_stopping=2, eval_steps=4)
    one = processes.run(command(folders, "run_swag.py", tmp_path / "one", **scored, learning_rate=2e-9))
    both = dict(use_horovod="true", num_accumulation_steps=1, learning_rate=1e-9)
    two = processes.run_two_ranks(command(folders, "run_swag.py", tmp_path / "two", **scored, **both))
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    assert evaluations_in(tmp_path / "two") == evaluations_in(tmp_path / "one")
    assert [events(tmp_path / name, "end")[-1]["update"] for name in ("one", "two")] == [12, 12]
    assert scores_in(tmp_path / "two") == pytest.approx(scores_in(tmp_path / "one"), abs=1e-5)


# --- Class weights -----------------------------------------------------------------------------------


def test_balanced_weights_and_those_of_a_file(tmp_path):
    targets, file = np.array([0] * 6 + [2] * 3), tmp_path / "weights.json"  # none is of the class 1
    weights_C = make_class_weights(BALANCED, "abc", targets)
    np.testing.assert_allclose(weights_C[[0, 2]], [9 / (2 * 6), 9 / (2 * 3)])  # n / (classes x count), as scikit-learn
    assert weights_C[targets].mean() == 1
    file.write_text('{"c": 3, "a": 1, "b": 0.5}')
    assert make_class_weights(str(file), "abc", targets).tolist() == [1, 0.5, 3]
    for wrong in ("", ', "c": 1, "d": 1', ', "c": 0', ', "c": "1"'):
        file.write_text(text := '{"a": 1, "b": 1' + wrong + "}")
        message = f"--class_weights={file} holds {text}; it must be balanced, or a JSON object .* a, b, c"
        refused(message, make_class_weights, str(file), "abc", targets)


@pytest.mark.slow
def test_weights_change_the_loss_and_are_fixed_in_a_run(folders, tmp_path):
    file = tmp_path / "weights.json"
    changes = dict(num_train_epochs=1.0, eval_steps=None, class_weights=file)
    weighted = command(folders, "run_classifier.py", tmp_path / "run", **changes)
    file.write_text('{"0": 1, "1": 20}')
    done = processes.run(weighted)
    assert done.returncode == 0, done.stderr
    assert events(tmp_path / "run", "train")[0]["total_loss"] > 2, "without weights it is near ln 2"
    file.write_text('{"0": 1, "1": 2}')
    done = processes.run(weighted)
    assert done.returncode == 2 and "class_weights" in done.stderr
