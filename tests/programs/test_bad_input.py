"""A seeded fuzzer over what people type and write: flags, positional arguments, variables and JSON files.

Whatever it is, it works or is refused in one line by a `UserError`, which the programs turn into ``error: ...`` and
exit code 2 (tests/programs/test_command_line.py). FUZZ_CASES sets how many: 60 by default,
of the programs a third.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest

from bert_tf.base.errors import as_user_error
from bert_tf.launch.__main__ import LAUNCHERS
from bert_tf.launch.__main__ import main as launch
from bert_tf.launch.environment import SETTINGS
from bert_tf.launch.prepared_data import find_data
from bert_tf.settings.declaration import settings_of, with_variable
from tests import choice_data, entity_data
from tests.fuzz_program import answers
from tests.glue_data import write_cola, write_model
from tests.pretraining_data import TINY, write_dataset
from tests.squad_data import GOLDEN, write_squad
from tests.test_structure import SETTINGS as PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
NUM_CASES = int(os.environ.get("FUZZ_CASES", "60"))
NUM_PROGRAM_CASES = NUM_CASES // 3  # which take a second each
TEXTS = (
    *("", " ", "0", "-1", "1", "2", "1_0", "1.5", "1e3", "1e38", "1e-300", "inf", "-inf", "nan", "0x10", "٣", "９"),
    *("9" * 12, "9" * 30, "true", "yes", "maybe", "None", "[]", "{}", "auto", "fp16", "large", "tiny", "none", "2.0"),
    *("/dev/null", "/", "/proc/self/mem", "/proc/no/a", "a,b", "*", "[", "~", "-", "--", "=", "\n", "\t", "\x01"),
    *(
        "ü" * 300,
        "x" * 5000,
        "'",
        '"',
        "$(x)",
        "%s",
        "{0}",
        "\\",
        "../..",
        "\ud800".encode("utf-8", "replace").decode(),
    ),
)
JUNK = ("", "[]", "{}", "null", "1", "1e999", '"x"', "{", "[" * 100_000, '{"a": 1}', "\x00", "\xff\xfe", "NaN", "[[1]]")


def is_refusal(code, message):
    """Whether this is an answer that a program may give."""
    return code == 0 or (code in (1, 2) and message.strip() and "\n" not in message)


# --- Launchers -----------------------------------------------------------------------------------

VARIABLES = [each.variable for each in with_variable(*SETTINGS) if each.variable not in ("DRY_RUN", "CONTAINER_IMAGE")]


@pytest.mark.parametrize("recipe", [name for name, (arguments, _) in LAUNCHERS.items() if arguments])
def test_positional_arguments_and_variables(recipe, tmp_path, monkeypatch, capfd):
    chooser = random.Random(recipe)
    arguments, _ = LAUNCHERS[recipe]
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for _ in range(NUM_CASES):
        typed = [argument.default for argument in arguments]
        for _ in range(chooser.randint(0, 2)):
            typed[chooser.randrange(len(typed))] = chooser.choice(TEXTS)
        typed = typed[: chooser.randint(0, len(typed))] + [chooser.choice(TEXTS)] * (chooser.random() < 0.1)
        variables = {name: chooser.choice(TEXTS) for name in chooser.sample(VARIABLES, chooser.randint(0, 2))}
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            patch.setenv("DRY_RUN", "1")
            patch.setenv("DATA_DIR", str(tmp_path))
            for name, text in variables.items():
                patch.setenv(name, text.replace("\x00", ""))
            try:
                code, message = launch.__wrapped__(["launch", recipe, *typed]), ""
            except Exception as raised:
                error = as_user_error(raised)
                assert error, (typed, variables, raised)
                code, message = error.exit_code, str(error)
        assert is_refusal(code, message), (typed, variables, message)
    capfd.readouterr()
    assert not any(tmp_path.iterdir()), "a dry run leaves nothing"


@pytest.mark.parametrize("junk", JUNK)
def test_manifests_of_prepared_records(tmp_path, junk):
    folder = tmp_path / "tfrecord" / "parameters" / "sample"
    (folder / "training").mkdir(parents=True)
    for text in (junk, f'{{"arguments": {junk}, "vocab": {junk}}}'):
        (folder / "manifest.json").write_text(text, encoding="latin-1")
        assert find_data(tmp_path) == ([], [folder])


# --- Programs ------------------------------------------------------------------------------------


def check(program, command_lines):
    given = answers(program, command_lines)
    assert len(given) == len(command_lines)
    wrong = [(line, *answer) for line, answer in zip(command_lines, given) if not is_refusal(*answer)]
    assert not wrong, "\n".join(str(case)[:2000] for case in wrong)
    return given


def spelled(flags):
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


def mutated(chooser, flags, names):
    """The flags with up to three of `names` set to something else."""
    changes = {name: chooser.choice(TEXTS) for name in chooser.sample(names, chooser.randint(1, 3))}
    return {**flags, **{name: text for name, text in changes.items() if not is_slow(name, text)}}


def is_slow(name, text):
    """What is right as far as anybody can tell, and takes memory for it."""
    return name in ("plan", "train_batch_size", "num_accumulation_steps", "eval_batch_size") and len(text) > 2


@pytest.fixture(scope="module")
def pretraining_flags(tmp_path_factory):
    folder = write_dataset(tmp_path_factory.mktemp("records"))
    (folder / "bert_config.json").write_text(TINY.to_json())
    return dict(
        bert_config_file=folder / "bert_config.json",
        input_files=folder / "training",
        eval_files=folder / "test",
        model_dir=folder / "run",
        num_train_steps=20,
        train_batch_size=4,
        max_seq_length=16,
        max_predictions_per_seq=3,
    )


def model_flags(folder, **flags):
    model = dict(bert_config_file=folder / "bert_config.json", vocab_file=folder / "vocab.txt")
    return {**model, "model_dir": folder / "run", "max_seq_length": 16, "train_batch_size": 4, **flags}


@pytest.fixture(scope="module")
def squad_flags(tmp_path_factory):
    folder = write_squad(tmp_path_factory.mktemp("squad"))
    files = dict(train_file=folder / "squad.json", predict_file=folder / "squad.json")
    lengths = dict(max_seq_length=48, doc_stride=12, max_query_length=10)
    return model_flags(folder, **files, **lengths, version_2_with_negative="true")


@pytest.fixture(scope="module")
def classifier_flags(tmp_path_factory):
    folder = write_cola(write_model(tmp_path_factory.mktemp("classifier")))
    return model_flags(folder, task_name="CoLA", data_dir=folder)


@pytest.fixture(scope="module")
def ner_flags(tmp_path_factory):
    folder = entity_data.write_model(tmp_path_factory.mktemp("ner"))
    file = entity_data.write(folder / "train.tsv", entity_data.columns())
    return model_flags(folder, train_file=file, predict_file=file)


@pytest.fixture(scope="module")
def swag_flags(tmp_path_factory):
    folder = choice_data.write_model(tmp_path_factory.mktemp("swag"))
    file = choice_data.write(folder / "train.csv", choice_data.swag(choice_data.make_questions(1, 8)))
    return model_flags(folder, train_file=file, predict_file=file)


MISTAKES = {
    "squad": [
        (dict(model_dir=None), "--model_dir is required"),
        (dict(mode="eval", predict_file=None), "--predict_file is required with --mode=eval"),
        (dict(mode="eval", eval="false"), "--mode=eval scores, --noeval does not"),
    ],
    "classifier": [
        (dict(task_name="MRCP"), "--task_name=MRCP: must be one of CoLA, .* did you mean MRPC?"),
        (dict(task_name=None), "--task_name is required"),
        (dict(data_dir=None), "--data_dir, or --train_file, is required"),
        (dict(data_dir="/nowhere"), "--data_dir=/nowhere has no train.tsv; .* --action download --dataset CoLA"),
        (dict(label_column="x"), "--label_column belongs to --task_name=custom; for CoLA it is known"),
        (dict(no_score_for="0"), "--no_score_for belongs to --task_name=custom"),
        (dict(task_name="custom"), "--label_column is required with --mode=train_and_eval"),
        (dict(task_name="custom", label_column="x"), "--text_columns=: --task_name=custom needs the name of one col"),
        (dict(mode="predit"), "--mode=predit: must be one of"),
        (dict(max_seq_length=2), "max_seq_length=2: must be at least 3, room for .CLS. and, for each of the 1 text"),
    ],
    "ner": [
        (dict(train_file=None), "--train_file is required with --mode=train_and_predict"),
        (dict(label_names="O,B-P,B-P"), "--label_names=O,B-P,B-P: one occurs twice"),
        (dict(label_names="O,P"), "--label_names=O,P: the label is 'P': must be O, or B-TYPE"),
        (dict(train_file="/nowhere.tsv"), "/nowhere.tsv does not exist; name a file with a token and its label"),
        (dict(max_seq_length=65), "--max_seq_length=65 is more than the model's max_position_embeddings=64"),
        (dict(mode="predict"), "--model_dir=.* holds no checkpoint to predict with"),
    ],
    "swag": [
        (dict(predict_file=None, mode="train_and_eval"), "--predict_file is required with --mode=train_and_eval"),
        (dict(train_file="/nowhere.csv"), "/nowhere.csv does not exist; name a .csv file with SWAG's columns"),
        (dict(max_seq_length=4), "max_seq_length=4: must be at least 5"),
    ],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_flags_is_named(request, name, tmp_path):
    right, folders = request.getfixturevalue(f"{name}_flags"), map(str, itertools.count())
    lines = [spelled({**right, "model_dir": tmp_path / next(folders), **changes}) for changes, _ in MISTAKES[name]]
    given = answers(f"run_{name}", lines)
    for (changes, message), (code, said) in zip(MISTAKES[name], given):
        assert code == 2 and re.match(message, said), (changes, said)


def flags_to_change(*classes):
    unlike = ("model_dir", "use_horovod", "max_hours", "dllog_path", "deterministic")  # of which any value may be right
    return [each.name for each in settings_of(*classes) if each.is_flag and each.name not in unlike] + ["no_such_flag"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_flags_of_programs(request, name, tmp_path):
    chooser, right = random.Random(name), request.getfixturevalue(f"{name}_flags")
    flags = flags_to_change(*PROGRAMS[name])
    cases = [
        mutated(chooser, {**right, "model_dir": tmp_path / str(number)}, flags) for number in range(NUM_PROGRAM_CASES)
    ]
    given = check(f"run_{name}", [spelled(right), *map(spelled, cases)])
    assert given[0] == [0, ""], "what is right is not refused"


def changed_leaf(chooser, content):
    """`content` with one value in it, at any depth, replaced or left out."""
    if isinstance(content, (dict, list)) and content and chooser.random() < 0.8:
        copy = dict(content) if isinstance(content, dict) else list(content)
        place = chooser.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
        if isinstance(copy, dict) and chooser.random() < 0.2:
            del copy[place]
        else:
            copy[place] = changed_leaf(chooser, copy[place])
        return copy
    return chooser.choice([None, [], {}, -1, 0, 1.5, "x", "", True, [[]], {"a": []}, 10**30, float("nan")])


def junk_files(chooser, file, folder, count):
    """Copies of a JSON file that hold something else, a folder of that name among them."""
    good = json.loads(file.read_text(encoding="utf-8"))
    texts = [*JUNK, *(json.dumps(changed_leaf(chooser, good)) for _ in range(count))]
    for number, text in enumerate(texts):
        bad = folder / str(number) / file.name
        bad.parent.mkdir(parents=True)
        bad.write_text(text, encoding="latin-1")
        yield bad
    directory = folder / "directory" / file.name
    directory.mkdir(parents=True)
    yield directory


@pytest.mark.slow
def test_json_files_of_pretraining(pretraining_flags, tmp_path):
    chooser = random.Random(3)
    lines = [
        spelled({**pretraining_flags, "bert_config_file": bad, "model_dir": bad.parent / "run"})
        for bad in junk_files(
            chooser, pretraining_flags["bert_config_file"], tmp_path / "config", NUM_PROGRAM_CASES // 3
        )
        if is_small(bad)
    ]
    begun = tmp_path / "begun"
    check("run_pretraining", [spelled({**pretraining_flags, "model_dir": begun})])
    for bad in junk_files(chooser, begun / "config.json", tmp_path / "runs", NUM_PROGRAM_CASES // 3):
        lines.append(spelled({**pretraining_flags, "model_dir": bad.parent}))
        lines.append(spelled({"model_dir": bad.parent, "replay_update": 1}))
    records = pretraining_flags["input_files"].parent
    for bad in junk_files(chooser, records / "manifest.json", tmp_path / "records", 0):
        if bad.is_file():
            shutil.copytree(records / "training", bad.parent / "training")
            lines.append(spelled({**pretraining_flags, "input_files": bad.parent / "training"}))
    check("run_pretraining", lines)


def is_small(config_file):
    """Whether a model of this configuration, if it is one, can be made here."""
    return str(10**30) not in (config_file.read_text(encoding="latin-1") if config_file.is_file() else "")


QUESTION = {"stem": "anna sees", "choices": [{"label": "A", "text": "bob"}, {"label": "B", "text": "the lamp"}]}
ROWS = {
    "ner": {"tokens": ["anna", "sees"], "ner_tags": ["B-P", "O"]},
    "swag": {"question": QUESTION, "answerKey": "B"},
    "squad": GOLDEN["squad"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, flag", [("ner", "predict"), ("swag", "predict"), ("squad", "train"), ("squad", "predict")]
)
def test_json_files_of_tasks(request, name, flag, tmp_path):
    chooser, good = random.Random(f"{name} {flag}"), tmp_path / "good.jsonl"
    good.write_text(json.dumps(ROWS[name]))
    right = {**request.getfixturevalue(f"{name}_flags"), "mode": "train" if flag == "train" else "train_and_predict"}
    lines = [
        spelled({**right, f"{flag}_file": bad, "model_dir": bad.parent / "run"})
        for bad in junk_files(chooser, good, tmp_path / "bad", NUM_PROGRAM_CASES)
    ]
    check(f"run_{name}", lines)
