#!/usr/bin/env bash
# Tries the first NVIDIA GPU of this machine, in ten minutes after the set-up: what the doctor says, whether two starts
# end with the same bits, the most telling tests, sequences/s of BERT-Large and BERT-Base beside PyTorch's and what was
# predicted, and memory beside the plan. Further checks follow as the time allows.
#
#   bash scripts/first_gpu.sh [options]
#
#   --budget_minutes N   instead of 10; the same command resumes where the time ran out
#   --peer_python FILE   a Python with PyTorch and transformers, for the rows beside ours
#   --rehearse           the same on the CPU, with a tiny model: no figure then says anything about a GPU
#   --output FOLDER      instead of results/first_gpu: the page report.md, all figures in rows.jsonl, and logs
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # by sh
set -euo pipefail
scripts=$(dirname "$(readlink -f "$0")")
cd "$scripts/.."
# shellcheck source=scripts/paths.sh
source scripts/paths.sh

check() { # <options>; checks them before the set-up, which takes minutes
  while (($#)); do
    case $1 in
      -h | --help) exec bash scripts/python.sh -m benchmarks gpu --help ;;
      --budget_minutes | --row_minutes | --only | --peer_python | --output)
        (($# > 1)) || fail "$1 lacks its value; see bash scripts/first_gpu.sh --help"
        set -- "$1=$2" "${@:3}"
        continue
        ;;
      --budget_minutes=* | --row_minutes=*) [[ "${1#*=}" =~ ^[0-9]+([.][0-9]+)?$ ]] || fail "$1: must be a number of minutes" ;;
      --peer_python=*) command -v "${1#*=}" >/dev/null || fail "$1: there is no such program" ;;
      --rehearse | --only=* | --output=?*) ;;
      *) fail "'$1' is none of its options; see bash scripts/first_gpu.sh --help" ;;
    esac
    shift
  done
}
check "$@"
bash scripts/setup.sh --test
exec bash scripts/python.sh -m benchmarks gpu --output results/first_gpu "$@"
