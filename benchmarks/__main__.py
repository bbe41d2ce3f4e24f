"""Lists the benchmarks, runs one of them, or makes all tables and plots of their results anew.

python -m benchmarks                            # the list
python -m benchmarks training_step --bert_model mini --rounds 15
python -m benchmarks tables                     # benchmarks/results/*.md, the tables in README.md and docs/*.md
python -m benchmarks pictures                   # the plots of docs/RESULTS.md; needs matplotlib
python -m benchmarks pictures RUN RUN           # README's curve, from the quickstart's two phases
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.command_line import CommandParser
from bert_tf.base.errors import UserError, exit_on_user_error

HERE = Path(__file__).resolve().parent
PROGRAMS = ("finetuning", "gpu")  # with a command line of their own
ON_GPUS = ("budget_hours",)  # besides PROGRAMS; all others see no GPU


class Benchmark(NamedTuple):
    summary: str
    needs: str


def find_benchmarks() -> dict[str, Benchmark]:
    """The benchmarks by name, read without importing them, because TensorFlow takes seconds."""
    benchmarks = {}
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("*/__main__.py")]):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for node in module.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NEEDS":
                summary = (ast.get_docstring(module) or "").partition("\n\n")[0].replace("\n", " ")
                name = path.stem if path.parent == HERE else path.parent.name
                benchmarks[name] = Benchmark(summary, ast.literal_eval(node.value))
    return dict(sorted(benchmarks.items()))


def make_parser(name: str, module: Any) -> argparse.ArgumentParser:
    from benchmarks import results

    parser = argparse.ArgumentParser(
        f"python -m benchmarks {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=getattr(module, "ROUNDS", 5), help="%(default)s")
    parser.add_argument("--cores", type=int, default=getattr(module, "CORES", 1), help="%(default)s; 0: all")
    module.add_options(parser)
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="folder for the JSON and its page")
    parser.add_argument("--label", default="", help="of this result, to keep it beside those of other machines")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the page, such as what else ran")
    parser.add_argument("--no_peers", action="store_true", help="measure this project alone")
    return parser


def run(name: str, benchmark: Benchmark, arguments: Sequence[str]) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if name in PROGRAMS:
        sys.argv = [f"python -m benchmarks {name}", *arguments]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        return
    if name not in ON_GPUS:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from benchmarks.frame import Bench

    module = importlib.import_module(f"benchmarks.{name}")
    options = make_parser(name, module).parse_args(arguments)
    if options.rounds < 1:
        raise UserError(f"--rounds is {options.rounds}; at least one is needed")
    with Bench(name, options, benchmark.summary).pinned() as bench:
        module.run(bench)
    bench.save()


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    benchmarks = find_benchmarks()
    name = argv[1] if len(argv) > 1 else ""
    if name in benchmarks:
        run(name, benchmarks[name], argv[2:])
    elif name in ("tables", "pictures"):
        parser = CommandParser(f"python -m benchmarks {name}", description=__doc__)
        if name == "pictures":
            parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="a folder with metrics.jsonl")
        options = parser.parse_args(argv[2:])
        from benchmarks import pages
        from benchmarks.pages import pictures

        if name == "tables":
            pages.write()
        else:
            pictures.draw(options.runs)
    elif name in ("", "-h", "--help"):
        print(__doc__)
        for key, benchmark in benchmarks.items():
            print(f"{key:20} {benchmark.summary}\n{'':20} needs: {benchmark.needs}")
    else:
        raise UserError(f"there is no benchmark {name!r}; there are {', '.join(benchmarks)}")


if __name__ == "__main__":
    main(sys.argv)
