"""A seeded fuzzer over what people type and write: flags, positional arguments, variables and JSON files.

Whatever it is, it works or is refused in one line by a `UserError`, which the programs turn into ``error: ...`` and
exit code 2 (test_command_line.py). FUZZ_CASES sets how many: 60 by default, of the programs a third.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from unittest import mock

import pytest

from bert_tf.base.errors import as_user_error
from bert_tf.launch.__main__ import main as launch
from bert_tf.launch.environment import SETTINGS
from bert_tf.launch.prepared_data import find_data
from bert_tf.launch.recipes import find_recipe, find_recipes
from bert_tf.settings.declaration import settings_of, with_variable
from bert_tf.settings.programs import PRETRAINING
from bert_tf.tasks.task import settings_classes
from tests import choice_data
from tests.entity_data import columns
from tests.entity_data import write_model as write_entity_model
from tests.fuzz_program import answers
from tests.glue_data import write_cola, write_lines, write_model
from tests.preparation import write
from tests.pretraining_data import write_dataset
from tests.squad_data import write_squad

TASKS = {"classifier": "glue", "ner": "entities", "squad": "squad", "swag": "choices"}  # by their programs
PROGRAMS = {"pretraining": PRETRAINING, **{program: settings_classes(task) for program, task in TASKS.items()}}
NUM_CASES = int(os.environ.get("FUZZ_CASES", "60"))
NUM_PROGRAM_CASES = NUM_CASES // 3  # which take a second each
TEXTS = (
    *("", " ", "0", "-1", "1", "2", "1_0", "1.5", "1e3", "1e38", "1e-300", "inf", "-inf", "nan", "0x10", "٣", "９"),
    *("9" * 12, "9" * 30, "true", "yes", "maybe", "None", "[]", "{}", "auto", "fp16", "large", "tiny", "none", "2.0"),
    *("/dev/null", "/", "/proc/self/mem", "/proc/no/a", "a,b", "*", "[", "~", "-", "--", "=", "\n", "\t", "\x01"),
    *("ü" * 300, "x" * 5000, "'", '"', "$(x)", "%s", "{0}", "\\", "../..", "?"),
)
JUNK = ("", "[]", "{}", "null", "1", "1e999", '"x"', "{", "[" * 100_000, '{"a": 1}', "\x00", "\xff\xfe", "NaN", "[[1]]")


def is_refusal(code, message):
    """Whether this is an answer that a program may give."""
    return code == 0 or (code in (1, 2) and message.strip() and "\n" not in message)


# --- Launchers -----------------------------------------------------------------------------------

VARIABLES = [each.variable for each in with_variable(*SETTINGS) if each.variable not in ("DRY_RUN", "CONTAINER_IMAGE")]


@pytest.mark.parametrize("recipe", [name for name in find_recipes() if find_recipe(name).arguments])
def test_positional_arguments_and_variables(recipe, tmp_path, monkeypatch, capfd):
    chooser = random.Random(recipe)
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    fixed = {"CUDA_VISIBLE_DEVICES": "", "DRY_RUN": "1", "DATA_DIR": str(tmp_path)}
    for _ in range(NUM_CASES):
        typed = [argument.default for argument in find_recipe(recipe).arguments]
        for _ in range(chooser.randint(0, 2)):
            typed[chooser.randrange(len(typed))] = chooser.choice(TEXTS)
        typed = typed[: chooser.randint(0, len(typed))] + [chooser.choice(TEXTS)] * (chooser.random() < 0.1)
        variables = {name: chooser.choice(TEXTS) for name in chooser.sample(VARIABLES, chooser.randint(0, 2))}
        with mock.patch.dict(os.environ, {**fixed, **variables}):
            try:
                code, message = launch.__wrapped__(["launch", recipe, *typed]), ""
            except Exception as raised:
                error = as_user_error(raised)
                assert error, (typed, variables, raised)
                code, message = error.exit_code, str(error)
        assert is_refusal(code, message), (typed, variables, message)
    capfd.readouterr()
    assert not any(tmp_path.iterdir()), "a dry run leaves nothing"


# --- Programs ------------------------------------------------------------------------------------


def check(program, command_lines):
    given = answers(program, command_lines)
    assert len(given) == len(command_lines)
    wrong = [(line, *answer) for line, answer in zip(command_lines, given) if not is_refusal(*answer)]
    assert not wrong, "\n".join(str(case)[:2000] for case in wrong)
    return given


def spelled(flags):
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


# What is right as far as anybody can tell, and takes memory for it.
SLOW = ("plan", "train_batch_size", "num_accumulation_steps", "eval_batch_size")


def mutated(chooser, flags, names):
    """The flags with up to three of `names` set to something else."""
    changes = {name: chooser.choice(TEXTS) for name in chooser.sample(names, chooser.randint(1, 3))}
    return {**flags, **{name: text for name, text in changes.items() if name not in SLOW or len(text) < 3}}


# The flags of each program that are right besides those of the model.
OWN = {
    "pretraining": "input_files=training eval_files=test num_train_steps=20 max_predictions_per_seq=3",
    "squad": "train_file=squad.json predict_file=squad.json doc_stride=12 max_query_length=10 max_seq_length=48 "
    "version_2_with_negative=true",
    "classifier": "task_name=CoLA data_dir=.",
    "ner": "train_file=train.tsv predict_file=train.tsv train_batch_size=4",
    "swag": "train_file=train.csv predict_file=train.csv train_batch_size=4",
}


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The flags that are right for each program, with a small model and its files in a folder."""
    folders = {name: tmp_path_factory.mktemp(name) for name in PROGRAMS}
    write_dataset(folders["pretraining"])
    write_squad(folders["squad"])
    write_model(folders["classifier"])
    write_cola(folders["classifier"])
    for name in ("train", "dev"):
        path = folders["classifier"] / f"STS-B/{name}.tsv"
        write_lines(path, "index | sentence1 | sentence2 | score", "1 | a | b | 1.0")
    write_entity_model(folders["ner"])
    (folders["ner"] / "train.tsv").write_text(columns())
    choice_data.write_model(folders["swag"])
    write(folders["swag"] / "train.csv", choice_data.swag(choice_data.make_questions(1, 8)))
    flags = {}
    for name, folder in folders.items():
        files = ["bert_config_file", *(["vocab_file"] if name != "pretraining" else [])]
        paths = dict(zip(files, (folder / "bert_config.json", folder / "vocab.txt")))
        own = dict(pair.split("=") for pair in OWN[name].split())
        own = {flag: folder / value if (folder / value).exists() else value for flag, value in own.items()}
        flags[name] = {**paths, "max_seq_length": 16, **own}
    return flags


MISTAKES = {
    "pretraining": [
        (dict(input_files="nowhere"), ".*names no record or token file"),
        (dict(max_seq_length=128), ".*--max_seq_length=16 fits"),
        (dict(bert_config_file=None), ".*give either --bert_config_file or --bert_model"),
        (dict(bert_config_file="none.json"), ".*No such file"),
        (dict(num_train_steps=None), "--num_train_steps is required"),
        (dict(warmup_steps=21), "warmup_steps=21"),
        (dict(train_batch_size=0), "--train_batch_size=0"),
        (dict(init_checkpoint="nowhere"), "--init_checkpoint=nowhere"),
        (dict(eval_steps=4, eval_files=None), "--eval_steps needs held-out data: name it with --eval_files"),
    ],
    "squad": [
        (dict(model_dir=None), "--model_dir is required"),
        (dict(mode="eval", predict_file=None), "--predict_file is required with --mode=eval"),
        (dict(mode="eval", eval="false"), "--mode=eval and --eval_steps score, --noeval does not"),
        (dict(do_lower_case="false"), ".*pass --do_lower_case=1 with an uncased model"),
        (dict(eval="false", eval_steps="epoch"), "--mode=eval and --eval_steps score, --noeval does not"),
    ],
    "classifier": [
        (dict(task_name=None), "--task_name is required"),
        (dict(data_dir="/nowhere"), "--data_dir=/nowhere has no train.tsv; .* --action download --dataset CoLA"),
        (dict(label_column="x"), "--label_column belongs to --task_name=custom; for CoLA it is known"),
        (dict(no_score_for="0"), "--no_score_for belongs to --task_name=custom"),
        (dict(task_name="custom"), "--label_column is required with --mode=train_and_eval"),
        (dict(mode="train", eval_steps="epoch"), "--eval_steps needs held-out data: use --mode=train_and"),
        (dict(task_name="STS-B", data_dir="{}/STS-B", class_weights="balanced"), ".*is for labels, STS-B has numbers"),
        (dict(class_weights="{}/vocab.txt"), ".*vocab.txt is not valid JSON .* a JSON object of"),
        (dict(max_seq_length=2), "max_seq_length=2: must be at least 3, room for .CLS. and, for each of the 1 text"),
    ],
    "ner": [
        (dict(train_file=None), "--train_file is required with --mode=train_and_predict"),
        (dict(label_names="O,B-P,B-P"), "--label_names=O,B-P,B-P: one occurs twice"),
        (dict(label_names="O,P"), "--label_names=O,P: the label is 'P': must be O, or B-TYPE"),
        (dict(train_file="/nowhere.tsv"), "/nowhere.tsv does not exist; name a file with a token and its label"),
        (dict(max_seq_length=65), "--max_seq_length=65 is more than the model's max_position_embeddings=64"),
        (dict(mode="predict"), "--model_dir=.* holds no checkpoint to predict with"),
        (dict(predict_file="{}/vocab.txt", eval_steps="epoch"), ".*vocab.txt has tokens without labels; .*eval need"),
    ],
    "swag": [
        (dict(predict_file=None, mode="train_and_eval"), "--predict_file is required with --mode=train_and_eval"),
        (dict(max_seq_length=4), "max_seq_length=4: must be at least 5"),
    ],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_flags_is_named(right, name, tmp_path):
    lines, folder = [], right[name]["bert_config_file"].parent
    for number, (changes, _) in enumerate(MISTAKES[name]):
        flags = {flag: value and str(value).format(folder) for flag, value in changes.items()}
        lines.append(spelled({**right[name], "model_dir": tmp_path / str(number), **flags}))
    for (changes, message), (code, said) in zip(MISTAKES[name], answers(f"run_{name}", lines)):
        assert code == 2 and re.match(message, said) and "\n" not in said, (changes, said)
    assert not list(tmp_path.glob("*/checkpoints"))


UNLIKE = ("model_dir", "use_horovod", "max_hours", "dllog_path")  # of which any value may be right


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_flags_of_programs(right, name, tmp_path):
    chooser, settings = random.Random(name), settings_of(*PROGRAMS[name])
    flags = [*(each.name for each in settings if each.is_flag and each.name not in UNLIKE), "no_such_flag"]
    places = [{**right[name], "model_dir": tmp_path / str(number)} for number in range(NUM_PROGRAM_CASES + 1)]
    given = check(f"run_{name}", [spelled(places[0]), *(spelled(mutated(chooser, each, flags)) for each in places[1:])])
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
    for number, text in enumerate([*JUNK, *(json.dumps(changed_leaf(chooser, good)) for _ in range(count)), None]):
        bad = folder / str(number) / file.name
        bad.parent.mkdir(parents=True)
        if text is None:
            bad.mkdir()
        else:
            bad.write_text(text, encoding="latin-1")
        yield bad


@pytest.mark.slow
def test_json_files_of_pretraining(right, tmp_path):
    chooser, flags, count = random.Random(3), right["pretraining"], NUM_PROGRAM_CASES // 3
    lines, begun = [], tmp_path / "begun"
    for bad in junk_files(chooser, flags["bert_config_file"], tmp_path / "config", count):
        if not (bad.is_file() and str(10**30) in bad.read_text(encoding="latin-1")):  # a model that cannot be made here
            lines.append(spelled({**flags, "bert_config_file": bad, "model_dir": bad.parent / "run"}))
    check("run_pretraining", [spelled({**flags, "model_dir": begun})])
    for bad in junk_files(chooser, begun / "config.json", tmp_path / "runs", count):
        lines.append(spelled({**flags, "model_dir": bad.parent}))
        lines.append(spelled({"model_dir": bad.parent, "replay_update": 1}))
    records = flags["input_files"].parent
    for bad in junk_files(chooser, records / "manifest.json", tmp_path / "tfrecord/x", count):
        shutil.copytree(records / "training", bad.parent / "training")
        lines.append(spelled({**flags, "input_files": bad.parent / "training", "model_dir": bad.parent / "run"}))
    find_data(tmp_path)
    check("run_pretraining", lines)


ENTITIES = {"tokens": ["anna", "sees"], "ner_tags": ["B-P", "O"]}
CHOICES = [{"label": "A", "text": "bob"}, {"label": "B", "text": "the lamp"}]
QUESTION = {"question": {"stem": "anna sees", "choices": CHOICES}, "answerKey": "B"}


@pytest.mark.slow
@pytest.mark.parametrize("name, row", [("ner", ENTITIES), ("swag", QUESTION), ("squad", None)])
def test_json_files_of_tasks(right, tmp_path, name, row):
    chooser, good = random.Random(name), tmp_path / "rows.jsonl"
    good.write_text(json.dumps(row) if row else right[name]["train_file"].read_text())
    lines = [
        spelled({**right[name], flag: bad, **mode, "model_dir": bad.parent / "run"})
        for flag, mode in (("predict_file", {}), ("train_file", {"mode": "train"}))[: 2 if name == "squad" else 1]
        for bad in junk_files(chooser, good, tmp_path / flag, NUM_PROGRAM_CASES // 2)
    ]
    check(f"run_{name}", lines)
