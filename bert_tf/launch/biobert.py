"""BioBERT's tasks, as in NVIDIA's folder biobert/scripts: entities of BC5CDR with eleven arguments, by run_ner.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_tf.base.errors import MissingError
from bert_tf.launch.arguments import Argument, Typed, arguments
from bert_tf.launch.call import Flags
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.finetuning import MODEL, SEQ_LENGTH, FinetuningCall
from bert_tf.settings.declaration import Setting, find_setting
from bert_tf.tasks.entities.settings import SETTINGS

_TRAINING, _TEST = ("train.tsv", "devel.tsv"), "test.tsv"  # it is trained on the first two, as there


def _entity_arguments(checkpoint: str, epochs: str) -> tuple[Argument, ...]:
    return arguments(
        f"""
        init_checkpoint={checkpoint} train_batch_size=8 learning_rate=3.125e-6 cased=false precision=fp16 use_xla=true
        num_gpu=16 seq_length=128 bert_model=base eval_batch_size=8 epochs={epochs}
        """,
        *SETTINGS,
        train_batch_size=dataclasses.replace(find_setting("train_batch_size", *SETTINGS), word=""),
        eval_batch_size=find_setting("predict_batch_size", *SETTINGS),
        cased=Setting("cased", "bool", False, is_flag=False),
        bert_model=MODEL,
        seq_length=SEQ_LENGTH,
    )


CHEMICAL_ARGUMENTS = _entity_arguments("results/biobert_tf_uncased_base/model.ckpt", "10.0")
DISEASE_ARGUMENTS = _entity_arguments("results/biobert_tf_uncased_base/model.ckpt-4340", "100.0")


def launch_entities(kind: str, texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Fine-tunes on BC5CDR's entities of this kind ("chem" or "disease"), labels and scores; the ranks' exit code."""
    typed = Typed({"chem": CHEMICAL_ARGUMENTS, "disease": DISEASE_ARGUMENTS}[kind], texts)
    folder = environment.path("biobert_dir", environment.data_dir / "biobert") / "BC5CDR" / kind
    call = FinetuningCall(f"biobert_ner_bc5cdr_{kind}", typed, environment, ("data_dir", folder))

    def prepare() -> list[Flags]:
        if missing := [name for name in (*_TRAINING, _TEST) if not (folder / name).is_file()]:
            raise MissingError(
                f"{folder} has no {' and no '.join(missing)}, with a token and its label in each line; "
                "BIOBERT_DIR names the folder above BC5CDR"
            )
        model_dir = call.folder / "entities"
        return [
            {
                **call.flags(model_dir),
                **call.training_flags(),
                "mode": "train_and_predict",
                "do_lower_case": not typed["cased"],
                "train_file": ",".join(str(folder / name) for name in _TRAINING),
                "predict_file": folder / _TEST,
            }
        ]

    results = {"predictions": "predictions.tsv", "scores": "eval_results.txt", "curves": "report.html"}
    return call.run(f"BC5CDR-{kind}", ("ner", SETTINGS), prepare, results)
