"""The house rules: layers, no side effects, lengths, and the settings that people's scripts use."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.util
import re
import sys

import pytest

from bert_tf.programs.settings_page import TABLES, render
from tests import processes
from tests.processes import ROOT

PRODUCT = sorted((ROOT / "bert_tf").rglob("*.py"))
ENTRIES = [*ROOT.glob("run_*.py"), ROOT / "data/bertPrep.py"]
MAX_FUNCTION_LINES, MAX_MODULE_LINES = 80, 500

# Names that do not say what a thing is.
VAGUE = set("found place places wanted own of way_out".split())

# In the order in which the data flows: a package imports only from itself and from those above it.
PACKAGES = """
    base optimizer_registry bert_config settings text records batches prepare model optimizer memory ranks run report
    interchange training tasks launch planning doctor contrib programs
""".split()
# Packages that may import TensorFlow, and single modules of the others that may.
WITH_TENSORFLOW = {"model", "optimizer", "memory", "ranks", "run", "training", "tasks", "interchange"}
MODULES_WITH_TENSORFLOW = {"base.tensorflow", "batches.batches", "batches.data_sets", "contrib.replay"}
# Modules in the folders of tasks that import TensorFlow, when a model is made; others read flags and files.
TASK_MODULES_WITH_TENSORFLOW = ("head", "classes", "evaluation")
MODULES_WITH_HOROVOD = {"ranks.horovod_workers"}
# What prepare/ may use of the packages above it, and so may what contrib/ adds to it.
FOR_PREPARE = "base settings text records batches.masking batches.token_set prepare contrib".split()


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path):
    """Dotted names of everything a module imports, at any depth."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside_library(dotted):
    """``bert_tf.tasks.squad.features`` -> ``tasks.squad.features``; None for anything outside bert_tf."""
    package, _, inside = dotted.partition(".")
    return inside if package == "bert_tf" and inside else None


def module_name(path):
    return ".".join(path.relative_to(ROOT / "bert_tf").with_suffix("").parts)


def is_in(module, places):
    return any(module == place or module.startswith(f"{place}.") for place in places)


def is_without_tensorflow(path):
    module = module_name(path)
    if "triton" in imported(path):  # a kernel: some versions of Triton and TensorFlow cannot be in one process
        return True
    if module.startswith("tasks.") and module.count(".") > 1:  # in the folder of a task
        return module.rpartition(".")[2] not in TASK_MODULES_WITH_TENSORFLOW
    return not is_in(module, WITH_TENSORFLOW | MODULES_WITH_TENSORFLOW)


BERT_TF = [path for path in PRODUCT if path != ROOT / "bert_tf/__init__.py"]
# contrib and the planner lie beside the rest: its tables name what they hold, and nothing imports it.
BESIDE = ("contrib", "planning")
CORE = [path for path in BERT_TF if module_name(path).split(".")[0] not in BESIDE]


@pytest.mark.parametrize("path", BERT_TF, ids=names(BERT_TF))
def test_imports_go_upwards(path):
    module = module_name(path)
    package = module.split(".")[0]
    assert package in PACKAGES, f"{package} has no place in PACKAGES"
    inner = {dotted: inside_library(dotted) or "" for dotted in imported(path)}
    of_preparation = any(is_in(inside, {"prepare"}) for inside in inner.values())
    prepares = package == "prepare" or (package == "contrib" and of_preparation)
    for dotted, inside in inner.items():
        top = dotted.split(".")[0]
        assert top != "tests", dotted
        if inside:
            other = inside.split(".")[0]
            assert PACKAGES.index(other) <= PACKAGES.index(package), f"{module} imports {dotted} from below"
            assert path not in CORE or other not in BESIDE, f"{dotted} lies beside"
            assert not prepares or is_in(inside, FOR_PREPARE), f"{dotted}: preparation uses the top of the library"
        # What base.tensorflow chooses must be chosen before TensorFlow is imported.
        assert top not in ("tensorflow", "keras") or module == "base.tensorflow", f"{dotted}: from base.tensorflow"
        if is_in(inside, {"base.tensorflow"}):
            assert not is_without_tensorflow(path), dotted
        if top == "horovod":
            assert module in MODULES_WITH_HOROVOD or (package == "launch" and dotted.startswith("horovod.runner."))
        assert not prepares or dotted != "argparse", "a stage reads PreparationOptions"


def test_nothing_imports_itself_in_a_circle():
    """Neither for the names of types, nor late, within a function."""
    paths = {module_name(path).removesuffix(".__init__"): path for path in BERT_TF}
    graph = {}
    for module, path in paths.items():
        found = [(inside, inside.rpartition(".")[0]) for inside in filter(None, map(inside_library, imported(path)))]
        graph[module] = {next((name for name in names if name in paths), module) for names in found} - {module}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(paths)  # else it raises


def test_every_package_says_what_it_is_for():
    for path in (ROOT / "bert_tf").rglob("__init__.py"):
        assert ast.get_docstring(parsed(path)), f"{path} has no docstring"


NAMED = re.compile(r"bert_tf\.contrib\.[\w.]+:\w+")


def test_tables_name_all_that_lies_beside():
    """What a table names is there, and every folder of contrib is named by one."""
    named = {name for path in CORE for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    for name in named:
        module, _, name_in_module = name.partition(":")
        top = parsed(ROOT / f"{module.replace('.', '/')}.py").body
        defined = [getattr(each, "name", None) or re.split("[ :]", ast.unparse(each))[0] for each in top]
        assert name_in_module in defined, name
    assert {name.split(".")[2] for name in named} == {path.name for path in (ROOT / "bert_tf/contrib").glob("[!_]*/")}


@pytest.mark.parametrize("path", ENTRIES, ids=names(ENTRIES))
def test_entries_are_a_few_lines(path):
    assert len(path.read_text().splitlines()) <= 14


@pytest.mark.parametrize("path", PRODUCT, ids=names(PRODUCT))
def test_lengths(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"
    length = len(path.read_text(encoding="utf-8").splitlines())
    assert length <= MAX_MODULE_LINES, f"{length} lines: split it by meaning"


def test_names_say_what_a_thing_is():
    for path in [*PRODUCT, *(ROOT / "benchmarks").rglob("*.py")]:
        for node in ast.walk(parsed(path)):
            name = node.arg if isinstance(node, ast.arg) else getattr(node, "id", getattr(node, "name", None))
            assert str(name).strip("_") not in VAGUE, f"{path}:{node.lineno}: {name}"


def modules(are_without_tensorflow):
    """Dotted names of all that can be imported without starting a program; kernels only where there is Triton."""
    has_triton = importlib.util.find_spec("triton") is not None
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in BERT_TF
        if path.stem not in ("__init__", "__main__")
        and is_without_tensorflow(path) == are_without_tensorflow
        and (has_triton or "triton" not in imported(path))
    ]


# Importing all has no side effects, and needs no TensorFlow where a package is without.
WITHOUT = """
import importlib, os, threading, random, logging, sys
def state(): return random.getstate(), len(logging.root.handlers), dict(os.environ), os.getcwd()
before = state()
for name in sys.argv[1:]: importlib.import_module(name)
assert before == state()
assert threading.active_count() == 1, threading.enumerate()
loaded = {'tensorflow', 'keras', 'horovod'} & set(sys.modules)
assert not loaded, loaded
"""
# The rest asks for no devices, which would settle them before a program can choose.
WITH = """
import importlib, sys
for name in sys.argv[1:]: importlib.import_module(name)
assert 'horovod' not in sys.modules
from tensorflow.python.eager import context
assert not context.context()._initialized
"""


@pytest.mark.parametrize("is_without, code", [(True, WITHOUT), (False, WITH)], ids=["without TensorFlow", "the rest"])
def test_importing_says_and_writes_nothing(tmp_path, is_without, code):
    """In a process of its own."""
    names = [name for name in modules(is_without) if not (is_without and name.startswith("bert_tf.programs."))]
    variables = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = processes.answer(sys.executable, "-c", code, *names, cwd=tmp_path, **variables)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_flags_are_frozen():
    """People's scripts use their names: think twice before taking one away from the page."""
    page = "\n".join(render(TABLES)).rstrip() + "\n"
    way = "python -m bert_tf.programs.settings_page > docs/settings.md"
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == page, way
