"""What the launchers for fine-tuning and for using fine-tuned models share: from a call to the end of its programs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import check_file, check_output, work_folder
from bert_tf.bert_config import PRESETS, BertConfig
from bert_tf.launch.arguments import Argument, Values, describe_arguments, flags_of
from bert_tf.launch.checkpoints import check_model, find_checkpoint
from bert_tf.launch.environment import LaunchEnvironment, show, shown
from bert_tf.launch.supervisor import train
from bert_tf.settings.declaration import Setting
from bert_tf.text.tokenizer import open_tokenizer

Flags = dict[str, Any]
# Declarations of the arguments that the scripts have in common: the model is compared with the checkpoint's.
MODEL = Setting("bert_model", "str", "large", choices=tuple(PRESETS), is_flag=False)
SEQ_LENGTH = Setting("max_seq_length", "int", None, at_least=8)
DEFAULT_WEIGHTS = "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt"


class Call(NamedTuple):
    """A call of a script.

    Attributes:
      kind: part of the name of the results' folder.
      values: those of all `arguments`, typed or default. Only training has a learning rate and num_gpus.
      data: what the folder of the data is called, and its path.
    """

    kind: str
    arguments: Sequence[Argument]
    typed: Sequence[str]
    values: Values
    data: tuple[str, Path]
    environment: LaunchEnvironment

    @property
    def num_ranks(self) -> int:
        return self.values.get("num_gpus", 1)

    @property
    def batch_size(self) -> int:
        """The batch size of one rank."""
        return self.values["batch_size" if "batch_size" in self.values else "batch_size_per_gpu"]

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.num_ranks

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of one rank; None without training."""
        return self.values.get("learning_rate", self.values.get("learning_rate_per_gpu"))

    @property
    def folder(self) -> Path:
        """The folder of the results."""
        size = f"{'gbs' if 'num_gpus' in self.values else 'bs'}{self.global_batch_size}"
        name = f"tf_bert_{self.kind}_{self.values['bert_model']}_{self.values['precision']}_{size}"
        return self.environment.path("results_dir", work_folder() / "results" / name)

    def describe(self) -> list[str]:
        """The arguments, and what follows from them."""
        lines = describe_arguments(self.arguments, self.typed)
        if self.learning_rate:
            rate = f"{self.learning_rate * self.num_ranks:g}"
            lines += [f"global_batch_size = {self.global_batch_size}", f"effective_learning_rate = {rate}"]
        return [
            *lines,
            f"device = {self.environment.describe_device(self.num_ranks)}",
            f"{self.data[0]} = {shown(self.data[1])}",
            f"results_dir = {shown(self.folder)}",
            *self.environment.describe_limits(),
        ]

    def flags(self, model_dir: Path) -> Flags:
        """The flags that fine-tuning and using a fine-tuned model have in common."""
        flags = {**flags_of(self.arguments, self.values), "model_dir": model_dir}
        del flags["init_checkpoint"]  # checked first, and may be none
        return {**flags, "dllog_path": model_dir / "dllogger.json"}

    def training_flags(self) -> Flags:
        """The flags of fine-tuning only."""
        return {**self._initial_weights(), "train_batch_size": self.batch_size}

    def _initial_weights(self) -> Flags:
        """The flags for the weights of a checkpoint, or for random weights if the argument is ``none``."""
        if self.values["checkpoint"] != "none":
            return {"init_checkpoint": self.checkpoint()}
        environment = self.environment
        if not environment.values.vocab_file:
            raise UserError("checkpoint is 'none' (random weights), which needs VOCAB_FILE=<a vocab.txt>")
        vocab_file = environment.path("vocab_file", Path())
        check_file(vocab_file, "set VOCAB_FILE to a vocab.txt")
        config = BertConfig.preset(self.values["bert_model"], open_tokenizer(vocab_file).vocab_size)
        config_file = self.folder / "bert_config.json"
        check_output(config_file, str(config_file), _is_config_of_ours)
        if not environment.is_dry_run:
            self.folder.mkdir(parents=True, exist_ok=True)
            config_file.write_text(config.to_json(), encoding="utf-8")
        return {"bert_config_file": config_file, "vocab_file": vocab_file}

    def checkpoint(self) -> Path:
        """The checkpoint that was typed; raises `UserError` if it does not exist or is another model's."""
        positions = {argument.name: number for number, argument in enumerate(self.arguments, 1)}
        checkpoint = find_checkpoint(self.values["checkpoint"], positions["checkpoint"])
        check_model(checkpoint, self.values["bert_model"], positions["bert_model"])
        return checkpoint

    def run(
        self,
        title: str,
        program: tuple[str, Sequence[type]],
        prepare: Callable[[], list[Flags]],
        results: Mapping[str, str],
    ) -> int:
        """Runs a program (its name and settings) once for each set of flags that `prepare` returns after the checks.

        The logs go to ``logs`` below the flags' model_dir. At the end the `results`, files in the first model_dir, are
        shown.

        Returns: 0, or the first exit code of the ranks that is not 0, after which nothing more is run.
        """
        environment = self.environment
        show(self.describe())
        if environment.is_dry_run:  # a wrong checkpoint is refused, also where data are missing
            with contextlib.suppress(MissingError):
                _ = self._initial_weights() if self.learning_rate else self.checkpoint()
        runs = environment.prepare(self.num_ranks, self.folder, prepare)
        if runs is None:
            return 0
        for flags in runs:
            job = environment.job(*program, flags, self.num_ranks)
            code = train(f"{title}, {flags['mode']}", job, environment)
            if code:
                return code
        show([f"{label}: {shown(runs[0]['model_dir'] / file)}" for label, file in results.items()])
        return 0


def _is_config_of_ours(text: bytes) -> bool:
    """Whether `BertConfig.to_json` has written this; Google's file has other settings and another layout."""
    try:
        return BertConfig.from_dict(json.loads(text)).to_json().encode() == text
    except (UserError, ValueError, TypeError):
        return False
