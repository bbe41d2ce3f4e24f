# shellcheck shell=bash
# A misspelt configuration in $(...) would expand to nothing, and the launcher would take its defaults. Here it expands
# to a word that the launcher refuses. Outside $(...) the shell's own message, which names it, is enough.
if ((BASH_SUBSHELL)); then
  say_which() { # <exit code>; 127: there is no such function
    [[ "$1" == 127 ]] || return
    echo "error: the configurations are$(declare -F | sed -n 's/^declare -f \([a-z0-9]*_[0-9]*gpu_\)/ \1/p' | tr -d '\n')" >&2
    echo no-configuration
  }
  trap 'say_which $?' EXIT
fi
