"""BioBERT's launchers, with the arguments of NVIDIA's scripts in biobert/scripts: pre-training on PubMed's abstracts in
two phases (which also take bert_model, as the last argument), entities of BC5CDR, and relations of ChemProt."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

from bert_tf.base.errors import MissingError
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Argument, Positionals, arguments
from bert_tf.launch.call import Recipe, Run
from bert_tf.launch.environment import SETTINGS_OF, LaunchEnvironment
from bert_tf.launch.finetuning import Finetuning, task_arguments
from bert_tf.launch.pretraining import LENGTHS, Pretraining, make_phase
from bert_tf.settings.declaration import Setting, find_setting
from bert_tf.settings.programs import PRETRAINING

_CHECKPOINT = "results/biobert_tf_uncased_base/model.ckpt"
_CASED = Setting("cased", "bool", False, is_flag=False)


def _task_arguments(
    program: str, checkpoint: str, rate: str, seq_length: int, eval_batch_size: int, epochs: str
) -> tuple[Argument, ...]:
    return task_arguments(
        program,
        f"""
        init_checkpoint={checkpoint} train_batch_size=8 learning_rate={rate} cased=false precision=fp16 use_xla=true
        num_gpu=16 seq_length={seq_length} bert_model=base eval_batch_size={eval_batch_size} epochs={epochs}
        """,
        train_batch_size=dataclasses.replace(find_setting("train_batch_size", *SETTINGS_OF[program]), word=""),
        eval_batch_size=find_setting("predict_batch_size", *SETTINGS_OF[program]),
        cased=_CASED,
    )


# The arguments of the pre-training scripts, by phase.
_PUBMED_ARGUMENTS = {
    1: """
       train_batch_size=128 learning_rate=9.625e-5 cased=false precision=fp16 use_xla=true num_gpu=16 warmup_steps=1953
       train_steps=19531 num_accumulation_steps=32 save_checkpoint_steps=5000 eval_batch_size=80
       """,
    2: """
       init_checkpoint= train_batch_size=16 learning_rate=2.9e-4 cased=false precision=fp16 use_xla=true num_gpu=16
       warmup_steps=434 train_steps=4340 num_accumulation_steps=128 save_checkpoint_steps=5000 eval_batch_size=26
       """,
}


class _TaskCall(Finetuning):
    """Fine-tunes on the files in a subfolder of BioBERT's data (BIOBERT_DIR, or biobert in the data folder)."""

    @classmethod
    def from_positionals(
        cls, kind: str, folder: str, positionals: Positionals, environment: LaunchEnvironment
    ) -> _TaskCall:
        data = environment.path("biobert_dir", environment.data_dir / "biobert") / folder
        return cls(f"biobert_{kind}", positionals, environment, "data_dir", data)

    def check_files(self, names: Sequence[str], content: str, dataset: str) -> None:
        """Raises `MissingError` if a data file is missing; `content`: what each of its lines must hold."""
        if missing := [name for name in names if not (self.data / name).is_file()]:
            files, remedy = " and no ".join(missing), f"BIOBERT_DIR names the folder above {dataset}"
            raise MissingError(f"{self.data} has no {files}, with {content} in each line; {remedy}")


class EntitiesCall(_TaskCall):
    """Fine-tunes on BC5CDR's chemicals or diseases, then labels and scores the test file."""

    program, result_files = "ner", {"predictions": "predictions.tsv", "scores": "eval_results.txt"}

    @property
    def title(self) -> str:
        return f"BC5CDR-{self.data.name}"

    def runs(self) -> list[Run]:
        training, test = ("train.tsv", "devel.tsv"), "test.tsv"  # NVIDIA's script trains on train.tsv and devel.tsv
        self.check_files((*training, test), "a token and its label", "BC5CDR")
        files = {"train_file": ",".join(str(self.data / name) for name in training), "predict_file": self.data / test}
        cased = self.positionals["cased"]
        return [self.run("entities", "train_and_predict", do_lower_case=not cased, **files)]


class RelationsCall(_TaskCall):
    """Fine-tunes on ChemProt's train.tsv, scores dev.tsv and test.tsv, and predicts test.tsv."""

    program, title = "classifier", "ChemProt"
    result_files = {
        "scores of dev.tsv": "eval_results.txt",
        "scores of test.tsv": "../test/eval_results.txt",
        "predictions": "../test/test_results.tsv",
    }

    def runs(self) -> list[Run]:
        self.check_files(("train.tsv", "dev.tsv", "test.tsv"), "index, sentence and label", "ChemProt")
        flags = {"task_name": "ChemProt", "data_dir": self.data, "do_lower_case": not self.positionals["cased"]}
        test_flags = {**flags, "init_checkpoint": self.folder / "relations"}
        return [
            self.run("relations", "train_and_eval", **flags),
            self.run("test", "eval", **test_flags, eval_file=self.data / "test.tsv"),
            self.run("test", "predict", **test_flags),
        ]


def make_pretraining(number: int, positionals: Positionals, environment: LaunchEnvironment) -> Pretraining:
    """One phase of pre-training on PubMed's abstracts: 1 from Google's weights, 2 from argument init_checkpoint."""
    phase = make_phase(positionals, f"phase_{number}", LENGTHS[number - 1], num_updates=positionals["train_steps"])
    num_layers, hidden_size = PRESETS[positionals["bert_model"]]
    size = f"L-{num_layers}_H-{hidden_size}_A-{hidden_size // 64}"
    weights = (
        f"download/google_pretrained_weights/{'cased' if positionals['cased'] else 'uncased'}_{size}/bert_model.ckpt"
    )
    defaults = {"DATASET": "pubmed_baseline", "INIT_CHECKPOINT": str(environment.data_dir / weights)}
    checkpoint = {"INIT_CHECKPOINT": positionals["init_checkpoint"]} if number == 2 else {}
    environment = environment.with_defaults(defaults).with_variables(checkpoint)
    return Pretraining(
        f"biobert_phase_{number}", positionals, environment, "lamb", [phase], is_cased=positionals["cased"]
    )


RECIPES: dict[str, Recipe] = {
    "biobert/ner_bc5cdr-chem": Recipe(
        _task_arguments("ner", _CHECKPOINT, "3.125e-6", 128, 8, "10.0"),
        partial(EntitiesCall.from_positionals, "ner_bc5cdr_chem", "BC5CDR/chem"),
    ),
    "biobert/ner_bc5cdr-disease": Recipe(
        _task_arguments("ner", f"{_CHECKPOINT}-4340", "3.125e-6", 128, 8, "100.0"),
        partial(EntitiesCall.from_positionals, "ner_bc5cdr_disease", "BC5CDR/disease"),
    ),
    "biobert/rel_chemprot": Recipe(
        _task_arguments("classifier", _CHECKPOINT, "1.5e-6", 512, 16, "3.0"),
        partial(RelationsCall.from_positionals, "rel_chemprot", "ChemProt"),
    ),
    **{
        f"biobert/run_pretraining-pubmed_base_phase_{number}": Recipe(
            arguments(f"{declared} bert_model=base", *PRETRAINING, cased=_CASED), partial(make_pretraining, number)
        )
        for number, declared in _PUBMED_ARGUMENTS.items()
    },
}
