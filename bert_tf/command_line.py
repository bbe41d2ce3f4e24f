"""What the programs share: old flag names are answered, mistakes are one line and exit code 2, determinism is set."""
from __future__ import annotations

import os
from pathlib import Path
from typing import List, MutableMapping, Sequence

from absl import flags

from bert_tf.errors import UserError, exit_on_user_error

# Names from NVIDIA's TF1 and TF2 programs, and what they are called here.
_RENAMED = {
    "amp": "--precision=fp16", "horovod": "--use_horovod", "use_xla": "--enable_xla", "output_dir": "--model_dir",
    "num_steps_per_epoch": "--num_train_steps", "save_checkpoints_steps": "--save_checkpoint_steps",
}
_ALIASES = {"use_fp16": "--precision=fp16"}


@exit_on_user_error
def parse_flags(argv: Sequence[str]) -> List[str]:
    """For ``app.run(main, flags_parser=parse_flags)``: sets FLAGS, returns what is left over.

    A flag of another program's is answered with ours, and any mistake is a `UserError`.
    """
    arguments: List[str] = [argv[0]]
    for argument in argv[1:]:
        name = argument.lstrip("-").split("=")[0] if argument.startswith("-") else ""
        if name in _RENAMED and name not in flags.FLAGS:
            raise UserError(f"--{name} is called {_RENAMED[name]} here")
        arguments.append(_ALIASES.get(name, argument))
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        raise UserError(f"{str(error).splitlines()[0]}; see --help") from None


def make_deterministic(run_folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Asks TensorFlow and XLA for the same bits in every run. To be called before TensorFlow is imported.

    On GPUs XLA chooses among matmuls by timing them, so what a run chose at its first start is kept
    in its folder and taken up when it is started again.
    """
    autotuned = run_folder / "xla_autotune_results.txt"
    known = autotuned.exists()
    options = ["--xla_gpu_deterministic_ops=true",
               f"--xla_gpu_{'load' if known else 'dump'}_autotune_results_{'from' if known else 'to'}={autotuned}"]
    environ["XLA_FLAGS"] = " ".join([environ.get("XLA_FLAGS", ""), *options]).strip()
    environ["TF_DETERMINISTIC_OPS"] = "1"
