#!/usr/bin/env bash
# Runs the checkout's Python: that of .venv (or BERT_VENV) if scripts/setup.sh has created one, else python3 on PATH.
#   bash scripts/python.sh -m bert_tf.launch squad --help
set -eu
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
python="${BERT_VENV:-$root/.venv}/bin/python"
if [ ! -x "$python" ]; then
  if [ -n "${BERT_VENV:-}" ]; then
    echo "error: BERT_VENV=$BERT_VENV: there is no bin/python in it; 'bash scripts/setup.sh' makes it, or unset BERT_VENV" >&2
    exit 2
  fi
  python=python3
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# Nothing is imported from the folder in which the user types, be it another checkout or a file named like a module.
export PYTHONSAFEPATH=1
if [ -d bert_tf ] && ! [ bert_tf -ef "$root/bert_tf" ] && "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 11))'; then
  echo "error: Python before 3.11 would import $PWD/bert_tf instead of $root/bert_tf; start this in another folder" >&2
  exit 2
fi
exec "$python" "$@"
