"""The programs' command lines: old flag names are answered, mistakes are one line and exit code 2."""
from __future__ import annotations

from typing import List, Sequence

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
