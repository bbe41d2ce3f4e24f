#!/usr/bin/env bash
# Runs a command, or a shell, in a container of the image "bert", with this checkout at /workspace/bert.
#
#   bash scripts/docker/launch.sh [command]
#   bash scripts/docker/launch.sh bash scripts/run_pretraining_lamb.sh
#
# It runs as the user who calls it. NVIDIA_VISIBLE_DEVICES chooses the GPUs: 0,1 or their UUIDs; all (default
# where there are GPUs) or none. The variables of the scripts mean the same inside the container:
#   RESULTS_DIR                                            mounted at /results (default: the checkout's results)
#   BERT_PREP_WORKING_DIR, DATA_DIR, SQUAD_DIR, GLUE_DIR, VOCAB_FILE, INIT_CHECKPOINT  mounted under their own paths
#   DATASET, N_PROCESSES, http_proxy, ...                  passed on
# DRY_RUN=1 prints docker's command and stops there.
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # by sh
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd -P)
# shellcheck source=scripts/docker/docker.sh
source "$root/scripts/docker/docker.sh"

# --- GPUs --------------------------------------------------------------------------------------

command=(docker run --rm)
[[ ! -t 0 || ! -t 1 ]] || command+=(-it)
devices=${NVIDIA_VISIBLE_DEVICES-all}
case $devices in
  "" | none | void) ;;
  all) ! have_gpu || command+=(--gpus all) ;;
  *)
    [[ "$devices" =~ ^[[:alnum:]:/-]+(,[[:alnum:]:/-]+)*$ ]] ||
      fail "NVIDIA_VISIBLE_DEVICES='$devices': must be all, none, or GPUs separated by commas without blanks, as in 0,1"
    have_gpu || fail "NVIDIA_VISIBLE_DEVICES=$devices, but nvidia-smi lists no GPU on this machine; unset it to run on the CPU"
    command+=(--gpus "\"device=$devices\"") # docker would take a comma outside these quotes as its own separator
    ;;
esac

# --- Folders and variables ---------------------------------------------------------------------

[[ -z "${HOSTS:-}" ]] || fail "HOSTS=$HOSTS: a container starts no ranks on other machines; docs/clusters.md says how to" \
  "train on several, or unset it"
results=$(absolute "${RESULTS_DIR:-$root/results}")
mounts=() variables=()
add_mount() { # <what names it> <folder> <its path in the container>
  [[ "$2" != *:* ]] || fail "$1$2: docker mounts no folder with a colon in its path; rename it or name another"
  mounts+=(-v "$2:$3")
}
add_mount "the checkout " "$root" /workspace/bert
add_mount RESULTS_DIR= "$results" /results
[[ -z "${RESULTS_DIR:-}" ]] || variables+=(-e RESULTS_DIR=/results)
# The variables of all settings, as the settings declare them.
names=$(sed -n 's/.*variable="\([A-Z_]*\)".*/\1/p' "$root"/bert_tf/settings/*.py "$root"/bert_tf/tasks/*/settings.py)
for name in $names SHARDS DO_LOWER_CASE "${proxies[@]}"; do
  [[ -n "${!name:-}" ]] || continue
  case $name in
    DRY_RUN | RESULTS_DIR | CONTAINER_*) ;; # read by this script, mounted above, and for srun only
    *_DIR | *_FILE | *_CHECKPOINT)
      path=$(absolute "${!name}")
      mounted=$path
      # The folder of a checkpoint or a vocabulary: configuration and tokenizer lie beside them, and a checkpoint may be
      # named without its files' endings.
      [[ "$name" == *_DIR || -d "$path" ]] || mounted=$(dirname -- "$path")
      # In the cache of Hugging Face's hub a snapshot's files are links to files beside the snapshots.
      [[ "$mounted" != */models--*/snapshots/* ]] || mounted=${mounted%/snapshots/*}
      [[ -e "$mounted" && ("$name" != *_FILE || -e "$path") ]] || fail "$name=${!name}: there is no such file or folder"
      add_mount "$name=" "$mounted" "$mounted"
      variables+=(-e "$name=$path")
      ;;
    *) variables+=(-e "$name") ;;
  esac
done

# --- The command -------------------------------------------------------------------------------

command+=(--net=host --shm-size=1g --ulimit stack=67108864)
# In rootless docker the caller is the container's root, and other users may not write to the mounts. It cannot share
# the host's IPC namespace, or raise a limit above the caller's own.
[[ "$(docker info --format '{{.SecurityOptions}}' 2>/dev/null)" == *rootless* ]] ||
  command+=(--ipc=host --ulimit memlock=-1 --user "$(id -u):$(id -g)")
command+=(${mounts[@]+"${mounts[@]}"} ${variables[@]+"${variables[@]}"} -w /workspace/bert "$image" "${@:-bash}")
stop_if_dry_run

need_docker
# It knows other options, and some versions leave --gpus out without a word.
[[ "$(docker --version 2>/dev/null)" != podman* ]] ||
  fail "docker here is Podman, which takes other options for GPUs, users and memory. DRY_RUN=1 in front prints docker's" \
    "command, to make one for Podman of; for Apptainer see docs/containers.md"
answer=$(docker image inspect "$image" 2>&1 >/dev/null) || case $answer in
  *[Nn]o\ such\ image*) fail "there is no image '$image' yet: bash scripts/docker/build.sh makes it" ;;
  *) fail "docker does not answer: $answer" ;;
esac
mkdir -p "$results" || fail "the results folder $results cannot be made; RESULTS_DIR names another"
[[ -w "$results" ]] || fail "the results folder $results cannot be written to; RESULTS_DIR names another"
exec "${command[@]}"
