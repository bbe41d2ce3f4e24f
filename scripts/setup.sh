#!/usr/bin/env bash
# Makes .venv in the checkout: Python 3.9 to 3.13, TensorFlow, Horovod 0.28.1.
#
#   bash scripts/setup.sh [--gpu] [--test]     --test adds the packages for the tests
#   source scripts/setup.sh [--gpu] [--test]   the same, and activates .venv in this shell
#
# Where nvidia-smi lists a GPU the packages are those for GPUs. --gpu takes them where there is none, as on the login
# node of a cluster whose other nodes have no network; it stays so for this .venv.
#
# TensorFlow is 2.15.1 on Python 3.9 to 3.11, the fastest on a CPU, and 2.20.0 on later ones. TENSORFLOW=2.15, 2.17 or
# 2.20 chooses another for this .venv, with a Python that it runs on (docs/machines.md says which to take).
#
# Environment: PYTHON=/path/to/python chooses the interpreter, also for a .venv that has another version and is then made
# again; BERT_VENV=/folder another place than .venv (container images have theirs in /opt, because the checkout is
# mounted over their own); the Horovod that it builds is kept below XDG_CACHE_HOME (default ~/.cache). Running it again
# checks .venv and repairs it.

if [ -z "${BASH_VERSION:-}" ]; then
  case ${ZSH_EVAL_CONTEXT:-}:$0 in
    *:file:*) ;; # sourced in zsh; other shells then have their own name in $0
    *.sh) exec bash "$0" "$@" ;;
  esac
  echo "error: only bash can source this; type 'bash scripts/setup.sh', then '. .venv/bin/activate'" >&2
  return 2
fi
if [[ "${BASH_SOURCE[0]}" != "$0" ]]; then
  # shellcheck disable=SC1091  # made by the first command of the line
  bash "${BASH_SOURCE[0]}" "$@" && source "${BERT_VENV:-$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.venv}/bin/activate"
  return
fi
if shopt -oq posix; then exec env -u POSIXLY_CORRECT -u SHELLOPTS bash "$0" "$@"; fi # by sh

set -euo pipefail
self=$(readlink -f "$0")
root=$(cd "$(dirname "$self")/.." && pwd)
cd "$root"
venv="${BERT_VENV:-$root/.venv}"
venv=${venv%/}
python="$venv/bin/python"
state="$venv-setup" # beside .venv, so that it survives when .venv is made again
log="$state/setup.log"
cache="${XDG_CACHE_HOME:-${HOME:-$state}/.cache}/bert_tf"
horovod_version=0.28.1
horovod_sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0 # of its source, as the lock files have
started=$SECONDS
child=""

say() { printf '[setup] %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
refuse() { # <message>; for mistakes in what the user typed or set
  printf 'error: %s\n' "$*" >&2
  exit 2
}
stop() { # on a signal: the running step must not go on in the background
  [[ -n "$child" ]] && kill -TERM -- "-$child" 2>/dev/null
  printf '\n[setup] interrupted; the same command resumes here\n' >&2
  exit 130
}
trap stop INT TERM

# step <what> <command...>: runs the command and prints one line with its time; its output goes to the log.
step() {
  local what=$1 since=$SECONDS status=0
  shift
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  printf '[setup] %s ... ' "$what"
  set -m # a separate process group, so that `stop` can end it with all its compilers
  "$@" >>"$log" 2>&1 </dev/null &
  child=$!
  set +m
  while [[ -t 1 ]] && kill -0 "$child" 2>/dev/null; do
    sleep 1
    printf '\r[setup] %s ... %d s ' "$what" $((SECONDS - since))
  done
  wait "$child" || status=$?
  child=""
  if ((status == 0)); then
    [[ -t 1 ]] && printf '\r[setup] %s ... ' "$what"
    printf 'done in %d s\n' $((SECONDS - since))
  else
    printf 'failed after %d s\n' $((SECONDS - since))
  fi
  return "$status"
}

# explain <message>: shows the end of the output of a step that has failed, and fails.
explain() {
  awk '/^== /{text=""} {text=text $0 "\n"} END{printf "%s", text}' "$log" | tail -n 20 >&2
  fail "$1: the lines above say why, and $log has all. Where the network or room on the disk was missing" \
    "($(df -Ph "$state" | awk 'NR==2{print $4}') left at $venv), type the same command again once it is there."
}

import_failed="TensorFlow does not import${PYTHONPATH:+ (PYTHONPATH=$PYTHONPATH comes before .venv: try it without)}"

# --- The machine -------------------------------------------------------------------------------

# The lock files have wheels for these machines only; elsewhere pip would compile for long, and then fail.
refuse_machine() {
  if on_mac; then
    [[ "$(uname -m)" == arm64 ]] || refuse "this is a Mac with an Intel processor (or a terminal under Rosetta), for" \
      "which the packages are no longer made; Dockerfile.cpu is a way there (docs/containers.md)"
    ! "$for_gpu" || refuse "--gpu is for NVIDIA's GPUs, and a Mac has none: leave it out"
    return
  fi
  case $(uname -m) in
    x86_64 | aarch64) ;;
    *) refuse "TensorFlow has no packages for Linux on $(uname -m), only on x86_64 and aarch64: take such a machine" ;;
  esac
  local libc
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc="another than glibc"
  awk '{split($2, v, "."); exit !($1 == "glibc" && (v[1] > 2 || v[1] == 2 && v[2] >= 28))}' <<<"$libc" ||
    refuse "the C library here is $libc, and TensorFlow's packages need glibc 2.28: take a newer Linux (Debian 10," \
      "Ubuntu 20.04, RHEL 8), or a container: bash scripts/docker/build.sh -f Dockerfile.cpu"
}
on_mac() { [[ "$(uname -s)" == Darwin ]]; }

# --- Python ------------------------------------------------------------------------------------

# The newest Python 3 that the chosen TensorFlow runs on; without a choice the newest of all.
last_python() {
  case $tensorflow in
    2.15) echo 11 ;;
    2.17) echo 12 ;;
    *) echo 13 ;;
  esac
}
supported() { # <python>; must have 64 bits, as TensorFlow's packages; on a Mac not one that Rosetta would translate
  "$1" -c 'import sys
sys.exit(not (sys.maxsize > 2**32 and (3, 9) <= sys.version_info[:2] <= (3, int(sys.argv[1]))))' "$(last_python)" 2>/dev/null &&
    { ! on_mac || [[ "$("$1" -c 'import platform; print(platform.machine())')" == arm64 ]]; }
}
pythons() { echo "Python 3.9 to 3.$(last_python)$(! on_mac || echo " for Apple's processors")"; }

choose_tensorflow() {
  if in_container; then
    tensorflow=$(python3 -c 'import importlib.metadata as m; print(".".join(m.version("tensorflow").split(".")[:2]))' 2>/dev/null) || true
    [[ -e "requirements/$tensorflow/cpu.txt" ]] ||
      refuse "this container has TensorFlow ${tensorflow:-without a version}, and none of $(cd requirements && echo 2.*):" \
        "nvcr.io/nvidia/tensorflow:25.02-tf2-py3 has 2.17 and 24.03-tf2-py3 has 2.15 (docs/containers.md)"
    return
  fi
  tensorflow=${TENSORFLOW:-$(cat "$state/tensorflow" 2>/dev/null || true)}
  [[ -z "$tensorflow" || -e "requirements/$tensorflow/cpu.txt" ]] ||
    refuse "TENSORFLOW is '$tensorflow'; it may be $(cd requirements && echo 2.*), or nothing: then the Python decides"
}

# Prints the TensorFlow version of .venv, which names a folder in requirements/.
tensorflow_of_venv() {
  if [[ -n "$tensorflow" ]]; then
    echo "$tensorflow"
  else
    "$python" -c 'import sys; print("2.15" if sys.version_info < (3, 12) else "2.20")'
  fi
}
can_make_venvs() { "$1" -c 'import venv, ensurepip' 2>/dev/null; } # Debian's needs the package python3-venv

# Prints an interpreter that can make .venv: PYTHON if set, else one on PATH; nothing if there is none.
find_interpreter() {
  local candidate
  local -a candidates=(python3.11 python3.10 python3.9 python3.12 python3.13 python3 python)
  [[ -z "${PYTHON:-}" ]] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    if supported "$candidate" && can_make_venvs "$candidate"; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  [[ -z "${PYTHON:-}" ]] ||
    refuse "PYTHON=$PYTHON is not $(pythons) with the module venv${tensorflow:+, which TensorFlow $tensorflow needs}" \
      "(Debian, Ubuntu: apt-get install python3-venv)"
}

install_uv() { # <folder>; not with --user, which Debian's Python 3.11 refuses
  { python3 -m venv "$1" && "$1/bin/python" -m pip install -q uv; } || python3 -m pip install -q --target "$1" uv
}

make_venv() {
  local interpreter uv=uv
  touch "$state/dirty"
  rm -rf "$venv"
  if in_container; then
    say "NVIDIA's container: its own Python and TensorFlow are used"
    # With the container's pip: Ubuntu's Python cannot install one without its package python3-venv.
    step "virtual environment" python3 -m venv --system-site-packages --without-pip "$venv" || explain "python3 -m venv failed"
    return
  fi
  interpreter=$(find_interpreter)
  if [[ -n "$interpreter" ]]; then
    step "virtual environment with $interpreter" "$interpreter" -m venv "$venv" || explain "making the virtual environment failed"
    return
  fi
  # uv makes environments without the module venv, and fetches a Python where there is none.
  if ! command -v uv >/dev/null; then
    uv="$cache/uv/bin/uv"
    [[ -x "$uv" ]] || step "uv, which can fetch a Python" install_uv "$cache/uv" || true
  fi
  step "virtual environment with uv" "$uv" venv --quiet --seed --python ">=3.9,<3.$(($(last_python) + 1))" "$venv" && return
  if supported python3; then
    fail "$(python3 -V) here has no module venv, and uv, which needs none, could not be had (log: $log):" \
      "'apt-get install python3-venv', and type the same command again"
  fi
  fail "no $(pythons) of 64 bits was found (python3 here: $(found_python)), and uv could not fetch one (log: $log)." \
    "Install one, e.g. 'apt-get install python3-venv' (Debian 12 or 13, Ubuntu 22.04 or 24.04)," \
    "'brew install python@3.11' or 'pyenv install 3.11', and type the same command again."
}
found_python() { python3 -c 'import sys; print("%d.%d, %d bits" % (*sys.version_info[:2], sys.maxsize.bit_length() + 1))' 2>/dev/null || echo none; }

# --- Packages ----------------------------------------------------------------------------------

in_container() { [[ -n "${NVIDIA_TENSORFLOW_VERSION:-}" || "${NVIDIA_PRODUCT_NAME:-}" == TensorFlow ]]; }
# Without a pipe: grep -q would end before nvidia-smi does, which then fails.
have_driver() { command -v nvidia-smi >/dev/null && [[ $'\n'"$(nvidia-smi -L 2>/dev/null)" == *$'\nGPU'* ]]; }
has_blank() { [[ "$venv" == *[[:space:]]* ]]; }
have_compiler() { command -v "${CXX:-g++}" >/dev/null && command -v make >/dev/null; }

# A killed pip leaves an incomplete package that pip takes for complete. The file `dirty` exists while pip runs.
# Into .venv, and all of it, whatever is set for other uses: pip leaves out what it finds by PYTHONPATH.
install() { # <what> <pip arguments...>
  local what=$1
  shift
  touch "$state/dirty"
  step "$what" env -u PYTHONPATH -u PIP_TARGET -u PIP_PREFIX PIP_USER=0 \
    "$python" -m pip install --disable-pip-version-check --retries 3 "$@" || explain "installing $what failed"
  rm "$state/dirty"
}

install_packages() {
  local -a wanted=(-r requirements/base.txt)
  local free needed=2500 of_version # MiB
  of_version="requirements/$(tensorflow_of_venv)"
  ! "$want_tests" || needed=3500
  [[ $flavour != gpu ]] || needed=10000
  if in_container; then
    wanted+=(-r requirements/triton.txt)
    wanted+=("protobuf<5") # as TensorFlow 2.15 and 2.17 need it; image 24.03 has one that is too old for our records
    "$want_tests" && wanted+=(-r requirements/test.txt)
  else
    free=$(df -Pk "$venv" | awk 'NR==2{print int($4 / 1024)}')
    ((free >= needed)) || fail "$free MiB are free at $venv; the set-up needs about $needed. Free some, or name another" \
      "place by BERT_VENV, then type the same command again."
    wanted=(-r "$of_version/lock-$flavour.txt")
    "$want_tests" && wanted+=(-r "$of_version/lock-test.txt")
  fi
  install "Python packages ($flavour)" --no-compile "${wanted[@]}"
  # Keras 2 without its dependencies: one of them, tensorflow, would overwrite tensorflow-cpu.
  [[ ! -e "$of_version/keras.txt" ]] || install "Keras 2" --no-compile --no-deps -r "$of_version/keras.txt"
  add_project
  step "compiling them" compile_packages
}

# Python finds the project from every folder, as notebooks and examples/ need it. The line is code in ASCII: Python 3.11
# and 3.12 do not start where LC_ALL=C and a line of such a file has another character.
add_project() {
  "$python" -c 'import sys, sysconfig
open(sysconfig.get_path("purelib") + "/bert_tf.pth", "w").write(f"import sys; sys.path.append({sys.argv[1]!a})\n")' "$root"
}

# On all cores; pip would use one. Files that are no valid Python for this version are skipped.
compile_packages() { "$python" -m compileall -q -j 0 "$venv/lib" || true; }

# Whether Horovod loads, and was built with NCCL and MPI if this machine has them.
horovod_works() {
  TF_CPP_MIN_LOG_LEVEL=3 "$python" -c 'import sys, horovod.tensorflow as hvd
for name, is_built in ("nccl", hvd.nccl_built()), ("mpi", hvd.mpi_built()):
    if name in sys.argv[1] and not is_built:
        sys.exit(f"Horovod was built without {name}, which is here now")' "$controllers" >>"$log" 2>&1
}

# Builds Horovod with NCCL if CUDA's compiler and NCCL's header exist, with MPI if its compiler does, always with Gloo.
horovod_settings() {
  export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
  controllers=gloo
  if command -v mpicxx >/dev/null; then
    export HOROVOD_WITH_MPI=1
    controllers=gloo-mpi$(mpicxx -show 2>/dev/null | cksum | cut -d' ' -f1)
  else
    export HOROVOD_WITHOUT_MPI=1
  fi
  if [[ $flavour != cpu ]] && command -v nvcc >/dev/null && [[ "$(nvcc --version)" == *"release 12"* ]] &&
    [[ -n "${HOROVOD_NCCL_HOME:-}" || -e /usr/include/nccl.h ]]; then
    export HOROVOD_GPU_OPERATIONS=NCCL
    controllers+=-nccl
  fi
}

# Built from source with seven changes: Gloo's controller resizes the list of ranks (it only reserved memory,
# so the check for stalled ranks never found one); all of Gloo's connections use the network interface that was chosen
# (the later ones asked for the host's own name, which may have no address, or that of loopback); Gloo is compiled for
# TensorFlow only; debugging information is left out, which takes less time and a sixteenth of the space; so are the
# operations for XLA, which are switched off anyway, where TensorFlow has moved a header that they include. Two changes
# are for GCC 14, as in Debian 13: a missing #include, and members of a class of flatbuffers that are declared constant
# but assigned to.
build_horovod() { # <folder for the wheel>
  local scratch source wheel
  scratch=$(mktemp -d "$state/horovod.XXXXXX")
  source="$scratch/horovod-$horovod_version"
  # PATH: CMake comes from requirements/horovod.txt. The wheel appears in its folder, which may be on another disk, only
  # when it is complete.
  export CXXFLAGS="${CXXFLAGS:-} -include stdexcept"
  export PATH="$venv/bin:$PATH" MAKEFLAGS="-j$(($(nproc) < 8 ? $(nproc) : 8))" PIP_DISABLE_PIP_VERSION_CHECK=1
  echo "horovod==$horovod_version --hash=sha256:$horovod_sha256" >"$scratch/horovod.txt"
  "$python" -m pip download --no-deps --no-build-isolation --no-binary horovod -d "$scratch" -r "$scratch/horovod.txt" &&
    tar -xzf "$source.tar.gz" -C "$scratch" &&
    sed -i 's/global_ranks_\.reserve(size_)/global_ranks_.resize(size_)/' "$source/horovod/common/gloo/gloo_controller.cc" &&
    sed -i '/::InitializeForProcessSet(/,/CreateDevice/ s/iface = gloo_iface_/iface = global_context.gloo_iface_/' \
      "$source/horovod/common/gloo/gloo_context.cc" &&
    sed -i 's,add_subdirectory(third_party/gloo),add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL),' "$source/CMakeLists.txt" &&
    sed -i "s/'RelWithDebInfo'/'Release'/" "$source/setup.py" &&
    sed -i 's/^#if TENSORFLOW_VERSION >= 2006000000$/& \&\& TENSORFLOW_VERSION < 2016000000/' \
      "$source/horovod/tensorflow/xla_mpi_ops.cc" &&
    sed -i '/^  pointer const data_;$/ s/ const//; s/^  const size_type count_;$/  size_type count_;/' \
      "$source/third_party/flatbuffers/include/flatbuffers/stl_emulation.h" &&
    "$python" -m pip wheel --no-deps --no-build-isolation --no-cache-dir -w "$scratch" "$source" &&
    mkdir -p "$1" && wheel=$(basename "$scratch"/horovod-*.whl) &&
    mv -f "$scratch/$wheel" "$1/$wheel.part" && mv -f "$1/$wheel.part" "$1/$wheel" && rm -rf "$scratch"
}

# If this fails, `without` holds the reason, and the set-up goes on.
install_horovod() {
  local wheels
  without="this is a Mac, for which Horovod is not built"
  ! on_mac || return
  wheels=$("$python" -c 'import platform, sys, tensorflow
version, libc = "py%d%d" % sys.version_info[:2], "".join(platform.libc_ver())
print("-".join(["tf" + tensorflow.__version__, sys.argv[1], version, platform.machine(), libc]))' \
    "$flavour-$controllers" 2>>"$log") || explain "$import_failed"
  wheels="$cache/wheels/horovod-$horovod_version.2-$wheels"
  if compgen -G "$wheels/horovod-*.whl" >/dev/null; then
    install "Horovod $horovod_version (built earlier)" --no-deps --force-reinstall "$wheels"/horovod-*.whl
    if horovod_works; then return; fi
    say "the Horovod built earlier does not load here; building it again"
  fi
  without="there is no C++ compiler ('apt-get install g++ make' installs one)"
  have_compiler || return
  without="its build does not take the blank in the path $venv (BERT_VENV names another place)"
  ! has_blank || return
  in_container && install "CMake" -r requirements/horovod.txt
  rm -rf "$state"/horovod.*
  without="building Horovod failed (log: $log)"
  step "Horovod $horovod_version ($controllers), compiled once, a few minutes" build_horovod "$wheels" || {
    tail -n 15 "$log" >&2
    return 1
  }
  install "Horovod $horovod_version" --no-deps --force-reinstall "$wheels"/horovod-*.whl
  without="the Horovod just built does not load (log: $log)"
  horovod_works
}

compile_code() {
  [[ -d bert_tf ]] || return 0 # images get the packages before the checkout
  local uncompiled
  uncompiled=$("$python" -c 'from bert_tf.base import compiled; print(*compiled.uncompiled_sources())') &&
    [[ -z "$uncompiled" ]] ||
    step "the project's C++" "$python" -m bert_tf.base.compiled ||
    say "continuing without compiled code (no C++ compiler? log: $log): the same tokens, several times slower"
}

# --- Main --------------------------------------------------------------------------------------

# Identifies the requirements and the machine: if unchanged, and the packages import, nothing needs to be done.
key() {
  { cat requirements/*.txt requirements/*/*.txt scripts/setup.sh && echo "$root $venv $flavour $tensorflow" \
    "$controllers $("$python" -V 2>&1)"; } | cksum | tr ' ' -
}

verify() {
  TF_CPP_MIN_LOG_LEVEL=3 "$python" - <<'PY' 2>>"$log"
import importlib.util
import google_crc32c, numpy, requests, tqdm, tensorflow
horovod = "no Horovod (one process)"
if importlib.util.find_spec("horovod"):
    try:
        import horovod.tensorflow
        horovod = "Horovod " + horovod.__version__
    except ImportError:
        pass
print(f"TensorFlow {tensorflow.__version__}, {horovod}")
PY
}

# Whether the next set-up should try to build Horovod.
can_add_horovod() { [[ "$versions" == *"no Horovod"* ]] && ! on_mac && have_compiler && ! has_blank; }

lock() {
  if ! { mkdir -p "$state" && : >>"$log"; } 2>/dev/null; then
    refuse "$venv cannot be written to: no right to write there, or the disk is full; name another place by BERT_VENV"
  fi
  # Children inherit the lock, so that a pip that outlives a killed set-up makes the next set-up wait.
  exec 9>"$state/lock"
  if command -v flock >/dev/null && ! flock -n 9; then
    say "waiting for another set-up of this checkout to end"
    flock 9
  fi
}

# Only what this set-up, or the module venv, has made is ever deleted.
refuse_foreign_venv() {
  [[ "$venv" == /* ]] || refuse "BERT_VENV=$venv: must begin with /, because scripts look there from other folders, too"
  [[ ! -L "$venv" ]] || refuse "$venv is a link to $(readlink "$venv"), and a link is neither followed nor deleted:" \
    "remove it, or name the folder itself by BERT_VENV"
  [[ ! -e "$venv" || -d "$venv" ]] || refuse "$venv is a file; remove it, or name another place by BERT_VENV"
  [[ ! -d "$venv" || -e "$venv/pyvenv.cfg" || -e "$state/dirty" || -z "$(ls -A "$venv")" ]] ||
    refuse "$venv is a folder with files, but no virtual environment, and is not deleted: name another place by BERT_VENV"
  local machine compiled
  machine=$(uname -m)-linux
  [[ "$(uname -s)" == Linux ]] || machine=$(uname -s | tr '[:upper:]' '[:lower:]')
  for compiled in "$venv"/lib/python3*/site-packages/numpy/*core/_multiarray_umath.*.so; do
    [[ ! -e "$compiled" || "$compiled" == *"$machine"* ]] ||
      refuse "$venv holds packages for another machine than $machine (${compiled##*/}): delete it, or name another place" \
        "by BERT_VENV"
  done
}

of_another_python() { [[ -n "${PYTHON:-}" && "$("$PYTHON" -V 2>&1)" != "$("$python" -V 2>&1)" ]]; }

discard_unusable_venv() {
  [[ -e "$venv" ]] || return 0
  local made_in quotes="[\"']"
  # Python 3.12 and uv write a second line, for Windows. Each quotes a path in its own way: compared without quotes.
  made_in=$(sed -n '/cygpath/d; s/^ *\(export \)\{0,1\}VIRTUAL_ENV=//p' "$venv/bin/activate" 2>/dev/null | head -n 1 | tr -d "\"'") || true
  if [[ -e "$state/dirty" || "$made_in" != "${venv//$quotes/}" ]] || ! "$python" -m pip --version >/dev/null 2>&1 ||
    { ! in_container && { ! supported "$python" || of_another_python; }; }; then
    in_container || [[ -z "${PYTHON:-}" ]] || find_interpreter >/dev/null # refuses PYTHON before anything is deleted
    say "$venv is incomplete, damaged, from another folder or of another Python: it is made again"
    touch "$state/dirty" # or what a killed rm leaves would be taken for someone else's folder
    rm -rf "$venv"
  fi
}

main() {
  local argument want_tests=false for_gpu=false level=runtime tensorflow versions without
  local no_gpu_code="TensorFlow's packages for aarch64 have no code for GPUs; NVIDIA's container has (docs/containers.md)"
  for argument in "$@"; do
    case "$argument" in
      --test) want_tests=true level=test ;;
      --gpu) for_gpu=true ;;
      -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$self"
        exit 0
        ;;
      *) refuse "unknown argument '$argument'; usage: bash scripts/setup.sh [--gpu] [--test]" ;;
    esac
  done
  refuse_machine
  refuse_foreign_venv
  choose_tensorflow
  flavour=cpu
  if in_container; then
    flavour=container
    unset PIP_CONSTRAINT # it pins the image's versions; .venv may have others without changing the image
  elif "$for_gpu" || have_driver || [[ -e "$state/for-gpu" ]]; then
    flavour=gpu
  fi
  if [[ $flavour == gpu && "$(uname -m)" == aarch64 ]]; then
    ! "$for_gpu" || refuse "--gpu: $no_gpu_code"
    say "for the CPU: $no_gpu_code"
    flavour=cpu
  fi
  horovod_settings
  if [[ -e "$state/stamp" && ! -w "$state" ]]; then
    log=/dev/null # .venv is another user's, as in a container image: it can be checked, not repaired
  else
    lock
    if "$for_gpu"; then touch "$state/for-gpu"; fi
    discard_unusable_venv
    # A home that cannot be written to, as a system's user has, would fail only after Horovod was built.
    { mkdir -p "$cache" && [[ -w "$cache" ]]; } 2>/dev/null || cache=$state
  fi
  if [[ -e "$state/stamp" && -x "$python" ]]; then
    versions=$(verify) || versions=broken
    if ! can_add_horovod && grep -qxF -e "test $(key) $versions" -e "$level $(key) $versions" "$state/stamp"; then
      compile_code
      say "ready: $versions (checked in $((SECONDS - started)) s). Activate: source ${venv#"$root/"}/bin/activate"
      return
    fi
  fi
  if [[ "$log" == /dev/null ]]; then
    local options=""
    [[ "$flavour" == container ]] || options=" -f Dockerfile.cpu"
    if "$want_tests"; then options+=" --build-arg SETUP=--test"; fi
    fail "$venv lacks what this checkout and machine need, and belongs to another user;" \
      "in a container: build its image again (outside of it: bash scripts/docker/build.sh$options)"
  fi
  rm -f "$state/stamp"
  : >"$log"
  [[ -x "$python" ]] || make_venv
  # Only now: a choice for which there is no Python must not bind the next set-up.
  if [[ -n "${TENSORFLOW:-}" ]]; then echo "$tensorflow" >"$state/tensorflow"; fi
  install_packages
  horovod_works || install_horovod ||
    say "continuing without Horovod: $without. Training then runs in one process: num_gpus must be 1."
  versions=$(verify) || explain "$import_failed"
  compile_code
  can_add_horovod || echo "$level $(key) $versions" >"$state/stamp"
  say "ready: $versions, set up in $((SECONDS - started)) s. Activate: source ${venv#"$root/"}/bin/activate"
}

main "$@"
