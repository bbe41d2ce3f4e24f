#!/usr/bin/env bash
# Sets up .venv, then runs the linters and the tests.
#
#   bash scripts/test.sh                      everything but walks through whole pages and notebooks, which .ci/run adds
#   bash scripts/test.sh -m 'not slow'        other arguments go to pytest: files, options of one letter, and
#                                             --lf --ff --sw --co --pdb --durations=N --maxfail=N --tb=STYLE
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # by sh
set -euo pipefail
self=$(readlink -f "$0")
cd "$(dirname "$self")/.."
before=""
for argument in "$@"; do
  case $argument in
    -h | --help)
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$self"
      exit 0
      ;;
    --lf | --ff | --sw | --co | --pdb | --durations=* | --maxfail=* | --tb=* | -[a-zA-Z]*) ;;
    *)
      # An option of one letter may have a value.
      [[ "$before" == -[a-zA-Z] || -e "${argument%%::*}" ]] || {
        echo "error: '$argument' is neither a file nor a known option; see bash scripts/test.sh --help" >&2
        exit 2
      }
      ;;
  esac
  before=$argument
done
bash scripts/setup.sh --test
# shellcheck disable=SC1091  # made by the line above
source "${BERT_VENV:-.venv}/bin/activate"
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}" # or oneDNN prints a notice in every process
unset PYTHONDONTWRITEBYTECODE                            # or each of hundreds of programs compiles its modules again

echo "[test] ruff"
ruff check .
ruff format --check --quiet .
# At the same time, on another core: compile the tests with their assertions, which each of pytest's processes would
# otherwise do by itself. Errors in them are reported by pytest below.
python -m pytest --collect-only --quiet >/dev/null 2>&1 &
if python -c 'import sys, numpy; sys.exit(sys.version_info < (3, 10) or numpy.__version__[0] != "1")'; then
  echo "[test] mypy"
  mypy
else
  echo "[test] mypy is left out: the code is annotated for mypy 2, which needs Python 3.10, and for the types of NumPy 1"
fi
wait
if command -v shellcheck >/dev/null; then
  echo "[test] shellcheck"
  shopt -s nullglob
  shellcheck .ci/run scripts/*.sh scripts/*.sub scripts/*/*.sh data/*.sh
else
  echo "[test] shellcheck is not installed: shell scripts are not checked"
fi
num_cores=$(python -c "from bert_tf.base.machine.hardware import count_cores; print(min(4, count_cores()))") # of one or two GiB each
# Each process runs whole files, in the order of tests/conftest.py, so that what a file's tests share is made once.
by_file=(--dist loadfile --no-loadscope-reorder)
everything=$(($# == 0))
((everything)) && set -- -m "not walkthrough"
echo "[test] pytest"
python -m pytest -n $((num_cores < 3 ? num_cores + 2 : 4)) "${by_file[@]}" "$@" # two more, because some tests wait
if ((everything)); then
  # Without oneDNN, which users may switch off, and which some builds lack, TensorFlow computes with other code.
  echo "[test] pytest, the tests marked 'computes', without oneDNN"
  # shellcheck disable=SC2046  # names without blanks
  TF_ENABLE_ONEDNN_OPTS=0 python -m pytest -n "$num_cores" "${by_file[@]}" -m "computes and not slow" \
    $(grep -rl --include='test_*.py' 'pytest\.mark\.computes' tests)
fi
