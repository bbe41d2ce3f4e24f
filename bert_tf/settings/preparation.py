"""The options of bertPrep.py, each with the actions that read it."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.settings.declaration import same_setting, setting, settings_of
from bert_tf.settings.programs import MaskingOptions
from bert_tf.settings.training import MAX_SEED, SEED, PretrainingConfig

_RECORDS = "create_tfrecord_files export_tfrecord"
INPUT_FORMATS = ("auto", "file", "line", "paragraph", "sentences", "jsonl", "parquet")
SEGMENTATION_METHODS = ("rules", "nltk")
# What PubMed Central calls its groups: commercial use is allowed (CC0, CC BY, CC BY-SA, CC BY-ND); only other use
# (CC BY-NC, CC BY-NC-SA, CC BY-NC-ND); no licence of Creative Commons that a machine can read.
LICENSE_GROUPS = ("oa_comm", "oa_noncomm", "oa_other")


@dataclasses.dataclass(frozen=True)
class PreparationOptions(MaskingOptions):
    """All options, with their help; the parser itself declares --action, --dataset and --help."""

    action: str = ""
    dataset: str = ""  # empty, for status and verify: all
    input_paths: tuple[str, ...] = ()  # those named in `input_files`
    n_processes: int | None = setting(
        None, "Worker processes; default: all cores.", at_least=1, actions="all", variable="N_PROCESSES"
    )
    dask_scheduler: str | None = setting(
        None,
        "Use the workers of this Dask scheduler instead: tcp://HOST:PORT, or the file that dask scheduler "
        "--scheduler-file writes.",
        actions="all",
        variable="DASK_SCHEDULER",
    )
    input_files: str | None = setting(
        None,
        "Dataset custom: files and folders of .txt, .jsonl (also .gz, .zst) or .parquet files, separated by commas; or "
        "a single path that contains a comma.",
        actions="text_formatting",
    )
    input_format: str = setting(
        "auto",
        "Dataset custom: what a document is: a file; a line; a paragraph, between blank lines; sentences: the same, "
        "where each line is a sentence; the text of a line that is a JSON object (jsonl) or of a row (parquet). auto: "
        "jsonl and parquet by the suffix; other files: file if there are several, else paragraph if there are blank "
        "lines, else line. Formats may be mixed.",
        choices=INPUT_FORMATS,
        actions="text_formatting",
    )
    text_column: str = setting(
        "text", "The text's column in Parquet files, or field of JSON lines.", actions="text_formatting"
    )
    skip_wikiextractor: int = setting(
        0,
        "Wikipedia: read the output of wikiextractor below extracted/ instead of the dump.",
        choices=(0, 1),
        bare=1,
        actions="text_formatting",
    )
    license_groups: str = setting(
        "oa_comm",
        "Dataset pubmed_fulltext: the articles to take, by PubMed Central's groups of licences, separated by commas: "
        "oa_comm (commercial use is allowed), oa_noncomm (it is not), oa_other (no Creative Commons licence).",
        actions="download text_formatting",
    )
    captions: bool = setting(
        False, "Dataset pubmed_fulltext: keep the captions of figures and tables.", actions="text_formatting"
    )
    fallback_encoding: str | None = setting(
        None, "Encoding of files that are not UTF-8 and do not state one.", actions="text_formatting"
    )
    encoding_errors: str = setting(
        "strict",
        "replace: U+FFFD for bytes that cannot be decoded, instead of an error.",
        choices=("strict", "replace"),
        actions="text_formatting",
    )
    max_bad_records: int = setting(
        0,
        "Skip up to this many JSON lines, rows, PubMed citations, articles, pages of Wikipedia or lines of ChemProt "
        "that cannot be read; they are named and counted. With 0 the first one ends the run, and the same command with "
        "a larger number continues from there.",
        at_least=0,
        actions="text_formatting",
    )
    keep_duplicates: bool = setting(False, "Keep repeated documents.", actions="text_formatting")
    n_training_shards: int | None = setting(
        None, "Shards to train on; default: 1472, for the sample 8.", at_least=1, actions="sharding"
    )
    n_test_shards: int | None = setting(
        None, "Shards of held-out text; default: 1472, for the sample 2.", at_least=0, actions="sharding"
    )
    fraction_test_set: float = setting(0.1, "Share of the text to hold out.", at_least=0, below=1, actions="sharding")
    segmentation_method: str = setting(
        "rules",
        "Finds the sentences: rules of our own, or NLTK's Punkt.",
        choices=SEGMENTATION_METHODS,
        actions="sharding",
    )
    random_seed: int = setting(
        SEED, "Seed of all random choices.", at_least=0, at_most=MAX_SEED, actions=f"sharding create_pairs {_RECORDS}"
    )
    vocab_file: str | None = setting(
        None,
        "The vocabulary: create_vocab writes it, the other actions read it. A .model is SentencePiece's, a "
        "tokenizer.json Hugging Face's, any other WordPiece's.",
        actions="create_vocab create_token_files create_tfrecord_files verify",
    )
    # The trainer allocates room for all pieces before it begins, and aborts where there is none.
    vocab_size: int = setting(
        30_522, "Pieces of the vocabulary.", at_least=1, at_most=1 << 22, actions="create_vocab", variable="VOCAB_SIZE"
    )
    do_lower_case: int | None = setting(
        None,
        "1: lower-case the text and drop accents; default: 1 for create_vocab, for the other actions what is recorded "
        "beside the vocabulary, else what its pieces suggest.",
        choices=(0, 1),
        actions=f"create_vocab create_token_files create_pairs {_RECORDS}",
    )
    strip_accents: int | None = setting(
        None,
        "1: drop accents and other marks, 0: keep them; default: as --do_lower_case.",
        choices=(0, 1),
        actions=f"create_vocab create_token_files create_pairs {_RECORDS}",
    )
    max_seq_length: int = setting(512, "Tokens of an instance.", at_least=1, actions=f"create_pairs {_RECORDS}")
    max_predictions_per_seq: int = setting(
        20,
        "How many tokens of an instance are predicted at most; the recipe has 20 of 128 tokens, 80 of 512.",
        at_least=1,
        actions=_RECORDS,
    )
    dupe_factor: int | None = setting(
        None,
        "Passes over the text, each with different pairs (in records also masks); default: 5.",
        at_least=1,
        actions=f"create_pairs {_RECORDS}",
        variable="DUPE_FACTOR",
    )
    no_next_sentence: bool = same_setting(PretrainingConfig, "no_next_sentence")
    repair: bool = setting(False, "Make damaged files again.", actions="verify")

    @property
    def chosen_license_groups(self) -> tuple[str, ...]:
        """Those in `license_groups`, in the order of `LICENSE_GROUPS`. Raises: UserError for an unknown group."""
        names = {name.strip() for name in self.license_groups.split(",")}
        if unknown := names.difference(LICENSE_GROUPS):
            raise UserError(
                f"license_groups={self.license_groups}: {min(unknown)!r} must be one of {', '.join(LICENSE_GROUPS)}"
            )
        return tuple(name for name in LICENSE_GROUPS if name in names)


def options_of_action(action: str) -> list[str]:
    """The options that an action reads, besides those that all actions read."""
    return [declared.name for declared in settings_of(PreparationOptions) if action in declared.actions.split()]


def command(action: str, dataset: str, **options: Any) -> str:
    """The command line of bertPrep.py for an action, as the user types it."""
    words = ["python3", "data/bertPrep.py", "--action", action, "--dataset", dataset]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words += [f"--{name}", str(value)]
    return shlex.join(words)
