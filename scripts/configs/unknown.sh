# shellcheck shell=bash
# A misspelt configuration in $(...) would expand to nothing, and the launcher would take its defaults. Here it expands
# to a word that the launcher refuses. Outside $(...) the shell's own message is enough.
if ((BASH_SUBSHELL)); then
  command_not_found_handle() {
    printf 'error: there is no configuration %s, but:%s\n' "$1" "$(declare -F | sed -n 's/^declare -f \([a-z0-9]*_[0-9]*gpu_\)/ \1/p' | tr -d '\n')" >&2
    echo "no-configuration:$1"
  }
fi
