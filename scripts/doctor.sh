#!/usr/bin/env bash
# Looks for whatever would keep training from working on this machine.
scripts=$(dirname "$(readlink -f "$0")")
bash "$scripts/python.sh" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || {
  (($? != 2)) || exit 2 # python.sh has said why
  echo "problem  Python: there is no Python 3.9 to 3.13: 'bash scripts/setup.sh' finds or fetches one" >&2
  exit 1
}
exec bash "$scripts/python.sh" -m bert_tf.doctor "$@"
