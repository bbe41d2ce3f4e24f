"""The settings of programs and launchers that do not belong to a run: files, devices, actions, variables."""

from __future__ import annotations

import dataclasses

from bert_tf.bert_config import PRESETS
from bert_tf.settings.declaration import setting, with_default
from bert_tf.settings.training import MAX_GLOBAL_BATCH, PretrainingConfig, TrainingConfig


@dataclasses.dataclass(frozen=True)
class ProgramOptions:
    """What pre-training and fine-tuning have in common."""

    model_dir: str | None = setting(
        None, "The run folder. A run that is started again in its folder continues.", is_required=True
    )
    bert_config_file: str | None = setting(
        None, "The model's bert_config.json or Hugging Face's config.json; default: the one beside --init_checkpoint."
    )
    allow_missing_weights: bool = setting(
        False,
        "Start from --init_checkpoint although it lacks encoder variables, which stay random, or has unknown ones.",
        variable="ALLOW_MISSING_WEIGHTS",
    )
    continue_with_changes: bool = setting(
        False, "Continue a run although its settings have changed.", variable="CONTINUE_WITH_CHANGES"
    )
    global_batch_size: int | None = setting(
        None, "With --train_batch_size=auto: sequences of all ranks in an update.", at_least=1, at_most=MAX_GLOBAL_BATCH
    )
    num_accumulation_steps: int | None = with_default(TrainingConfig, "num_accumulation_steps", None)
    device: str = setting(
        "auto",
        "auto: the GPUs of this machine where it has some, else the CPU.",
        choices=("auto", "cpu"),
        variable="DEVICE",
    )
    use_horovod: bool = setting(False, "Share the work among the ranks of a Horovod job.")
    enable_xla: bool = setting(False, "Compile with XLA.")
    plan: bool = setting(False, "Print how much memory the training needs and which micro-batches fit, and exit.")
    gpu_memory_gib: float | None = setting(
        None,
        "Memory of a rank's device, for --plan and --train_batch_size=auto; default: the GPU's, or the machine's free "
        "memory where there is no GPU.",
        at_least=0.25,
    )
    dllog_path: str | None = setting(None, "File for NVIDIA's DLLogger lines.")

    @property
    def plans_for_gpu(self) -> bool:
        """Whether a plan is for a GPU that is specified by its memory, and need not be in this machine."""
        return self.plan and self.gpu_memory_gib is not None and self.device != "cpu"


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """How tokens are chosen to be predicted: in records when these are made, in token files when they are read."""

    masked_lm_prob: float = setting(
        0.15,
        "Share of the tokens that are predicted (in training: of token files only).",
        above=0,
        at_most=1,
        variable="MASKED_LM_PROB",
        actions="create_tfrecord_files export_tfrecord",
    )
    whole_word_masking: bool = setting(
        False,
        "Mask all pieces of a word or none (in training: of token files only).",
        variable="WHOLE_WORD_MASKING",
        actions="create_tfrecord_files export_tfrecord",
    )


@dataclasses.dataclass(frozen=True)
class PretrainingOptions(MaskingOptions, ProgramOptions):
    """The options of run_pretraining.py."""

    bert_model: str | None = setting(
        None,
        "Built-in size instead of --bert_config_file, with the vocabulary beside the records.",
        choices=tuple(PRESETS),
    )
    input_files: str | None = setting(
        None,
        "Training records or token files: comma-separated folders and globs, or a single path that contains a comma.",
        is_required=True,
    )
    eval_files: str | None = setting(None, "Held-out records or token files; none: no evaluation.")
    init_checkpoint: str | None = setting(
        None,
        "Run folder, checkpoint, bert_model.ckpt or Hugging Face folder to start from.",
        variable="INIT_CHECKPOINT",
    )
    replay_update: int | None = setting(
        None,
        "Repeat this update of the run in --model_dir, from the checkpoint before it, and print what it did. All "
        "settings are the run's own; nothing in its folder changes.",
    )


@dataclasses.dataclass(frozen=True)
class FinetuningOptions(ProgramOptions):
    """The options of all fine-tuning programs."""

    vocab_file: str | None = setting(
        None, "The model's vocab.txt, tokenizer.json or SentencePiece .model; default: the one beside the checkpoint."
    )
    init_checkpoint: str | None = setting(
        None,
        "Run folder, checkpoint folder, bert_model.ckpt or Hugging Face folder to start from; default: random weights. "
        "To score or predict: a fine-tuned one, default the best, or newest, in --model_dir.",
    )
    max_seq_length: int = setting(
        128, "Tokens of a row; longer texts are truncated, or for entities split into windows that overlap.", at_least=1
    )
    do_lower_case: bool | None = setting(
        None, "Lower-case the text; default: as the checkpoint says, else as the vocabulary suggests."
    )
    strip_accents: bool | None = setting(
        None, "Take accents and other marks off letters; default: as for --do_lower_case."
    )
    predict_batch_size: int = setting(8, "Prediction batch of one rank.", at_least=1, at_most=MAX_GLOBAL_BATCH)
    model_export_path: str | None = setting(None, "The exported model's folder; default: export in --model_dir.")
    export_batch_size: int | None = setting(
        None, "Fixes the SavedModel's batch; default: any size.", at_least=1, at_most=MAX_GLOBAL_BATCH
    )


PRETRAINING = (PretrainingConfig, PretrainingOptions)


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
        None,
        "Which to train on if records and token files are both prepared.",
        choices=("records", "tokens"),
        variable="DATA_FORMAT",
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
