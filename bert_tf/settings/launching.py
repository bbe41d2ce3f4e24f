"""The environment variables of the launchers that are no settings of a program."""

from __future__ import annotations

import dataclasses

from bert_tf.settings.declaration import setting


@dataclasses.dataclass(frozen=True)
class LaunchVariables:
    """What the launchers read from the environment, by variable."""

    dry_run: bool = setting(False, "Show the checked plan, and start nothing.", variable="DRY_RUN")
    working_dir: str | None = setting(
        None, "Where bertPrep.py works; default: the checkout's data/.", variable="BERT_PREP_WORKING_DIR"
    )
    data_dir: str | None = setting(
        None, "Where prepared data are; default: BERT_PREP_WORKING_DIR.", variable="DATA_DIR"
    )
    dataset: str | None = setting(
        None, "The prepared dataset to train on; default: the only one there.", variable="DATASET"
    )
    data_format: str | None = setting(
        None, "Which of both where both are prepared.", choices=("records", "tokens"), variable="DATA_FORMAT"
    )
    squad_dir: str | None = setting(None, "The folder of SQuAD's files.", variable="SQUAD_DIR")
    glue_dir: str | None = setting(None, "The folder with the tasks' folders.", variable="GLUE_DIR")
    biobert_dir: str | None = setting(
        None, "The folder with BioBERT's data, such as BC5CDR; default: biobert in DATA_DIR.", variable="BIOBERT_DIR"
    )
    vocab_file: str | None = setting(
        None, "Fine-tuning from random weights (checkpoint none): the vocab.txt.", variable="VOCAB_FILE"
    )
    results_dir: str | None = setting(
        None, "The folder of the results; default: one below results/, named by the arguments.", variable="RESULTS_DIR"
    )
    launcher: str | None = setting(
        None,
        "What starts the ranks; default: what is installed.",
        choices=("srun", "mpirun", "horovodrun", "none"),
        variable="LAUNCHER",
    )
    hosts: str | None = setting(
        None, "Machines and their ranks for mpirun and horovodrun, as a:8,b:8.", variable="HOSTS"
    )
    restarts: int = setting(
        0, "After a crash, start again up to so often without a new checkpoint.", at_least=0, variable="RESTARTS"
    )
    container_image: str | None = setting(None, "Pyxis image for every rank.", variable="CONTAINER_IMAGE")
    container_mounts: str | None = setting(None, "Further mounts for Pyxis.", variable="CONTAINER_MOUNTS")
    phase: int = setting(1, "run.sub: the phase of the LAMB recipe.", choices=(1, 2), variable="PHASE")
