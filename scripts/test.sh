#!/usr/bin/env bash
# Sets up .venv, then runs the linters and all tests.
#
#   bash scripts/test.sh                      everything (15 minutes at most on 2 idle cores)
#   bash scripts/test.sh -m 'not slow'        arguments go to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh --test
# shellcheck disable=SC1091  # made by the line above
source "${BERT_VENV:-.venv}/bin/activate"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}" # or oneDNN prints a notice in every process
unset PYTHONDONTWRITEBYTECODE                            # or each of hundreds of programs compiles its modules anew

echo "[test] ruff"
ruff check .
ruff format --check --quiet .
echo "[test] mypy"
mypy
if command -v shellcheck >/dev/null; then
  echo "[test] shellcheck"
  shopt -s nullglob
  shellcheck .ci/run scripts/*.sh scripts/*.sub scripts/*/*.sh data/*.sh
else
  echo "[test] shellcheck is not installed: shell scripts are not checked"
fi
num_workers=$(($(nproc) < 3 ? $(nproc) + 1 : 4)) # each takes a GiB or two; some tests wait
# A file at a time, in the order of tests/conftest.py: what its tests share is made once.
distributed=(-n "$num_workers" --dist loadfile --no-loadscope-reorder)
echo "[test] pytest"
python -m pytest "${distributed[@]}" "$@"
if (($# == 0)); then
  # Where a processor has no AVX-512 TensorFlow leaves oneDNN off, and computes by other code.
  echo "[test] pytest, what computes, without oneDNN"
  mapfile -t files < <(grep -l 'pytest\.mark\.computes' tests/test_*.py)
  TF_ENABLE_ONEDNN_OPTS=0 python -m pytest "${distributed[@]}" -m "computes and not slow" "${files[@]}"
fi
