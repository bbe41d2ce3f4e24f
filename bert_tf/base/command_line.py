"""What the programs share: common flags, errors about flags, and settings to make before TensorFlow is imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence

from absl import flags

from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.values import parse_number, parse_whole

# Flags of NVIDIA's TF1 and TF2 programs, and what they are called here.
_RENAMED = {
    "amp": "--precision=fp16",
    "horovod": "--use_horovod",
    "use_xla": "--enable_xla",
    "output_dir": "--model_dir",
    "num_steps_per_epoch": "--num_train_steps",
    "save_checkpoints_steps": "--save_checkpoint_steps",
}
_ALIASES = {"use_fp16": "--precision=fp16"}
_NUMBERS = {"int": parse_whole, "float": parse_number}

# The flags that `define_training_flags` defines belong to the program that calls it.
flags.disclaim_key_flags()


def define_training_flags(train_batch_size: str, learning_rate: float, save_checkpoint_steps: int) -> None:
    """Defines the flags that pre-training and fine-tuning have in common; the arguments are the flags' defaults."""
    flags.DEFINE_string("model_dir", None, "The run folder. A run that is started again in its folder continues.")
    flags.DEFINE_string(
        "train_batch_size",
        train_batch_size,
        "Micro-batch of one rank; auto: the largest that fits and divides its share of --global_batch_size.",
    )
    flags.DEFINE_integer(
        "global_batch_size", None, "With --train_batch_size=auto: sequences of all ranks in an update."
    )
    flags.DEFINE_integer("num_accumulation_steps", None, "Micro-batches of one rank in an update; default: 1.")
    flags.DEFINE_float("learning_rate", learning_rate, "Peak rate of one rank; multiplied by the number of ranks.")
    flags.DEFINE_integer("save_checkpoint_steps", save_checkpoint_steps, "Updates between checkpoints.")
    flags.DEFINE_integer("keep_checkpoints", 3, "How many of the newest checkpoints stay.")
    flags.DEFINE_float(
        "max_hours", None, "Stop as on a signal, saved and with exit code 75, so many hours after this start."
    )
    flags.DEFINE_integer("display_loss_steps", 10, "Updates between two log lines.")
    flags.DEFINE_enum(
        "device", "auto", ["auto", "cpu"], "auto: the GPUs of this machine where it has some, else the CPU."
    )
    flags.DEFINE_bool("use_horovod", False, "Share the work among the ranks of a Horovod job.")
    flags.DEFINE_enum("precision", "fp32", ["fp32", "tf32", "fp16", "bf16"], "Type of the matmuls.")
    flags.DEFINE_bool("enable_xla", False, "Compile with XLA.")
    flags.DEFINE_enum(
        "xla_scope",
        "auto",
        ["auto", "step", "blocks"],
        "What XLA compiles; auto: the whole step on GPUs, the element-wise blocks on CPUs and with --recompute.",
    )
    flags.DEFINE_bool(
        "recompute",
        False,
        "Compute each layer again in the backward pass instead of keeping it: a "
        "third more arithmetic, a fraction of the memory, the same update.",
    )
    flags.DEFINE_bool("plan", False, "Print how much memory the training needs and which micro-batches fit, and exit.")
    flags.DEFINE_float(
        "gpu_memory_gib",
        None,
        "Memory of a rank's device, for --plan and --train_batch_size=auto; "
        "default: the GPU's, or the machine's free memory where there is no GPU.",
        lower_bound=0.25,
    )
    flags.DEFINE_bool(
        "deterministic",
        False,
        "Only operations that give the same bits in every run, where GPUs have faster ones that do not.",
    )
    flags.DEFINE_integer("seed", 12345, "Seed of new weights, data order and dropout.")
    flags.DEFINE_string("dllog_path", None, "File for NVIDIA's DLLogger lines.")
    flags.DEFINE_bool("continue_with_changes", False, "Continue a run although its settings have changed.")


def define_finetuning_flags(learning_rate: float, max_seq_length: int) -> None:
    """Defines the flags that all fine-tuning programs have; the arguments are the flags' defaults."""
    define_training_flags(train_batch_size="8", learning_rate=learning_rate, save_checkpoint_steps=1000)
    flags.DEFINE_string(
        "bert_config_file", None, "The model's bert_config.json; default: the one beside the checkpoint."
    )
    flags.DEFINE_string(
        "vocab_file", None, "The model's vocab.txt or tokenizer.json; default: the one beside the checkpoint."
    )
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Run folder, checkpoint folder, bert_model.ckpt or Hugging Face folder to start from; default: random weights. "
        "To score or predict: a fine-tuned one, default the newest in --model_dir.",
    )
    flags.DEFINE_integer("predict_batch_size", 8, "Prediction batch of one rank.")
    flags.DEFINE_string("model_export_path", None, "The exported model's folder; default: export in --model_dir.")
    flags.DEFINE_integer("export_batch_size", None, "Fixes the SavedModel's batch; default: any size.", lower_bound=1)
    flags.DEFINE_float("num_train_epochs", 3.0, "Passes over the training file; may be fractional.")
    flags.DEFINE_bool("adam_bias_correction", True, "Whether Adam corrects its moments' bias, as Keras does.")
    flags.DEFINE_float("warmup_proportion", 0.1, "Share of the updates in which the rate rises.")
    flags.DEFINE_integer("max_seq_length", max_seq_length, "Tokens of a row.")
    flags.DEFINE_bool(
        "do_lower_case", None, "Lower-case the text; default: as the checkpoint says, else as the vocabulary suggests."
    )
    flags.DEFINE_bool("strip_accents", None, "Take accents and other marks off letters; default: likewise.")


@exit_on_user_error
def parse_flags(argv: Sequence[str]) -> list[str]:
    """For ``app.run(main, flags_parser=parse_flags)``: sets FLAGS and returns the program's name, in a list.

    Raises `UserError` for any mistake and for arguments that are not flags; for a flag of NVIDIA's programs it names
    the flag to use here.
    """
    arguments: list[str] = [argv[0]]
    for argument, following in zip(argv[1:], [*argv[2:], ""]):
        name, equals, value = argument.lstrip("-").partition("=") if argument.startswith("-") else ("", "", "")
        if name in _RENAMED and name not in flags.FLAGS:
            raise UserError(f"--{name} is called {_RENAMED[name]} here")
        if name in flags.FLAGS:
            _check_number(name, value if equals else following)
        if name in _ALIASES and equals and value.lower() not in ("true", "1"):
            raise UserError(f"--{name}={value}: --{name} is {_ALIASES[name]} here; choose another --precision instead")
        arguments.append(_ALIASES.get(name, argument))
    try:
        left = flags.FLAGS(arguments)
    except flags.Error as error:
        raise UserError(f"{str(error).splitlines()[0]}; see --help") from None
    except RecursionError:  # absl compares an unknown name with known ones, recursing letter by letter
        raise UserError("a flag's name is too long to be one; see --help") from None
    if len(left) > 1:
        raise UserError(f"unexpected argument {left[1]!r}; every setting is a flag, see --help")
    return left


def _check_number(name: str, text: str) -> None:
    """Raises `UserError` for numbers that Python accepts but that must be mistakes, such as 1_0 or nan."""
    parse = _NUMBERS.get(flags.FLAGS[name].flag_type())
    try:
        if parse:
            parse(text)
    except ValueError as error:
        raise UserError(f"--{name}={text}: {error}") from None


def choose_device(device: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Applies --device. Must be called before TensorFlow is imported."""
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only
    if device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = "-1"
