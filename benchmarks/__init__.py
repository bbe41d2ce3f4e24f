"""Every claim about speed or memory as a command: `python -m benchmarks` lists them.

A module with NEEDS (one line that says what it requires) is a benchmark, and its docstring's first line says what it
measures. If it has `add_options(parser)` and `run(bench)` it uses `frame`, which keeps results in `results/` as JSON
with a page made from it; if it has `main()` it is a separate program. The tools compared with are in `peers/`; what
each of them, and this project, does in its own process is in `variants/`.
"""
