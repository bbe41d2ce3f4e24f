#!/usr/bin/env bash
# Runs the checkout's Python: that of .venv (or BERT_VENV) if scripts/setup.sh has created one, else python3 on PATH.
#   bash scripts/python.sh -m bert_tf.launch squad --help
set -eu
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
python="${BERT_VENV:-$root/.venv}/bin/python"
[ -x "$python" ] || python=python3
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$@"
