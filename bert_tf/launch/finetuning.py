"""The scripts that fine-tune or use a fine-tuned model: what all share, then those of SQuAD and of GLUE."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import check_file, check_output
from bert_tf.bert_config import PRESETS, BertConfig
from bert_tf.launch.arguments import Argument, Positionals, Values, arguments
from bert_tf.launch.call import Call, Run, check_model, find_checkpoint
from bert_tf.launch.environment import SETTINGS_OF, LaunchEnvironment, short_path, show
from bert_tf.settings.declaration import Setting
from bert_tf.tasks.glue.tasks import CUSTOM, EVAL, PREDICT, TRAIN, find_files, find_task
from bert_tf.text.tokenizer import open_tokenizer

# `check_model` compares this model with the checkpoint's.
MODEL = Setting("bert_model", "str", "large", choices=tuple(PRESETS), is_flag=False)
_SPECIAL = {
    "bert_model": MODEL,
    "seq_length": Setting("max_seq_length", "int", None, at_least=8),
    "squad_version": Setting("squad_version", "str", "1.1", choices=("1.1", "2.0"), is_flag=False),
}


def task_arguments(program: str, declared: str, **special: Setting) -> tuple[Argument, ...]:
    """The arguments of a script that calls this program; see `arguments`."""
    return arguments(declared, *SETTINGS_OF[program], **{**_SPECIAL, **special})


@dataclasses.dataclass(frozen=True)
class Finetuning(Call):
    """A call for fine-tuning, which has a learning rate and num_gpus, or for using a fine-tuned model.

    Attributes:
      data_label: the data folder's name in the plan.
      data: its path.
      program: the name of a module in `programs`.
      result_files: output files to name at the end: label -> path from the folder of the first run.
    """

    data_label: str
    data: Path
    program: ClassVar[str]
    result_files: ClassVar[Mapping[str, str]]

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """What runs are called; their mode is added."""

    @property
    def batch_size(self) -> int:
        """The batch size of a rank in training; in scripts with only one batch size it is predict_batch_size."""
        flags = self.positionals.flags()
        return flags.get("train_batch_size", flags["predict_batch_size"])

    @property
    def trains(self) -> bool:
        return "learning_rate" in self.positionals.flags()

    @property
    def size(self) -> str:
        if self.trains:
            return f"gbs{self.batch_size * self.num_ranks}"
        checkpoint = Path(self.positionals[self.positionals.name_of("init_checkpoint")]).absolute()
        # A folder for each call, so that the answers of one checkpoint do not replace those of another.
        call = f"{checkpoint} {self.data} {self.positionals.values}"
        return f"bs{self.batch_size}_{checkpoint.name}_{zlib.crc32(call.encode()):08x}"

    def describe(self) -> list[str]:
        lines = [f"{self.data_label} = {short_path(self.data)}"]
        if self.trains:
            rate = self.positionals.flags()["learning_rate"] * self.num_ranks
            lines += [f"global_batch_size = {self.batch_size * self.num_ranks}", f"effective_learning_rate = {rate:g}"]
        return lines

    def check(self) -> None:
        self.check_settings(self.program, self.positionals.flags())
        with contextlib.suppress(MissingError):  # a dry run goes on without the file
            self._weights()

    def run(self, folder: str, mode: str, **flags: object) -> Run:
        """A run of the program in the subfolder `folder` of the results, from the weights that the arguments name.

        Raises:
          UserError: the checkpoint is missing, or not of the requested model.
        """
        model_dir = self.folder / folder
        weights, files = self._weights()
        common = {**self.positionals.flags(), "model_dir": model_dir, "dllog_path": model_dir / "dllogger.json"}
        if self.trains:
            common["train_batch_size"] = self.batch_size
        return Run(f"{self.title}, {mode}", self.program, {**common, **weights, "mode": mode, **flags}, files)

    def _weights(self) -> tuple[Values, Mapping[Path, str]]:
        """The flags for the initial weights, and files to write: bert_config.json for random ones (``none``)."""
        name = self.positionals.name_of("init_checkpoint")
        if not (self.trains and self.positionals[name] == "none"):
            checkpoint = find_checkpoint(
                self.positionals[name],
                f"{self.positionals.title(name)} is {self.positionals[name]!r}",
                "; to fine-tune random weights: 'none'" if self.trains else "",
            )
            check_model(checkpoint, self.positionals)
            return {"init_checkpoint": checkpoint}, {}
        if not self.environment.value_of("vocab_file"):
            raise UserError(f"{name} is 'none' (random weights), which needs VOCAB_FILE=<a vocab.txt>")
        vocab_file = self.environment.path("vocab_file", Path())
        check_file(vocab_file, "set VOCAB_FILE to a vocab.txt")
        config = BertConfig.preset(self.positionals["bert_model"], open_tokenizer(vocab_file).vocab_size).to_json()
        file = self.folder / "bert_config.json"
        check_output(file, str(file), lambda beginning: beginning == config.encode())
        return {"init_checkpoint": None, "bert_config_file": file, "vocab_file": vocab_file}, {file: config}

    def results(self, runs: Sequence[Run]) -> Sequence[str]:
        files = [*self.result_files.items(), *([("curves", "report.html")] if self.trains else [])]
        return [f"{label}: {short_path(runs[0].flags['model_dir'] / file)}" for label, file in files]


_GOOGLES = "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt"


# --- SQuAD: fine-tuning predicts and scores, too; using a model scores if the file contains answers ----------------

SQUAD = task_arguments(
    "squad",
    f"""
    batch_size_per_gpu=10 learning_rate_per_gpu=5e-6 precision=fp16 use_xla=true num_gpus=10 seq_length=384
    doc_stride=128 bert_model=large squad_version=1.1 checkpoint={_GOOGLES} epochs=1.1
    """,
)
SQUAD_INFERENCE = task_arguments(
    "squad",
    """
    checkpoint=results/tf_bert_finetuning_squad_large_fp16_gbs100/squad batch_size=8 precision=fp16 use_xla=true
    seq_length=384 doc_stride=128 bert_model=large squad_version=1.1
    """,
)


class SquadCall(Finetuning):
    program, title, result_files = "squad", "SQuAD", {"predictions": "predictions.json"}

    @classmethod
    def from_positionals(cls, kind: str, positionals: Positionals, environment: LaunchEnvironment) -> SquadCall:
        default = environment.data_dir / "download" / "squad" / f"v{positionals['squad_version']}"
        return cls(kind, positionals, environment, "squad_dir", environment.path("squad_dir", default))

    def runs(self) -> list[Run]:
        flags = {"version_2_with_negative": self.positionals["squad_version"] == "2.0"}
        if self.trains:
            run = self.run("squad", "train_and_predict", train_file=self.questions("train"), **flags)
        else:
            run = self.run("", "predict", **flags)
        run.flags["predict_file"] = self.questions("dev")
        return [run]

    def questions(self, split: str) -> Path:
        """SQuAD's file for a split; raises `UserError` if it is missing."""
        file = self.data / f"{split}-v{self.positionals['squad_version']}.json"
        check_file(
            file,
            "download it with data/bertPrep.py --action download --dataset squad, or set SQUAD_DIR to the folder that "
            "holds it",
        )
        return file


# --- GLUE: fine-tuning scores; using a model scores and, if there is a test file, predicts it ----------------------

# NVIDIA's scripts have this argument, but it has no effect on sentences.
_STRIDE = Setting("doc_stride", "int", 64, at_least=1, is_flag=False)
GLUE = task_arguments(
    "classifier",
    f"""
    task_name=MRPC batch_size=16 learning_rate=3e-6 precision=fp16 use_xla=true num_gpus=8 seq_length=128 doc_stride=64
    bert_model=large epochs=3.0 warmup_proportion=0.1 checkpoint={_GOOGLES}
    """,
    doc_stride=_STRIDE,
)
GLUE_INFERENCE = task_arguments(
    "classifier",
    """
    task_name=MRPC checkpoint=results/tf_bert_finetuning_glue_mrpc_large_fp16_gbs128/glue batch_size=16 precision=fp16
    use_xla=true seq_length=128 doc_stride=64 bert_model=large
    """,
    doc_stride=_STRIDE,
)


class GlueCall(Finetuning):
    program, result_files = "classifier", {"scores": "eval_results.txt"}

    @classmethod
    def from_positionals(cls, kind: str, positionals: Positionals, environment: LaunchEnvironment) -> GlueCall:
        name = positionals["task_name"]
        if name.lower() == CUSTOM:
            raise UserError(
                f"task_name (position 1) is {name!r}: for files of your own see run_classifier.py "
                f"--task_name={CUSTOM}, docs/fine_tuning.md"
            )
        name = find_task(name).name
        data = environment.path("glue_dir", environment.data_dir / "download" / "glue") / name
        return cls(f"{kind}_{name.lower()}", positionals, environment, "data_dir", data)

    @property
    def title(self) -> str:
        return self.data.name

    def runs(self) -> list[Run]:
        task, flags = find_task(self.title), {"task_name": self.title, "data_dir": self.data}
        for use in (TRAIN, EVAL) if self.trains else (EVAL,):
            try:
                find_files(task, use, str(self.data), None)
            except UserError as error:
                raise MissingError(f"{error}; GLUE_DIR names the folder with the tasks' folders") from None
        if self.trains:
            return [self.run("glue", "train_and_eval", **flags)]
        runs = [self.run("", "eval", **flags)]
        try:
            find_files(task, PREDICT, str(self.data), None)
        except UserError as error:
            show(f"nothing is predicted, only scored: {error}")
        else:
            runs.append(self.run("", "predict", **flags))
        return runs
