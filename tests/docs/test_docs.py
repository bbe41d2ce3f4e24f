"""The pages for people: links lead somewhere, commands can be typed, and generated tables are those of today.

An indented block is commands for a shell; everything else stands in a fence with its language. Each page's blocks are
really run by bash, one after the other, with stand-ins for the programs that write down how they were called. Then
this file as a program tries each call as far as a test can: a plan (--plan, launchers under DRY_RUN=1) is made; of any
other call the arguments are parsed by its program.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.launch.recipes import find_recipe
from bert_tf.programs import prepare
from bert_tf.programs.flags import parse_flags
from bert_tf.programs.settings_page import TABLES
from bert_tf.settings.declaration import settings_of
from bert_tf.tasks.task import settings_classes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCE = re.compile(r"^```.*?^```\n", re.DOTALL | re.MULTILINE)
# A line that shows the form of a command: <argument>, [a|b], [--option], or parts left out.
FORM = re.compile(r"<[a-z]\w*>|\[[\w-]+(\|\w+)*\]|(^|[ =/])\.\.\.|\bNAME\b")
PROMPT = re.compile(r"^\w*\$ ", re.MULTILINE)
# What is called and cannot be tried here: it needs other programs, packages, a registry, a cluster.
NEEDS = ("apptainer", "docker", "jupyter", "make", "openssl", "onnx/bin/pip", "onnx/bin/python", ".venv/bin/dask")
COREUTILS = ("basename", "cut", "grep", "mkdir", "sort", "uniq", "shuf")
# `python -m` of other people's packages.
MODULES_OF_OTHERS = ("pip", "pytest", "venv")
RECORDER = """#!/bin/sh
{ printf '%s\\0' "${0#$STAND_INS/}" "$@"; printf '\\0'; /usr/bin/env -0; } >"$CALLS/$$"
while read -r _; do :; done # or what writes into a pipe to it may be ended by SIGPIPE
"""


def text_of(page: Path) -> str:
    """Without what stands in fences; of a notebook its cells of text."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        text = "".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    return FENCE.sub("\n", text)


def blocks(page: Path) -> list[str]:
    """The indented blocks, without their indentation; of a block with prompts the lines that are typed."""
    text = text_of(page)
    found = []
    for match in re.finditer(r"(?<=\n\n)((?: {4,}.*\n)+)", text):
        margin = min(len(line) - len(line.lstrip()) for line in match.group().splitlines())
        block = "".join(line[margin:] + "\n" for line in match.group().splitlines())
        if PROMPT.match(block):
            block = "".join(PROMPT.sub("", line) for line in block.splitlines(True) if PROMPT.match(line))
        found.append(block)
    return found


def split_forms(block: str) -> tuple[str, list[str]]:
    """A block's commands that can be typed as they are, and those that show a form."""
    commands, forms = [], []
    for command in re.sub(r"\\\n\s*", " ", block).splitlines():
        command_only = re.split(r"\s+#", command)[0]
        (forms if FORM.search(command_only) else commands).append(command_only)
    return "\n".join(commands), forms


def headings(page: Path) -> set[str]:
    """The anchors that GitHub and MkDocs give to a page's headings."""
    text = re.sub(r"^( *)```.*?^ *```\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def files_of_the_site() -> list[Path]:
    """By scripts/mkdocs_hook.py, which cannot be imported without MkDocs."""
    hook = (ROOT / "scripts/mkdocs_hook.py").read_text(encoding="utf-8")
    patterns = ast.literal_eval(re.search(r"^PAGES = (\(.*?^\))", hook, re.DOTALL | re.MULTILINE)[1])
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


SITE = files_of_the_site()


@pytest.mark.parametrize(
    "page", [page for page in SITE if page.suffix in (".md", ".ipynb")], ids=lambda page: page.name
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{target}: there is no such file"
        assert there.resolve() in SITE, f"{target}: scripts/mkdocs_hook.py does not take it into the site"
        if anchor:
            assert anchor in headings(there), f"{target}: there is no such heading"


def test_every_page_but_the_log_is_in_the_sites_menu():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert sorted(re.findall(r": (\S+\.md)$", menu, re.MULTILINE)) == sorted(
        str(page.relative_to(ROOT)) for page in PAGES if page.name != "LOG.md"
    )


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A folder that looks like the checkout, and in it a folder of stand-ins."""
    folder = tmp_path_factory.mktemp("sandbox")
    for path in ROOT.iterdir():
        if path.name not in (".venv", ".git", "results", "models"):
            (folder / path.name).symlink_to(path)
    (folder / "bert_config.json").write_text(BertConfig.preset("large", 30522).to_json())
    recorder = folder / "recorder"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    called = ("python", "python3", "bash", "sbatch", "srun", ".venv/bin/python", *COREUTILS, *NEEDS)
    for name in called:
        stand_in = folder / (name if "/" in name else f"stand_ins/{name}")
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.symlink_to(recorder)
    (folder / "stand_ins/dirname").symlink_to(shutil.which("dirname"))  # for the presets of scripts/configs/
    (folder / ".venv/bin/activate").touch()
    return folder


def calls_of(page: Path, sandbox: Path) -> list[tuple[list[str], dict[str, str]]]:
    """What the page's commands call: words and environment."""
    script = "\n".join(split_forms(block)[0] for block in blocks(page))
    calls = sandbox / f"calls_{page.name}"
    calls.mkdir()
    places = {"STAND_INS": str(sandbox / "stand_ins"), "CALLS": str(calls), "HOME": str(sandbox)}
    command = ["/bin/bash", "-euo", "pipefail", "-c", script]
    streams = dict(text=True, capture_output=True, stdin=subprocess.DEVNULL)
    done = subprocess.run(command, cwd=sandbox, env={**places, "PATH": places["STAND_INS"]}, timeout=300, **streams)
    assert done.returncode == 0, f"{page.name}: {done.stderr}"
    found = []
    for record in sorted(calls.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        words, _, variables = record.read_text().partition("\0\0")
        environment = dict(item.split("=", 1) for item in variables.split("\0") if item and item[0] != "_")
        for name in (*places, "PATH", "PWD", "OLDPWD"):
            environment.pop(name, None)
        found.append((words.split("\0"), environment))
    return found


def called_by_script(script: str, arguments: list[str]) -> list[str] | None:
    """The module and arguments that a shell script passes its own on to; None where it does something else."""
    text = (ROOT / script).read_text(encoding="utf-8")
    for option in (word for word in arguments if word.startswith("--")):
        assert option in text or '"$@"' in text, f"{script} has no {option}"
    match = re.search(r' -m (bert_tf[\w.]*)((?: \w+)?) "\$@"$', text, re.MULTILINE)
    return ["-m", match.group(1), *match.group(2).split(), *arguments] if match else None


def what_to_try(words: list[str]) -> list[str] | None:
    """A call as `try_call` takes it; None where that a script exists is all there is to see."""
    program, arguments = words[0], words[1:]
    if program in NEEDS or program in COREUTILS:
        return None
    if program in ("sbatch", "srun"):
        arguments = [word for word in arguments if not word.startswith(("-N", "--ntasks"))]
        arguments = arguments[1:] if arguments[0] == "bash" else arguments
    if program.startswith(("python", ".venv/bin/python")):
        if arguments[:1] == ["-m"] and arguments[1] in MODULES_OF_OTHERS:
            return None
        assert arguments[0] == "-m" or (ROOT / arguments[0]).is_file(), f"there is no {arguments[0]}"
        return None if arguments[0].startswith("examples/") else arguments  # test_examples.py runs those
    assert (ROOT / arguments[0]).is_file(), f"there is no {arguments[0]}"
    return called_by_script(arguments[0], arguments[1:])


@pytest.mark.slow
def test_commands_can_be_typed(sandbox):
    calls = []
    for page in PAGES:
        for words, environment in calls_of(page, sandbox):
            tried = what_to_try(words)
            if tried:
                calls.append((tried, {**environment, "DRY_RUN": "1", "RESULTS_DIR": str(sandbox / "results")}))
    assert len(calls) > 60
    once = list({json.dumps(call): call for call in calls}.values())
    done = subprocess.run(
        [sys.executable, __file__],
        cwd=sandbox,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        input=json.dumps(once),
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-8:])
    assert "whatever the micro-batch" in done.stdout and "DRY_RUN: nothing was started" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_forms_name_what_there_is(page):
    """Scripts and programs exist, positional arguments have the launchers' names, flags are known."""
    known = {each.name for classes in TABLES.values() for each in settings_of(*classes) if each.is_flag}
    known |= {"action", "dataset"}
    for form in (form for block in blocks(page) for form in split_forms(block)[1]):
        programs = re.findall(r"[\w/.-]+\.(?:py|sh|sub)\b", form)
        assert all((ROOT / program).is_file() for program in programs), form
        for flag in re.findall(r"--(\w+)", form.replace("[", " ")):
            assert flag in known, f"{form}: --{flag}"
        names = re.findall(r"<(\w+)>", form)
        if names:
            launcher = programs[0].removeprefix("scripts/").removesuffix(".sh").removeprefix("run_")
            assert names == [argument.name for argument in find_recipe(launcher).arguments], form


# --- The program ---------------------------------------------------------------------------------

TASKS = {"pretraining": "pretraining", "squad": "squad", "classifier": "glue", "ner": "entities", "swag": "choices"}


class Parsed(Exception):
    """Raised in place of what a program would do with its arguments."""


def try_call(words: list[str]) -> None:
    program, arguments = words[0], words[1:]
    if program == "data/bertPrep.py":
        prepare.parse(arguments)
    elif program.startswith("run_"):  # run_pretraining.py and the like
        name = program[len("run_") : -len(".py")]
        if parse_flags(words, "", *settings_classes(TASKS[name])).plan:
            runpy.run_module(f"bert_tf.programs.{name}")["main"](words)
    else:  # up to the arguments of a parser of argparse; launchers, which have none, to their end
        sys.argv = arguments if program == "-m" else words
        sys.path.insert(0, str((ROOT / program).parent))
        run, place = (runpy.run_module, arguments[0]) if program == "-m" else (runpy.run_path, str(ROOT / program))
        try:
            run(place, run_name="__main__")
        except Parsed:
            pass
        except SystemExit as ended:
            if ended.code not in (0, None):
                raise


def main() -> None:
    """Tries the calls of standard input (JSON: lists of [words, environment]); the first that is refused ends it.

    One process for all, because TensorFlow is slow.
    """
    parse_args, clean = argparse.ArgumentParser.parse_args, dict(os.environ)

    def stop_after_parsing(*arguments, **named):
        raise Parsed(parse_args(*arguments, **named))

    argparse.ArgumentParser.parse_args = stop_after_parsing
    for words, environment in json.load(sys.stdin):
        os.environ.clear()
        os.environ.update({**clean, **environment})
        print("+", *words, file=sys.stderr, flush=True)
        try_call(words)


if __name__ == "__main__":
    main()
