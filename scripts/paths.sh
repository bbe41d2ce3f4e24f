# shellcheck shell=bash
# What other scripts source.

fail() { # what was typed
  echo "error: $*" >&2
  exit 2
}

# A path that may not be there yet, from the root on and without links to folders. (macOS has no realpath -m.)
absolute() {
  local path=$1 folder
  [[ "$path" == /* ]] || path=$PWD/$path
  if [[ -d "$path" ]]; then
    (cd -- "$path" && pwd -P)
  elif folder=$(cd -- "${path%/*}/" 2>/dev/null && pwd -P); then
    echo "${folder%/}/${path##*/}"
  else
    echo "$path"
  fi
}
