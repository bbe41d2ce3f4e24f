"""For the notebooks beside this file: runs commands as a terminal in the checkout does.

Importing it changes to the checkout and takes the programs of the notebook's own Python.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# What XLA says once in each program, however little it is told to say.
NOISE = re.compile(r"absl::InitializeLog|Compiled cluster using XLA|SetPriority unimplemented")

os.chdir(CHECKOUT)
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def sh(commands):
    """Prints what the commands print, with paths as in the checkout; RuntimeError where one of them fails."""
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", commands], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    for line in shell.stdout:
        if not NOISE.search(line):
            print(line.replace(f"{CHECKOUT}/", ""), end="")
    if shell.wait():
        raise RuntimeError(f"a command ended with exit code {shell.returncode}; what it printed says why")
