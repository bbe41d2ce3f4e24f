"""What must be set before a program imports TensorFlow."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Runs a program until it imports TensorFlow, and ends with XLA_FLAGS as they are then.
UNTIL_TENSORFLOW = """
import os, runpy, sys
from importlib.machinery import PathFinder

class Loader:
    def create_module(self, spec):
        sys.exit("XLA_FLAGS=" + os.environ.get("XLA_FLAGS", ""))

    def exec_module(self, module):
        pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == "tensorflow" else None
        if spec:
            spec.loader = Loader()
        return spec

sys.meta_path.insert(0, Finder())
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "program, flags",
    [
        ("run_pretraining.py", "--input_files=a --num_train_steps=1"),
        ("run_pretraining.py", "--replay_update=1"),
        ("run_squad.py", "--train_file=a --predict_file=a"),  # as all fine-tuning
    ],
)
def test_xla_times_no_matmuls(program, flags, tmp_path):
    start = [sys.executable, "-c", UNTIL_TENSORFLOW, str(ROOT / program), f"--model_dir={tmp_path}", *flags.split()]
    done = subprocess.run(["env", "XLA_FLAGS=--xla_dump_to=x", *start], cwd=ROOT, capture_output=True, text=True)
    ours = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_disable_hlo_passes=reshape-mover"
    given = f"XLA_FLAGS=--xla_dump_to=x {ours}"
    assert done.stderr.splitlines()[-1] == given, done.stderr
