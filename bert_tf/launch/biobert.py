"""BioBERT, with the arguments of NVIDIA's scripts in biobert/scripts: pre-training on PubMed in two phases, entities of
BC5CDR, relations of ChemProt."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import MissingError
from bert_tf.launch.arguments import Argument, Typed, Values, arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.finetuning import MODEL, SEQ_LENGTH, FinetuningCall
from bert_tf.launch.recipes import CASED
from bert_tf.settings.declaration import find_setting
from bert_tf.tasks.task import task_settings

_CLASSIFIER, _NER = task_settings()["glue"], task_settings()["entities"]
_START = "results/biobert_tf_uncased_base/model.ckpt"


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
        cased=CASED,
        bert_model=MODEL,
        seq_length=SEQ_LENGTH,
    )


CHEMICAL_ARGUMENTS = _task_arguments(_NER, _START, "3.125e-6", 128, 8, "10.0")
DISEASE_ARGUMENTS = _task_arguments(_NER, f"{_START}-4340", "3.125e-6", 128, 8, "100.0")
RELATION_ARGUMENTS = _task_arguments(_CLASSIFIER, _START, "1.5e-6", 512, 16, "3.0")


def _call(kind: str, data: str, typed: Typed, environment: LaunchEnvironment) -> FinetuningCall:
    """Args: data: a folder in that of BioBERT's data."""
    folder = environment.path("biobert_dir", environment.data_dir / "biobert") / data
    return FinetuningCall(f"biobert_{kind}", typed, environment, ("data_dir", folder))


def _check_files(folder: Path, names: Sequence[str], content: str, dataset: str) -> None:
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise MissingError(
            f"{folder} has no {' and no '.join(missing)}, with {content} in each line; BIOBERT_DIR names the folder "
            f"above {dataset}, and scripts/biobert/biobert_data_download.sh fills data/biobert"
        )


def launch_entities(kind: str, texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tunes on BC5CDR's entities of this kind ("chem" or "disease"), labels and scores; the ranks' exit code."""
    typed = Typed({"chem": CHEMICAL_ARGUMENTS, "disease": DISEASE_ARGUMENTS}[kind], texts)
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
    typed = Typed(RELATION_ARGUMENTS, texts)
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
