"""What must be set before a program imports TensorFlow."""

import os
import sys
from pathlib import Path

import pytest

from tests.processes import answer

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "program, flags",
    [
        ("run_pretraining.py", "--input_files=a --num_train_steps=1"),
        ("run_pretraining.py", "--replay_update=1"),
        ("run_squad.py", "--train_file=a --predict_file=a"),  # as all fine-tuning
    ],
)
def test_xla_times_no_matmuls(program, flags, tmp_path):
    """By a stand-in for TensorFlow that ends the program."""
    (tmp_path / "tensorflow.py").write_text("import os\nprint(os.environ['XLA_FLAGS'], flush=True)\nos._exit(0)\n")
    command = [sys.executable, ROOT / program, f"--model_dir={tmp_path / 'run'}", *flags.split()]
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = answer(*command, cwd=tmp_path, PYTHONPATH=path, XLA_FLAGS="--xla_dump_to=x")
    ours = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_disable_hlo_passes=reshape-mover"
    assert done.stdout.splitlines()[-1:] == [f"--xla_dump_to=x {ours}"], done.stderr
