"""Whatever a person may type or write into a file: a UserError of one line, never a traceback."""

# ruff: noqa: E501
import json
import os
import random
import re
from pathlib import Path
from unittest import mock

import pytest

from bert_tf.base.errors import as_user_error
from bert_tf.settings.declaration import settings_of
from bert_tf.settings.preparation import PreparationOptions, options_of_action
from tests import preparation
from tests.preparation import bertPrep

VALUES = [
    "", " ", "-1", "0", "1", "2", "7", "1_0", "0x10", "1e3", "1e999", "nan", "inf", "-0.5", "0.5", "1.0", "18446744073709551615",
    "18446744073709551616", "9" * 40, "é", "\u0661", "a", "none", "True", "custom", "rules", "static", "dynamic", "/", ".", "/dev/null",
    "/nowhere/at/all", "latin-1", "base64", "rot13", "utf-16", "jsonl", "a,b", ",", "[]", "--", "\ud800", "x" * 300,
]  # fmt: skip
OPTIONS = sorted(each.name for each in settings_of(PreparationOptions))


def attempt(working_dir: Path, *arguments: object) -> str:
    """The error, or nothing where all went well; any other exception is the test's."""
    try:
        # Without the wrapper that turns errors into exit codes.
        with mock.patch.dict(os.environ, BERT_PREP_WORKING_DIR=str(working_dir)):
            bertPrep.main.__wrapped__(["--n_processes=1", *map(str, arguments)])
    except Exception as raised:
        error = as_user_error(raised)
        if error is None:
            raise
        assert str(error) and "\n" not in str(error)
        return str(error)
    return ""


@pytest.fixture
def work(tmp_path):
    """Little is prepared, because it is read again and again."""
    preparation.shard(tmp_path, preparation.documents(12), *preparation.SHARDS)
    preparation.run(tmp_path, "create_vocab", "--vocab_size", 200)
    preparation.run(tmp_path, "create_tfrecord_files", "--max_seq_length", 32, "--max_predictions_per_seq", 5)
    return tmp_path


@pytest.mark.parametrize("seed", range(3))
def test_options(work, seed, monkeypatch):
    """A few options with wrong or strange values, most of them such as the action reads."""
    rng = random.Random(seed)
    monkeypatch.chdir(work)
    for _ in range(25):
        action = rng.choice([name for name in bertPrep.ACTIONS if name != "download"])
        known = options_of_action(action) or OPTIONS
        arguments = ["--action", action, "--dataset", rng.choice(["custom"] * 5 + ["sample", "bookscorpus"])]
        if action == "text_formatting":
            arguments += ["--input_files", str(work / "source.txt")]
        for name in rng.sample(known, min(len(known), rng.randint(1, 2))):
            arguments.append(f"--{name}={rng.choice(VALUES)}")
        if rng.random() < 0.2:
            arguments.append(f"--{rng.choice(OPTIONS)}={rng.choice(VALUES)}")
        attempt(work, *arguments)


def broken(rng: random.Random, content: object) -> object:
    """The content with something in it removed, or of another kind."""
    strange = [None, [], {}, "", "é", -1, 0, 1 << 70, 0.5, True, [[]], {"a": 1}]
    if isinstance(content, (dict, list)) and content and rng.random() < 0.85:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        key = rng.choice(keys)
        if rng.random() < 0.15:
            del content[key]
        else:
            content[key] = broken(rng, content[key])
        return content
    return rng.choice(strange)


@pytest.mark.parametrize("seed", range(2))
def test_json_files(work, seed):
    rng = random.Random(seed)
    preparation.run(work, "create_token_files")
    for path in sorted(work.rglob("*manifest.json")):
        original = path.read_text()
        for _ in range(4):
            text = json.dumps(broken(rng, json.loads(original)))
            path.write_text(text if rng.random() < 0.8 else text[: rng.randrange(len(text))])
            for action, *arguments in (
                ("text_formatting", "--input_files", work / "source.txt"),
                ("sharding", "--n_training_shards=2", "--n_test_shards=1"),
                ("create_tfrecord_files", "--max_seq_length=32"),
                ("status",),
                ("verify",),
                ("inspect",),
            ):
                attempt(work, "--action", action, "--dataset", "custom", *arguments)
        path.write_text(original)


def test_a_file_whose_name_is_not_utf8(tmp_path):
    source = Path(os.fsdecode(os.fsencode(tmp_path / "a") + b"\xff.txt"))
    source.write_text("It is one.")
    command = ("--action", "text_formatting", "--dataset", "custom", "--input_files", source)
    for _ in range(2):  # the second time the manifest is read
        assert attempt(tmp_path / "work", *command) == ""
    assert attempt(tmp_path / "work", "--action", "status", "--dataset", "custom") == ""


def test_a_working_directory_that_is_no_folder_or_below_none(tmp_path):
    (tmp_path / "lost").symlink_to("nowhere")
    for folder in (tmp_path / "lost", tmp_path / "lost/deep/er"):
        error = attempt(folder, "--action", "sharding", "--dataset", "sample")
        assert f"{tmp_path / 'lost'} is a link that leads nowhere, and must be a folder" in error


@pytest.mark.parametrize(
    "arguments,message",
    [
        ("--action shardign --dataset sample", "--action=shardign: must be one of .*; did you mean sharding?"),
        ("--action sharding --dataset wikicorpus", "--dataset=wikicorpus: must be one of .*did you mean wikicorpus_"),
        ("--action sharding --dataset sample --n_trainings_shards 3", "--n_trainings_shards; did you mean --n_training_shards?"),
        ("--action sharding --dataset sample --n_training_shards=1_0", "--n_training_shards=1_0: must be a whole number"),
        ("--action sharding --dataset sample --fraction_test_set=nan", "--fraction_test_set=nan: must be a number"),
        ("--action sharding --dataset custom --n_test_shards 0", "n_test_shards=0 and fraction_test_set=0.1: both must be 0"),
        ("--action sharding --dataset custom --fraction_test_set 0", "fraction_test_set=0.0: both must be 0 or neither"),
        ("--action sharding --dataset sample --max_seq_length 128", "--max_seq_length has no effect on --action=sharding, only on"),
        ("--action text_formatting --dataset sample --input_files x", "--input_files has no effect on --dataset=sample, only on custom"),
        ("--action download --dataset sample --repair", "--repair has no effect on --action=download, only on verify"),
        ("--action create_tfrecord_files --dataset custom --masked_lm_prob 0", "--masked_lm_prob=0: must be a number above 0"),
        ("--action verify --vocab_file vocab.txt", "--vocab_file has no effect on --action=verify without --repair"),
        ("--action text_formatting --dataset custom --input_files THIS_FILE --text_column body", "text_column=body: has no effect, because no input file is read as jsonl or parquet, but line: leave it out"),
        ("--dataset sample", "--action is missing: one of download, text_formatting"),
        ("--acton sharding", "unknown argument --acton; did you mean --action?"),
        ("--action sharding", "--action=sharding needs --dataset"),
    ],
)  # fmt: skip
def test_arguments_that_are_wrong(tmp_path, arguments, message):
    arguments = arguments.replace("THIS_FILE", f"{__file__} --input_format line")
    assert re.search(message.replace("?", r"\?"), attempt(tmp_path, *arguments.split()))


def test_who_works_may_be_said_of_every_action():
    for action in bertPrep.ACTIONS:
        bertPrep.parse(["--action", action, "--dataset", "custom", "--n_processes", "2", "--dask_scheduler", "x.json"])
