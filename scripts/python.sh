#!/usr/bin/env bash
# Python as the checkout uses it: .venv's where scripts/setup.sh has made one, else the one on PATH.
#   bash scripts/python.sh -m bert_tf.launch squad --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python="$root/.venv/bin/python"
[[ -x "$python" ]] || python=python3
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$@"
