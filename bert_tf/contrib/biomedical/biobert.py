"""BioBERT's launchers, with the arguments of NVIDIA's scripts in biobert/scripts: pre-training on PubMed's abstracts in
two phases (theirs, and the model), entities of BC5CDR, relations of ChemProt, and the speed of these tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bert_tf.base.errors import MissingError
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Argument, Typed, Values, arguments
from bert_tf.launch.environment import LaunchEnvironment, Launcher, show
from bert_tf.launch.finetune_benchmark import measure_all, what_fits
from bert_tf.launch.finetuning import MODEL, SEQ_LENGTH, FinetuningCall
from bert_tf.launch.pretraining import LENGTHS, Recipe
from bert_tf.launch.recipes import only_phase
from bert_tf.settings.declaration import Setting, find_setting
from bert_tf.settings.programs import PRETRAINING
from bert_tf.tasks.task import task_settings

_CLASSIFIER, _NER = task_settings()["glue"], task_settings()["entities"]
_START = "results/biobert_tf_uncased_base/model.ckpt"
_CASED = Setting("cased", "bool", False, is_flag=False)


def _task_arguments(
    settings: Sequence[type], checkpoint: str, rate: str, seq_length: int, eval_batch_size: int, epochs: str
) -> tuple[Argument, ...]:
    return arguments(
        f"""
        init_checkpoint={checkpoint} train_batch_size=8 learning_rate={rate} cased=false precision=fp16 use_xla=true
        num_gpu=16 seq_length={seq_length} bert_model=base eval_batch_size={eval_batch_size} epochs={epochs}
        """,
        *settings,
        train_batch_size=dataclasses.replace(find_setting("train_batch_size", *settings), word=""),
        eval_batch_size=find_setting("predict_batch_size", *settings),
        cased=_CASED,
        bert_model=MODEL,
        seq_length=SEQ_LENGTH,
    )


_CHEMICAL_ARGUMENTS = _task_arguments(_NER, _START, "3.125e-6", 128, 8, "10.0")
_DISEASE_ARGUMENTS = _task_arguments(_NER, f"{_START}-4340", "3.125e-6", 128, 8, "100.0")
_RELATION_ARGUMENTS = _task_arguments(_CLASSIFIER, _START, "1.5e-6", 512, 16, "3.0")
# By phase.
_OF_PUBMED = {
    1: """
       train_batch_size=128 learning_rate=9.625e-5 cased=false precision=fp16 use_xla=true num_gpu=16 warmup_steps=1953
       train_steps=19531 num_accumulation_steps=32 save_checkpoint_steps=5000 eval_batch_size=80
       """,
    2: """
       init_checkpoint= train_batch_size=16 learning_rate=2.9e-4 cased=false precision=fp16 use_xla=true num_gpu=16
       warmup_steps=434 train_steps=4340 num_accumulation_steps=128 save_checkpoint_steps=5000 eval_batch_size=26
       """,
}
_PUBMED_ARGUMENTS = {
    number: arguments(f"{declared} bert_model=base", *PRETRAINING, cased=_CASED)
    for number, declared in _OF_PUBMED.items()
}
# The tasks -> the head that is measured.
_HEADS = {"ner_bc5cdr-chem": "entities", "ner_bc5cdr-disease": "entities", "rel_chemprot": "classes"}
_SWEEP = {"seq_length": (128, 512), "batch_size": (8, 32, 64)}
_BENCHMARK_ARGUMENTS = {
    mode: arguments(
        f"task=ner_bc5cdr-chem {num_gpu} bert_model=base cased=false",
        *task_settings()["squad"],
        task=Setting("task", "str", None, choices=tuple(_HEADS), is_flag=False),
        bert_model=MODEL,
        cased=_CASED,
    )
    for mode, num_gpu in (("train", "num_gpu=2"), ("predict", ""))
}


def _call(kind: str, data: str, typed: Typed, environment: LaunchEnvironment) -> FinetuningCall:
    """Args: data: a folder in that of BioBERT's data."""
    folder = environment.path("biobert_dir", environment.data_dir / "biobert") / data
    return FinetuningCall(f"biobert_{kind}", typed, environment, ("data_dir", folder))


def _check_files(folder: Path, names: Sequence[str], content: str, dataset: str) -> None:
    if missing := [name for name in names if not (folder / name).is_file()]:
        names = " and no ".join(missing)
        raise MissingError(
            f"{folder} has no {names}, with {content} in each line; BIOBERT_DIR names the folder above {dataset}"
        )


def launch_entities(kind: str, texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tunes on BC5CDR's entities of this kind ("chem" or "disease"), labels and scores; the ranks' exit code."""
    typed = Typed({"chem": _CHEMICAL_ARGUMENTS, "disease": _DISEASE_ARGUMENTS}[kind], texts)
    call = _call(f"ner_bc5cdr_{kind}", f"BC5CDR/{kind}", typed, environment)
    folder, training, test = call.data[1], ("train.tsv", "devel.tsv"), "test.tsv"  # trained on the first two, as there

    def prepare() -> list[Values]:
        _check_files(folder, (*training, test), "a token and its label", "BC5CDR")
        return [
            {
                **call.flags("entities"),
                "mode": "train_and_predict",
                "do_lower_case": not typed["cased"],
                "train_file": ",".join(str(folder / name) for name in training),
                "predict_file": folder / test,
            }
        ]

    results = {"predictions": "predictions.tsv", "scores": "eval_results.txt", "curves": "report.html"}
    return call.run(f"BC5CDR-{kind}", ("ner", _NER), prepare, results)


def launch_relations(texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tunes on ChemProt, scores both other files, predicts the test file; 0, or the first bad exit code."""
    typed = Typed(_RELATION_ARGUMENTS, texts)
    call = _call("rel_chemprot", "ChemProt", typed, environment)
    folder, trained, tested = call.data[1], call.folder / "relations", call.folder / "test"

    def prepare() -> list[Values]:
        names = ("train.tsv", "dev.tsv", "test.tsv")
        _check_files(folder, names, "index, sentence and label", "ChemProt")
        task = {"task_name": "ChemProt", "data_dir": folder, "do_lower_case": not typed["cased"]}
        testing = {**call.flags("test"), **task, "init_checkpoint": trained}
        return [
            {**call.flags("relations"), **task, "mode": "train_and_eval"},
            {**testing, "mode": "eval", "eval_file": folder / "test.tsv"},
            {**testing, "mode": "predict"},
        ]

    results = {
        "scores of dev.tsv": "eval_results.txt",
        "scores of test.tsv": str(tested / "eval_results.txt"),
        "predictions": str(tested / "test_results.tsv"),
        "curves": "report.html",
    }
    return call.run("ChemProt", ("classifier", _CLASSIFIER), prepare, results)


def launch_pretraining(number: int, texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Pre-trains on PubMed's abstracts in phase 1, from Google's weights, or phase 2; returns the ranks' exit code."""
    typed = Typed(_PUBMED_ARGUMENTS[number], texts)
    phase = only_phase(f"phase_{number}", LENGTHS[number - 1], typed)
    num_layers, hidden_size = PRESETS[typed["bert_model"]]
    size = f"L-{num_layers}_H-{hidden_size}_A-{hidden_size // 64}"
    weights = f"download/google_pretrained_weights/{'cased' if typed['cased'] else 'uncased'}_{size}/bert_model.ckpt"
    defaults = {"DATASET": "pubmed_baseline", "INIT_CHECKPOINT": str(environment.data_dir / weights)}
    start = {"INIT_CHECKPOINT": typed["init_checkpoint"]} if number == 2 else {}
    here = LaunchEnvironment({**defaults, **environment.environ, **start})
    return Recipe(f"biobert_phase_{number}", typed, here, "lamb", [phase], is_cased=typed["cased"]).launch()


def launch_benchmark(mode: str, texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Measures all lengths, batch sizes and precisions of NVIDIA's script that fit, of what was typed;
    returns as `measure_all`."""
    typed = Typed(_BENCHMARK_ARGUMENTS[mode], texts)
    show(typed.describe())
    fixed = {name: [value] for name, value in {"num_gpu": 1, **typed.values}.items()}
    name = f"biobert_finetune_{mode}_benchmark_{typed['task']}"
    return measure_all(name, mode, what_fits(environment, **fixed, **_SWEEP), environment, heads=_HEADS)


LAUNCHERS: dict[str, Launcher] = {
    "biobert/ner_bc5cdr-chem": (_CHEMICAL_ARGUMENTS, partial(launch_entities, "chem")),
    "biobert/ner_bc5cdr-disease": (_DISEASE_ARGUMENTS, partial(launch_entities, "disease")),
    "biobert/rel_chemprot": (_RELATION_ARGUMENTS, launch_relations),
    **{
        f"biobert/run_pretraining-pubmed_base_phase_{number}": (declared, partial(launch_pretraining, number))
        for number, declared in _PUBMED_ARGUMENTS.items()
    },
    **{
        f"biobert/biobert_finetune_{name}_benchmark": (_BENCHMARK_ARGUMENTS[mode], partial(launch_benchmark, mode))
        for name, mode in (("train", "train"), ("inference", "predict"))
    },
}
