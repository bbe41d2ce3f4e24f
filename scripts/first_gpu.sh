#!/usr/bin/env bash
# Tries everything on the first NVIDIA GPU of this machine, in 20 minutes after the set-up: what the doctor says, the
# tests that compare the GPU with the CPU, sequences/s of BERT-Large and BERT-Base beside what was predicted, and memory
# beside the plan.
#
#   bash scripts/first_gpu.sh [options]
#
#   --budget_minutes N   instead of 20; the same command goes on where the time was over
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
