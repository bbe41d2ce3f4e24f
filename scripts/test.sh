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
echo "[test] pytest"
python -m pytest -n "$num_workers" --dist worksteal "$@"
if (($# == 0)); then
  # Where a processor has no AVX-512 TensorFlow leaves oneDNN off, and computes by other code.
  echo "[test] pytest, what computes, without oneDNN"
  TF_ENABLE_ONEDNN_OPTS=0 python -m pytest -n "$num_workers" --dist worksteal -m "computes and not slow"
fi
