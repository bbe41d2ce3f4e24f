"""What is in the environment when TensorFlow starts: oneDNN is on, and XLA is told not to time matmuls and to leave
out a pass, unless the user has chosen otherwise."""

import os
import sys

import pytest

from bert_tf.base.xla_flags import configure_xla
from tests.processes import ROOT, answer

LEVEL, TRITON = "--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false"
PASSES = "--xla_disable_hlo_passes=reshape-mover"
STAND_IN = """import os
print(os.environ["TF_ENABLE_ONEDNN_OPTS"], os.environ["XLA_FLAGS"], flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    "start, onednn",
    [
        (["-c", "import bert_tf; bert_tf.from_pretrained"], None),
        (["-c", "import bert_tf.ranks.connect"], "0"),
        (["-c", "import benchmarks.made_up"], None),
        ([ROOT / "run_pretraining.py", "--model_dir=run", "--input_files=a", "--num_train_steps=1"], None),
        ([ROOT / "run_pretraining.py", "--model_dir=run", "--replay_update=1"], None),
        ([ROOT / "run_squad.py", "--model_dir=run", "--train_file=a", "--predict_file=a"], "0"),  # as all fine-tuning
    ],
    ids=["library", "module", "benchmark", "pre-training", "replay", "fine-tuning"],
)
def test_what_tensorflow_finds_when_it_starts(tmp_path, start, onednn):
    """By a stand-in that prints it and ends the program."""
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    variables = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "XLA_FLAGS": "--xla_dump_to=x"}
    done = answer(sys.executable, *start, cwd=tmp_path, TF_ENABLE_ONEDNN_OPTS=onednn, **variables)
    assert done.stdout == f"{onednn or 1} --xla_dump_to=x {LEVEL} {TRITON} {PASSES}\n", done.stderr


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, f"{LEVEL} {TRITON} {PASSES}"),
        (" ", f"{LEVEL} {TRITON} {PASSES}"),
        ("--xla_gpu_autotune_level=4", f"--xla_gpu_autotune_level=4 {TRITON} {PASSES}"),
        (f"--xla_gpu_enable_triton_gemm {LEVEL}", f"--xla_gpu_enable_triton_gemm {LEVEL} {PASSES}"),
        ("--xla_gpu_autotune_level_of_mine=4", f"--xla_gpu_autotune_level_of_mine=4 {LEVEL} {TRITON} {PASSES}"),
        ("/etc/xla_flags", "/etc/xla_flags"),  # a file
    ],
)
def test_the_flags_of_xla_that_the_user_has_set_stay(given, expected):
    environ = {} if given is None else {"XLA_FLAGS": given}
    for _ in range(2):  # a rank may inherit what its launcher has set
        configure_xla(environ)
        assert environ == {"XLA_FLAGS": expected}
