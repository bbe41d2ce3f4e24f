"""--eval_steps and --class_weights in fine-tuning: scores, the best weights, kills, two ranks, what is refused."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.tensorflow import keras
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.pretrained import from_pretrained
from bert_tf.model.backends.plain import Plain
from bert_tf.model.losses import ClassificationObjective, WeightedClassificationObjective
from bert_tf.run.checkpoint import PREFIX
from bert_tf.run.evaluations import EVALUATIONS
from bert_tf.tasks.glue.classes import weights_of
from bert_tf.tasks.glue.settings import BALANCED
from tests import choice_data, entity_data, glue_data, processes
from tests.jobs import command_of, events, killed_and_finished, scores_in, weights_in
from tests.refusals import refused
from tests.squad_data import GOLDEN, write_squad

# Of each program: its files and settings, the main score, and how many rows it trains on.
PROGRAMS = {
    "run_classifier.py": (dict(task_name="CoLA", data_dir="{}", max_seq_length=8), "matthews_correlation", 16),
    "run_ner.py": (dict(train_file="{}/train.tsv", predict_file="{}/test.tsv", max_seq_length=10), "f1", 16),
    "run_swag.py": (dict(train_file="{}/train.csv", predict_file="{}/val.csv", max_seq_length=18), "accuracy", 16),
    "run_squad.py": (
        dict(train_file="{}/squad.json", predict_file="{}/squad.json", version_2_with_negative="true"),
        "f1",
        len(GOLDEN["features"]),
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders = {program: tmp_path_factory.mktemp("data") for program in PROGRAMS}
    glue_data.write_cola(glue_data.write_model(folders["run_classifier.py"]))
    folder = entity_data.write_model(folders["run_ner.py"])
    entity_data.write(folder / "train.tsv", entity_data.columns(entity_data.SENTENCES * 4))
    entity_data.write(folder / "test.tsv", entity_data.columns())
    folder = choice_data.write_model(folders["run_swag.py"])
    for name, seed, number in (("train", 1, 16), ("val", 2, 7)):
        choice_data.write(folder / f"{name}.csv", choice_data.swag(choice_data.make_questions(seed, number)))
    write_squad(folders["run_squad.py"])
    return folders


def command(folders, program, model_dir, **changes):
    settings = {**PROGRAMS[program][0], **(GOLDEN["settings"] if program == "run_squad.py" else {})}
    flags = {name: str(value).format(folders[program]) for name, value in settings.items()}
    common = dict(num_train_epochs=2.0, eval_steps="epoch", keep_checkpoints=1)
    return command_of(program, folders[program], model_dir, **{**flags, **common, **changes})


def evaluations_in(model_dir):
    stored = json.loads((model_dir / "checkpoints" / EVALUATIONS).read_text())
    return stored["score"], {int(update): score for update, score in stored["by_update"].items()}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_task_is_scored_and_its_best_weights_used(folders, tmp_path, program):
    done = processes.run(command(folders, program, tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    _, main_score, num_rows = PROGRAMS[program]
    name, scores = evaluations_in(tmp_path)
    last = 2 * num_rows // 4
    assert name == main_score and list(scores) == [-(-num_rows // 4), last]
    best = max(scores, key=scores.get)
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


@pytest.mark.parametrize(
    "program, changes, message",
    [
        ("run_classifier.py", dict(mode="train"), "--eval_steps needs held-out data: use --mode=train_and"),
        ("run_squad.py", dict(eval="false"), "--eval_steps scores, --noeval does not"),
        ("run_ner.py", dict(predict_file="{}/vocab.txt"), "vocab.txt"),
        ("run_classifier.py", dict(task_name="STS-B", class_weights=BALANCED), "is for labels, STS-B has numbers"),
        ("run_classifier.py", dict(class_weights="{}/vocab.txt"), "vocab.txt is not valid JSON .* a JSON object of"),
    ],
)
def test_what_does_not_fit_is_refused(folders, tmp_path, program, changes, message):
    changes = {name: str(value).format(folders[program]) for name, value in changes.items()}
    if program == "run_classifier.py" and "task_name" in changes:
        glue_data.write_lines(folders[program] / "x.tsv", "index | sentence1 | sentence2 | score", "1 | a | b | 1.0")
        changes |= dict(train_file=folders[program] / "x.tsv", eval_file=folders[program] / "x.tsv")
    done = processes.run(command(folders, program, tmp_path / "run", **changes))
    assert done.returncode == 2 and not (tmp_path / "run/checkpoints").exists(), done.stdout
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.search(message, line), line


# --- Class weights -----------------------------------------------------------------------------------

LOGITS = np.array([[1.0, 0.5, -1.0], [0.2, 0.1, 0.9], [0.0, 3.0, 0.0], [0.4, 0.3, 0.2]], np.float32)
FEATURES = {"labels": tf.constant([0, 2, 0, 1]), "example_weights": tf.constant([1.0, 1.0, 1.0, 0.0])}


class Fixed:
    """A model whose outputs are `LOGITS`."""

    backend = Plain()

    def __call__(self, features, dropout):
        return tf.constant(LOGITS)


def test_the_loss_is_keras_weighted_one_and_the_accuracy_has_no_weights():
    weights_C = np.array([0.5, 1.0, 4.0])
    (loss,), (_, correct) = WeightedClassificationObjective(weights_C)(Fixed(), FEATURES, None)
    sample_weights = weights_C[FEATURES["labels"].numpy()] * FEATURES["example_weights"].numpy()
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    assert float(loss) == pytest.approx(float(np.sum(crossentropy(FEATURES["labels"], LOGITS) * sample_weights)))
    (plain,), (_, plain_correct) = ClassificationObjective()(Fixed(), FEATURES, None)
    assert float(correct) == float(plain_correct) == 2 and float(plain) != pytest.approx(float(loss))
    (ones,), _ = WeightedClassificationObjective(np.ones(3))(Fixed(), FEATURES, None)
    assert float(ones) == float(plain)


def test_balanced_weights_and_those_of_a_file(tmp_path):
    targets = np.array([0] * 6 + [2] * 3)  # none is of the class 1
    weights_C = weights_of(BALANCED, "abc", targets)
    np.testing.assert_allclose(weights_C[[0, 2]], [9 / (2 * 6), 9 / (2 * 3)])  # n / (classes x count), as scikit-learn
    assert weights_C[targets].mean() == 1
    file = tmp_path / "weights.json"
    file.write_text('{"c": 3, "a": 1, "b": 0.5}')
    assert weights_of(str(file), "abc", targets).tolist() == [1, 0.5, 3]
    for text, fault in (
        ('{"a": 1, "b": 1}', "'c' has the weight None"),
        ('{"a": 1, "b": 1, "c": 1, "d": 1}', "'d' has the weight 1"),
        ('{"a": 1, "b": 1, "c": 0}', "'c' has the weight 0"),
        ('{"a": 1, "b": 1, "c": "1"}', "'c' has the weight '1'"),
    ):
        file.write_text(text)
        refused(
            f"--class_weights={file}: {fault}; it must be a JSON object .* a, b, c",
            weights_of,
            str(file),
            "abc",
            targets,
        )


@pytest.mark.slow
def test_weights_change_what_is_learned_and_are_fixed_in_a_run(folders, tmp_path):
    def run(name, **changes):
        settings = dict(num_train_epochs=1.0, eval_steps=None, **changes)
        return processes.run(command(folders, "run_classifier.py", tmp_path / name, **settings))

    (tmp_path / "weights.json").write_text('{"0": 1, "1": 20}')
    assert run("plain").returncode == run("balanced", class_weights=BALANCED).returncode == 0
    weighted = run("weighted", class_weights=tmp_path / "weights.json")
    assert weighted.returncode == 0, weighted.stderr
    assert weights_in(tmp_path / "plain", 4) != weights_in(tmp_path / "weighted", 4)
    # CoLA's sample here has as many of each label.
    losses = [[event["total_loss"] for event in events(tmp_path / name, "train")] for name in ("plain", "balanced")]
    assert losses[0] == pytest.approx(losses[1])
    (tmp_path / "weights.json").write_text('{"0": 1, "1": 2}')
    done = run("weighted", class_weights=tmp_path / "weights.json")
    assert done.returncode == 2 and "class_weights" in done.stderr
