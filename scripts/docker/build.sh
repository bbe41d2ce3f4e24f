#!/usr/bin/env bash
# Builds the Docker image "bert" of this checkout.
#
#   bash scripts/docker/build.sh                        from NVIDIA's container 25.02, for machines with GPUs
#   bash scripts/docker/build.sh -f Dockerfile.cpu      for machines without
#
# Options go to docker build. V100 and older GPUs need NVIDIA's container 24.03:
#   bash scripts/docker/build.sh --build-arg FROM_IMAGE_NAME=nvcr.io/nvidia/tensorflow:24.03-tf2-py3
# DRY_RUN=1 prints docker's command and stops there.
if [ -z "${BASH_VERSION:-}" ] || shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # by sh
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd -P)
# shellcheck source=scripts/docker/docker.sh
source "$root/scripts/docker/docker.sh"
cd "$root"

command=(docker build --network=host)
for name in "${proxies[@]}"; do
  [[ -z "${!name:-}" ]] || command+=(--build-arg "$name")
done
command+=(-t "$image" -f Dockerfile "$@" .)
stop_if_dry_run
need_docker
[[ $# != 0 ]] || have_gpu ||
  echo "There is no NVIDIA GPU here. The image for machines without one: bash scripts/docker/build.sh -f Dockerfile.cpu"
exec "${command[@]}"
