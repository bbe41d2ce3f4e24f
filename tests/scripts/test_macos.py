"""The scripts use nothing that bash 3.2 and the commands of macOS do not have. (None of this was run on a Mac.)"""

import re
from pathlib import Path

import pytest

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
    faults = [f"{line}: use {use}" for line in lines for use, (rule, _) in REFUSED.items() if re.search(rule, line)]
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
