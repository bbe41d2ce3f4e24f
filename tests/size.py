"""Counts the house: `python -m tests.size [CHECKOUT]` prints lines, expressions, modules, classes, settings, refusals.

Lines are all lines of a file, comments and blank ones too. Modules are Python files of the product that are not empty.

* *Expressions and statements* are the nodes of these kinds in the product's syntax trees, docstrings among them; the
  *core* is what lies outside `contrib/`.
* *The config of pre-training enters a module* that names it, or at least two of its settings: as arguments, keywords,
  attributes or names, the seed and the precision apart, which everything has. What it inherits counts as well.
* *Refusals* are raised errors with the whole `if` or `try` of which a branch raises them, and functions made for
  refusing: those whose name begins with check, require, refuse, reject or validate, or of which a quarter raises.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PRODUCT = ("bert_tf/**/*.py", "data/**/*.py", "run_*.py")
PARTS = {
    "product, Python": PRODUCT,
    "product, shell": ("scripts/**/*.sh", "scripts/**/*.sub", "data/*.sh", ".ci/run"),
    "product, C++ and templates": ("bert_tf/**/*.cpp", "bert_tf/**/*.html"),
    "scripts in Python": ("scripts/**/*.py",),
    "tests": ("tests/**/*.py",),
    "benchmarks": ("benchmarks/**/*.py",),
}
BESIDE = "bert_tf/contrib/"  # what is no part of the core
CONFIG = "PretrainingConfig"
EVERYWHERE = {"seed", "precision"}
LEAST_SETTINGS = 2
REFUSING_NAME = re.compile(r"_*(check|require|refuse|reject|validate)")
REFUSING_SHARE = 0.25


def files(checkout: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in checkout.glob(pattern) if path.is_file()})


def num_lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def settings_of(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The fields of a class and of those that it inherits from, by name."""
    if name not in classes:
        return set()
    fields = {each.target.id for each in classes[name].body if isinstance(each, ast.AnnAssign)}  # type: ignore[union-attr]
    bases = (base.id for base in classes[name].bases if isinstance(base, ast.Name))
    return fields.union(*(settings_of(base, classes) for base in bases)) - EVERYWHERE


def names_in(module: ast.Module) -> set[str]:
    """All names, attributes, arguments, keywords and what is imported."""
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg", ast.alias: "name"}
    return {getattr(node, kinds[type(node)]) or "" for node in ast.walk(module) if type(node) in kinds}


def lines_of(node: ast.stmt | ast.excepthandler) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def refusal_lines(module: ast.Module) -> set[int]:
    """The numbers of the lines that refuse."""
    numbers: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Raise):
            numbers.update(lines_of(node))
        elif isinstance(node, (ast.If, ast.Try)):
            handlers = node.handlers if isinstance(node, ast.Try) else [node]
            if any(isinstance(each, ast.Raise) for handler in handlers for each in handler.body):
                numbers.update(lines_of(node))
        elif isinstance(node, ast.FunctionDef):
            raised = sum(len(lines_of(each)) for each in ast.walk(node) if isinstance(each, ast.Raise))
            if REFUSING_NAME.match(node.name) or (raised and raised >= REFUSING_SHARE * len(lines_of(node))):
                numbers.update(lines_of(node))
    return numbers


def num_expressions(modules: Iterable[ast.Module]) -> int:
    """With the statements."""
    return sum(isinstance(node, (ast.expr, ast.stmt)) for module in modules for node in ast.walk(module))


def measure(checkout: Path) -> dict[str, str]:
    """The figures by name."""
    figures = {part: f"{num_lines(files(checkout, patterns)):,}" for part, patterns in PARTS.items()}
    product = files(checkout, PRODUCT)
    modules = [ast.parse(path.read_text(encoding="utf-8")) for path in product]
    classes = [node for module in modules for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    settings = settings_of(CONFIG, {each.name: each for each in classes})
    entered = [names for names in map(names_in, modules) if CONFIG in names or len(names & settings) >= LEAST_SETTINGS]
    core = [module for path, module in zip(product, modules) if BESIDE not in path.as_posix()]
    return {
        **figures,
        "expressions and statements": f"{num_expressions(modules):,}",
        "expressions and statements of the core": f"{num_expressions(core):,}",
        "modules": str(sum(bool(module.body) for module in modules)),
        "classes": str(len(classes)),
        "modules that the config of pre-training enters": str(len(entered)),
        "refusals, share of lines": f"{sum(map(len, map(refusal_lines, modules))) / num_lines(product):.1%}",
    }


def main() -> None:
    checkout = Path(sys.argv[1]) if sys.argv[1:] else CHECKOUT
    for name, value in measure(checkout).items():
        print(f"{value:>8}  {name}")


if __name__ == "__main__":
    main()
