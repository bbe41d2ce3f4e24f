"""The scripts use nothing that bash 3.2 and the commands of macOS do not have. (None of this was run on a Mac.)"""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.processes import answer
from tests.refusals import refusal
from tests.stand_ins import write_program

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for folder in ("scripts", "data") for path in (ROOT / folder).rglob("*.sh"))
# What to write instead, and what must not be written: a regular expression with a line that it finds.
REFUSED = {
    "a loop of `read`, or words from $(...)": (r"\b(mapfile|readarray)\b", "mapfile -t files < <(ls)"),
    "a case, or variables of their own": (r"\b(declare|local|typeset) -[a-zA-Z]*[Agnlu]", "declare -A sizes=()"),
    "quotes added by ${word//...}, tr": (r"\$\{\w+(\[[^]]*\])?(@[A-Z]|,,?|\^\^?)\}", "echo ${word@Q}"),
    "the array's length": (r"\$\{\w+\[-\d|\$\{\w+:-?\d+:\s*-", "echo ${words[-1]}"),
    ">>file 2>&1": (r"&>>|\|&", "command &>>log"),
    "`;;` and functions": (r";;?&|\bcoproc\b", "a) ;;&"),
    "`wait` for a process": (r"\bwait -n\b", "wait -n"),
    "a number, as in 9>file": (r"\bexec \{\w+\}", "exec {log}>file"),
    "${name+x}": (r"\[\[ -v |\btest -v ", "[[ -v name ]]"),
    "`date`": (r"printf '%\(", "printf '%(%F)T' -1"),
    "$$, $SECONDS": (r"\$\{?(BASHPID|EPOCH\w+|SRANDOM)\b", "echo $BASHPID"),
    "a trap of EXIT": (r"\bcommand_not_found_handle\b", "command_not_found_handle() { :; }"),
    "`find`, a function": (r"\bshopt -s (globstar|lastpipe|inherit_errexit|localvar_inherit)\b", "shopt -s globstar"),
    "a loop": (r"\{\d+\.\.\d+\.\.|\{0\d+\.\.", "echo {01..10}"),
    "whole seconds": (r"\bread [^|;&]*-(t ?\d*\.\d|N)", "read -t 0.5 word"),
    "`absolute` of scripts/paths.sh": (r"\brealpath\b|\breadlink -[a-z]*[em]", "realpath -m x"),
    "another file, moved": (r"\bsed (-\w+ )*-\w*i", "sed -i s/a/b/ file"),
    "two expressions, with -e": (r"\b(grep|sed)\b.*\\[|+?]", r"grep 'a\|b' file"),
    "Python": (r"\b(date -d|stat -c|ls -[a-zA-Z]*v|sort -[a-z]*V|grep -\w*P|head -n ?-)", "date -d yesterday"),
    "bert_tf/base/machine/hardware.py": (r"/proc/|/sys/|/dev/shm", "cat /proc/cpuinfo"),
}
# Used only where `command -v` has found them. (For the number of cores there is count_cores, bertPrep's default.)
OF_LINUX = "flock|lscpu|md5sum|nproc|numactl|setsid|sha256sum|shuf|tac|timeout"
HOROVOD = re.compile(r"^build_horovod\(\) \{.*?^\}\n", re.DOTALL | re.MULTILINE)


def lines_of(script: Path) -> list[str]:
    """Without comments, and without the building of Horovod, which is for Linux only."""
    text = HOROVOD.sub("", script.read_text(encoding="utf-8"))
    return [re.sub(r"(^|\s)# .*", "", line) for line in text.splitlines()]


def faults_of(lines: list[str]) -> list[str]:
    """What macOS does not have; an array that may be empty counts where it is used unguarded: under `set -u`
    "${a[@]}" is then an error before bash 4.4."""
    text = "\n".join(lines)
    faults = [
        f"{line}: use {instead}" for line in lines for instead, (rule, _) in REFUSED.items() if re.search(rule, line)
    ]
    commands = re.findall(rf"(?:^|[|&;(!]) *({OF_LINUX}) ?(?=[^ =]|$)", text, re.MULTILINE)
    faults += [f"{name} is used without a look for it" for name in commands if f"command -v {name}" not in text]
    may_be_empty = set(re.findall(r'\b(\w+)=\((?:\)|"\$@"\))', text)) | set(re.findall(r"\bread -\w*a (\w+)", text))
    for line in lines:
        used = set(re.findall(r"(?<![+])\"\$\{(\w+)\[@\]", line)) & may_be_empty
        faults += [f"{line}: {name} may be empty: ${{{name}[@]+...}}" for name in used]
    return faults


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_is_written_for_what_a_mac_has(script):
    assert not faults_of(lines_of(script))


def test_what_a_mac_has_not_is_found():
    for rule, example in REFUSED.values():
        assert re.search(rule, example)
    assert faults_of(["make -j$(nproc)"]) and not faults_of(["if command -v flock && ! flock -n 9; then"])
    assert faults_of(["words=()", 'echo "${words[@]}"']) and not faults_of(["words=()", '${words[@]+"${words[@]}"}'])


# Installs nothing, and says that it is for Apple's processors.
PYTHON = f"""#!/bin/sh
case "$*" in
  *platform.machine*) echo arm64 ;;
  *sys.executable*) echo "$0" ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "VIRTUAL_ENV=$3" >"$3/bin/activate"; >"$3/pyvenv.cfg" ;;
  "-m "*) ;;
  *bert_tf.pth*) ;;
  "-c import horovod"*) exit 1 ;;
  -) echo "TensorFlow 2.15.1, no Horovod (one process)" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def set_up(tmp_path):
    """Calls setup.sh where uname says that this is a Mac with a processor of that name."""

    def call(machine, *arguments, **variables):
        write_program(tmp_path / "python", PYTHON)
        write_program(tmp_path / "uname", f'[ "$1" = -m ] && echo {machine} || echo Darwin')
        given = {
            "PYTHON": f"{tmp_path}/python",
            "BERT_VENV": f"{tmp_path}/venv",
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        }
        return answer("bash", ROOT / "scripts/setup.sh", *arguments, **{**given, **variables})

    return call


def test_a_mac_is_set_up_for_one_process(set_up):
    first, again = set_up("arm64"), set_up("arm64")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "continuing without Horovod: this is a Mac" in first.stdout and "num_gpus must be 1." in first.stdout
    assert again.stdout.startswith("[setup] ready: TensorFlow 2.15.1, no Horovod (one process) (checked"), again.stdout


def test_what_a_mac_cannot_is_refused_in_one_line(set_up):
    for machine, arguments, said in (
        ("x86_64", [], "error: this is a Mac with an Intel processor"),
        ("arm64", ["--gpu"], "error: --gpu is for NVIDIA's GPUs, and a Mac has none"),
    ):
        assert refusal(set_up(machine, *arguments)).startswith(said)
    done = set_up("arm64", PYTHON=sys.executable)  # one for x86
    assert done.returncode == 2 and "is not Python 3.9 to 3.13 for Apple's processors" in done.stderr, done.stderr
