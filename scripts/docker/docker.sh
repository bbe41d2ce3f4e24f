#!/usr/bin/env bash
# What build.sh and launch.sh share; they source it.
# shellcheck disable=SC2034,SC2154  # variables set in one file are used in another
if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit 0
fi
image=bert
proxies=(http_proxy https_proxy no_proxy)
# shellcheck source=scripts/paths.sh
source "$(dirname "${BASH_SOURCE[0]}")/../paths.sh"

# Without a pipe: grep -q would end before nvidia-smi does, which then fails.
have_gpu() { command -v nvidia-smi >/dev/null && [[ $'\n'"$(nvidia-smi -L 2>/dev/null)" == *$'\nGPU'* ]]; }

need_docker() {
  command -v docker >/dev/null || fail "there is no docker on PATH. Everything also runs without it after" \
    "'bash scripts/setup.sh'; for clusters with Apptainer see docs/containers.md"
}

# With DRY_RUN=1: prints the array `command` as it would be typed in a shell.
stop_if_dry_run() {
  shopt -s nocasematch # values as the launchers take them
  case ${DRY_RUN:-0} in
    0 | false | no) shopt -u nocasematch && return ;;
    1 | true | yes) ;;
    *) fail "DRY_RUN=$DRY_RUN: must be 1, 0, true, false, yes or no" ;;
  esac
  local word line="" quote="'" quoted="'\\''"
  for word in "${command[@]}"; do
    [[ "$word" =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//$quote/$quoted}'"
    line+=" $word"
  done
  echo "${line# }"
  exit 0
}
