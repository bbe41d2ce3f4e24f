"""A PATH with the commands of macOS, for tests of the scripts: no others, and with the options that they have there."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# The options of macOS 12.3's commands, as in Apple's sources (getopt in file_cmds, shell_cmds and text_cmds). What is
# not POSIX's and differs there (sed -i, stat, date) is left out altogether. "-:" stands for options of many letters.
OPTIONS = {
    "basename": "as:",
    "cat": "belnstuv",
    "chmod": "hR",
    "cksum": "o:",
    "cp": "HLPRacfinpvX",
    "cut": "b:c:d:f:ns",
    "df": "abgHhiklmnPT:",
    "dirname": "",
    "env": "iP:S:u:v",
    "find": "EHLPXdf:sx",
    "grep": "A:B:C:EFGHIJLMORSUVZabcd:e:f:hilm:noqrsvwxz-:",
    "head": "n:c:",
    "id": "AFGMPRagnpru",
    "ln": "FLPfhinsvw",
    "ls": "ACFGHLPRSTWabcdefghiklmnopqrstuwx1",
    "mkdir": "m:pv",
    "mktemp": "dqt:u",
    "mv": "finv",
    "readlink": "fn",
    "rm": "dfiPRrvW",
    "sed": "Eae:f:lnu",
    "sort": "bcCdfghik:Mmno:RrsS:t:T:uVz",
    "tail": "Fb:c:fn:r",
    "tee": "ai",
    "touch": "acfhmr:t:",
    "tr": "Ccdsu",
    "uname": "amnoprsv",
    "uniq": "cdf:is:u",
    "wc": "clmw",
}
OTHERS = ("awk", "getconf", "git", "kill", "make", "ps", "sleep", "tar", "true")

# getopts stops at the first word that is no option, as macOS's commands do; so do GNU's with POSIXLY_CORRECT.
_SHIM = """#!/bin/sh
while getopts "{options}" option; do
  [ "$option" != "?" ] || exit 64
done
POSIXLY_CORRECT=1 exec {tool} "$@"
"""


def make_commands(folder: Path, bash: str, system: str = "") -> None:
    """Fills `folder` with the commands; `bash` is also the sh, as on a Mac.

    Args:
      system: what uname says of another system than this one: such as "Darwin arm64".
    """
    folder.mkdir()
    for name in (*OPTIONS, *OTHERS):
        if tool := shutil.which(name):
            (folder / name).symlink_to(tool)
    for name, options in OPTIONS.items():
        _write(folder / name, _SHIM.format(options=options, tool=os.path.realpath(folder / name)))
    _write(folder / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for name in ("bash", "sh"):
        (folder / name).symlink_to(bash)
    if system:
        kernel, machine = system.split()
        _write(folder / "uname", f'#!/bin/sh\n[ "$1" = -m ] && echo {machine} || echo {kernel}\n')


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
