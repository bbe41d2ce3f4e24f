"""What the launchers for fine-tuning and for using fine-tuned models share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import check_file, check_output
from bert_tf.bert_config import PRESETS, BertConfig
from bert_tf.launch.arguments import Values
from bert_tf.launch.call import Call, check_model, find_checkpoint
from bert_tf.launch.environment import show, shown
from bert_tf.settings.declaration import Setting
from bert_tf.text.tokenizer import open_tokenizer

# Declarations of the arguments that the scripts have in common: the model is compared with the checkpoint's.
MODEL = Setting("bert_model", "str", "large", choices=tuple(PRESETS), is_flag=False)
SEQ_LENGTH = Setting("max_seq_length", "int", None, at_least=8)
DEFAULT_WEIGHTS = "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt"


@dataclasses.dataclass(frozen=True)
class FinetuningCall(Call):
    """A call for fine-tuning, which has a learning rate and num_gpus, or for using a fine-tuned model.

    Attributes:
      data: what the folder of the data is called, and its path.
    """

    data: tuple[str, Path]

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.num_ranks

    @property
    def batch_size(self) -> int:
        """That of one rank in training; scripts with a single batch size predict with it, too."""
        flags = self.typed.flags()
        return flags.get("train_batch_size", flags["predict_batch_size"])

    @property
    def trains(self) -> bool:
        return "learning_rate" in self.typed.flags()

    @property
    def size(self) -> str:
        return f"{'gbs' if self.trains else 'bs'}{self.global_batch_size}"

    def flags(self, name: str) -> Values:
        """The program's flags that what was typed gives.

        Args:
          name: that of the run folder of a training; a fine-tuned model is used in the results' folder itself.

        Raises:
          UserError: the checkpoint is missing, or not of the requested model.
        """
        model_dir = self.folder / name if self.trains else self.folder
        places = {"model_dir": model_dir, "dllog_path": model_dir / "dllogger.json"}
        batch = {"train_batch_size": self.batch_size} if self.trains else {}
        return {**self.typed.flags(), **places, **batch, **self._weights()}

    def _weights(self) -> Values:
        """The flags for the weights of a checkpoint, or for random weights if the argument is ``none``."""
        name = self.typed.name_of("init_checkpoint")
        if not (self.trains and self.typed[name] == "none"):
            checkpoint = find_checkpoint(self.typed[name], f"{self.typed.title(name)} is {self.typed[name]!r}")
            check_model(checkpoint, self.typed)
            return {"init_checkpoint": checkpoint}
        environment = self.environment
        if not environment.given("vocab_file"):
            raise UserError(f"{name} is 'none' (random weights), which needs VOCAB_FILE=<a vocab.txt>")
        vocab_file = environment.path("vocab_file", Path())
        check_file(vocab_file, "set VOCAB_FILE to a vocab.txt")
        config = BertConfig.preset(self.typed["bert_model"], open_tokenizer(vocab_file).vocab_size).to_json()
        config_file = self.folder / "bert_config.json"
        check_output(config_file, str(config_file), lambda beginning: beginning == config.encode())
        if not environment.is_dry_run:
            self.folder.mkdir(parents=True, exist_ok=True)
            config_file.write_text(config, encoding="utf-8")
        return {"init_checkpoint": None, "bert_config_file": config_file, "vocab_file": vocab_file}

    def run(
        self,
        title: str,
        program: tuple[str, Sequence[type]],
        prepare: Callable[[], list[Values]],
        results: Mapping[str, str],
    ) -> int:
        """Runs a program (its name and settings) once for each set of flags that `prepare` returns after the checks.

        The logs go to ``logs`` below the flags' model_dir. At the end the `results` are shown: files in the first
        model_dir, or by their whole paths.

        Returns: 0, or the first exit code of the ranks that is not 0, after which nothing more is run.
        """
        lines = []
        if self.trains:
            rate = f"{self.typed.flags()['learning_rate'] * self.num_ranks:g}"
            lines += [f"global_batch_size = {self.global_batch_size}", f"effective_learning_rate = {rate}"]
        self.show_plan(lines, [f"{self.data[0]} = {shown(self.data[1])}"])
        if self.environment.is_dry_run:  # a wrong checkpoint is refused, also where data are missing
            with contextlib.suppress(MissingError):
                self._weights()
        runs = self.environment.prepare(self.num_ranks, self.folder, prepare)
        if runs is None:
            return 0
        for flags in runs:
            if code := self.train(f"{title}, {flags['mode']}", *program, flags):
                return code
        show([f"{label}: {shown(runs[0]['model_dir'] / file)}" for label, file in results.items()])
        return 0
