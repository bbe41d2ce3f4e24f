"""How programs end, what is typed wrong, the installed package's commands, and what its wheel is told to hold."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from bert_tf.base.errors import UserError, as_user_error, shorten
from bert_tf.base.machine.hardware import choose_device
from bert_tf.programs import commands
from bert_tf.programs.flags import parse_flags
from bert_tf.settings.programs import PRETRAINING
from tests.processes import ROOT, answer
from tests.refusals import refusal, refused


def program(body, **options):
    """How a program ends whose main does that."""
    code = f"import os, sys; sys.path.append({str(ROOT)!r}); from bert_tf.base.errors import exit_on_user_error; "
    command = [sys.executable, "-c", f"{code}exit_on_user_error(lambda _: {body})([])"]
    environ = {**os.environ, **options.pop("environ", {})}
    options = {"stdout": subprocess.PIPE, **options}
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environ, **options)


def test_a_name_that_cannot_be_shown():
    for letter, encoding in (("\\udcff", "utf-8:strict"), ("\\u4e2d", "latin-1")):
        done = program(f"print('in /{letter}')", environ={"PYTHONIOENCODING": encoding})
        assert done.returncode == 2 and "' cannot be written in " in done.stderr and done.stderr.count("\n") == 1


def test_a_locale_in_which_paths_are_not_utf8():
    """As in Python's ASCII, where its UTF-8 mode is off: TensorFlow would not get letters beyond that as they are."""
    done = program("print('begun')", environ={"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"})
    assert re.match("error: paths are read as UTF-8, but Python is set to .*; unset PYTHONUTF8", refusal(done))


@pytest.mark.parametrize("is_printed", ["at once", "at the end", "before an error"])
@pytest.mark.parametrize("output, words", [("/dev/full", "No space left"), ("a closed pipe", "nobody reads")])
def test_an_output_that_takes_nothing(output, words, is_printed):
    body = {"at once": "print(1, flush=True)", "at the end": "print(1)", "before an error": "[print(1), open('/')]"}
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "wb") if output == "/dev/full" else open(writer, "wb") as file:
        done = program(body[is_printed], stdout=file, environ={"PYTHONUNBUFFERED": ""})
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and ("Is a directory" if "error" in is_printed else words) in done.stderr


def test_a_program_that_is_started_without_its_standard_files():
    """As cron and daemons may: >&- and 2>&-. Its next file must not be taken for one of these."""
    body = "print('done', file=sys.stderr) or print(os.open('/dev/null', 0) > 2 and sys.stdin.read() == '')"
    for closed in ((), (0,), (1,), (2,), (0, 1, 2)):
        done = program(body, preexec_fn=lambda numbers=closed: [os.close(number) for number in numbers])
        assert done.returncode == 0, done.stderr
        assert done.stdout == ("" if 1 in closed else "True\n") and done.stderr == ("" if 2 in closed else "done\n")


def test_a_broken_pipe_to_another_process_keeps_its_traceback():
    assert as_user_error(BrokenPipeError()) is None


@pytest.fixture
def parse():
    """Parses flags of pre-training as the program does."""
    return lambda *arguments: parse_flags(["program", *arguments], "", *PRETRAINING)


@pytest.mark.parametrize(
    "argument, words",
    [
        ("--amp", "--amp: it is called --precision=fp16 here"),
        ("--use_xla=true", "it is called --enable_xla here"),
        ("--use_fp16=false", "--use_fp16: it is --precision=fp16 here; choose another --precision"),
        ("--precision=fp8", "--precision=fp8: must be one of fp32"),
        ("--init_checkpoint=", "^--init_checkpoint=: must be a text, not empty"),
        ("--no_such_flag=1", "no_such_flag.*; see --help"),
        ("--num_accumulation_steps=1_0", "--num_accumulation_steps=1_0: must be a whole number"),
        ("--learning_rate=nan", "--learning_rate=nan: must be a number"),
        ("--" + "x" * 5000, "unknown argument --xxx"),
        ("more", "unknown argument more"),
    ],
)
def test_wrong_flags_are_named_with_what_to_type(parse, argument, words):
    refused(words, parse, argument)


def test_how_flags_may_be_typed(parse):
    assert parse("--use_fp16").precision == parse("--use_fp16=true", "--packing").precision == "fp16"
    for typed, packs in ((["--packing"], True), (["--packing=0"], False), (["--packing", "--nopacking"], False)):
        assert parse(*typed, "--seed", "7").packing is packs
    refused("--packing=maybe: must be 1, 0, true", parse, "--packing=maybe")
    refused("--learning_rate=-1e-05: must be a number above 0", parse, "--learning_rate", "-1e-05")


def test_outside_of_the_environment_one_line_says_so():
    """-S: a Python that sees none of the packages installed."""
    line = refusal(answer(sys.executable, "-S", ROOT / "run_pretraining.py", "--help", PYTHONPATH=None))
    assert "has no numpy, tensorflow, tqdm; 'bash scripts/setup.sh'" in line


def test_the_cpu_can_be_asked_for():
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    choose_device("auto", environ)
    assert environ == {"TF_CPP_MIN_LOG_LEVEL": "0"}
    choose_device("cpu", environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize("program", sorted(path.name for path in ROOT.glob("run_*.py")))
def test_the_command_line_of_a_program(program, tmp_path):
    """From any folder: its help, and a mistake in one line."""
    shown, refused = (answer(sys.executable, ROOT / program, word, cwd=tmp_path) for word in ("--help", "--seed=-1"))
    assert shown.returncode == 0 and "--learning_rate" in shown.stdout and shown.stderr == ""
    assert refusal(refused).startswith("error: --seed=-1: must be")


def test_long_values_are_shown_by_their_ends():
    value = "--a=" + "x" * 5000
    assert str(UserError(f"{value} is wrong; give --b")) == f"{shorten(value, 200)} is wrong; give --b"
    assert len(str(UserError("x y " * 5000))) < 4100
    assert str(UserError("/a" * 200)) == "/a" * 200, "a path is shown whole"


# --- The installed package -----------------------------------------------------------------------

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # tomllib came with Python 3.11
COMMANDS = re.findall(r'^([\w-]+) = "bert_tf\.programs\.commands:(\w+)"$', PYPROJECT, re.MULTILINE)


def test_every_command_runs_a_module_of_the_package():
    names = "bertprep bert-pretrain bert-squad bert-classify bert-ner bert-swag bert-report bert-doctor bert-launch"
    assert [command for command, _ in COMMANDS] == [*names.split(), "bert-pretrain-lamb", "bert-pretrain-adam"]
    for _, function in COMMANDS:
        called = getattr(commands, function)
        module = "bert_tf.launch" if called.func is commands._launch else called.args[0]
        found = importlib.util.find_spec(module)
        assert found and (not found.submodule_search_locations or importlib.util.find_spec(f"{module}.__main__"))


def test_every_file_that_is_read_beside_a_module_goes_into_the_wheel():
    packages = [path.parent for path in (ROOT / "bert_tf").rglob("__init__.py")]
    suffixes = {path.suffix for package in packages for path in package.iterdir() if path.is_file()} - {".py", ".sh"}
    [patterns] = re.findall(r'^"\*" = \[(.*)\]$', PYPROJECT, re.MULTILINE)
    assert all(f'"*{suffix}"' in patterns for suffix in suffixes), suffixes
