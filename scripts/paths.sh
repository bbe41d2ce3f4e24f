# shellcheck shell=bash
# Functions that other scripts source.

fail() { # <message>; for mistakes in what the user typed
  echo "error: $*" >&2
  exit 2
}

# absolute <path>: prints it from the root on, without links to folders; it need not exist. (macOS has no realpath -m.)
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
