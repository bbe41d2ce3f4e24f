#!/usr/bin/env bash
# Tries the first NVIDIA GPU of this machine, in ten minutes after the set-up: what the doctor says, whether two starts
# end with the same bits, the most telling tests, sequences/s of BERT-Large and BERT-Base beside PyTorch's and what was
# predicted, and memory beside the plan. What else there is to try follows as the time allows.
#
#   bash scripts/first_gpu.sh [options]
#
#   --budget_minutes N   instead of 10; the same command goes on where the time was over
#   --peer_python FILE   a Python with PyTorch and transformers, for the rows beside ours
#   --rehearse           the same on the CPU, with a tiny model: no figure then says anything about a GPU
#   --output FOLDER      instead of results/first_gpu: the page report.md, all figures in rows.jsonl, and logs
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT bash "$0" "$@"; fi # by sh
set -euo pipefail
scripts=$(dirname "$(readlink -f "$0")")
cd "$scripts/.."
case " $* " in
  *" -h "* | *" --help "*) ;; # which needs no set-up
  *) bash scripts/setup.sh --test ;;
esac
exec bash scripts/python.sh -m benchmarks gpu --output results/first_gpu "$@"
