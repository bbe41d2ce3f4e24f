"""Every claim about speed or memory as a command: `python -m benchmarks` lists them.

A module with NEEDS (one line: what it cannot do without) is a benchmark, and its docstring's first line says what it
measures. With `add_options(parser)` and `run(bench)` it is one of `frame`, whose results lie in `results/` as JSON with
a page made from it; with `main()` it is a program of its own. Tools that are compared with are in `peers/`; what each
of them, and this project, does in a process of its own is in `variants/`.
"""
