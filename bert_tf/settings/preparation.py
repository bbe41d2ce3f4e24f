"""The options of bertPrep.py, each with the actions that read it."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.settings.declaration import same, setting, settings_of
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
    """All of them, and what they are for; --action, --dataset and --help are the parser's own."""

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
        "one that holds a comma.",
        actions="text_formatting",
    )
    input_format: str = setting(
        "auto",
        "Dataset custom: a document is a file, a line, between blank lines (paragraph; sentences: with a sentence on "
        "each line, which is kept), the text of a JSON object on its line (jsonl) or of a row (parquet); auto: jsonl "
        "and parquet by the suffix, of others a file if there are several, else paragraph if there are blank lines, "
        "else a line; kinds may be mixed.",
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
        None, "Shards to train on; default: 1472; of the sample: 8.", at_least=1, actions="sharding"
    )
    n_test_shards: int | None = setting(
        None, "Shards of held-out text; default: 1472; of the sample: 2.", at_least=0, actions="sharding"
    )
    fraction_test_set: float = setting(0.1, "Share of the text to hold out.", at_least=0, below=1, actions="sharding")
    segmentation_method: str = setting(
        "rules",
        "Finds the sentences: rules of our own, or NLTK's Punkt.",
        choices=SEGMENTATION_METHODS,
        actions="sharding",
    )
    random_seed: int = setting(
        SEED, "Decides all that is drawn.", at_least=0, at_most=MAX_SEED, actions=f"sharding create_pairs {_RECORDS}"
    )
    vocab_file: str | None = setting(
        None,
        "create_vocab writes it, the others read it; a name in .model: SentencePiece, a tokenizer.json: Hugging "
        "Face's, else WordPiece.",
        actions="create_vocab create_token_files create_tfrecord_files verify",
    )
    # The trainer allocates room for all pieces before it begins, and aborts where there is none.
    vocab_size: int = setting(
        30_522, "Pieces.", at_least=1, at_most=1 << 22, actions="create_vocab", variable="VOCAB_SIZE"
    )
    do_lower_case: int | None = setting(
        None,
        "1: lower-case the text and drop accents; default: create_vocab 1, the others as stands beside the vocabulary, "
        "or as its pieces suggest.",
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
        "Tokens of an instance to be predicted, at most; the recipe has 20 at 128, 80 at 512.",
        at_least=1,
        actions=_RECORDS,
    )
    dupe_factor: int | None = setting(
        None,
        "Passes over the text, each with pairs (records: and masks) of its own; default: 5.",
        at_least=1,
        actions=f"create_pairs {_RECORDS}",
        variable="DUPE_FACTOR",
    )
    no_next_sentence: bool = same(PretrainingConfig, "no_next_sentence")
    repair: bool = setting(False, "Make damaged files again.", actions="verify")

    @property
    def chosen_license_groups(self) -> tuple[str, ...]:
        """In the order of `LICENSE_GROUPS`. Raises: UserError if one named is none of these."""
        named = {name.strip() for name in self.license_groups.split(",")}
        if unknown := named.difference(LICENSE_GROUPS):
            groups = ", ".join(LICENSE_GROUPS)
            raise UserError(f"license_groups={self.license_groups}: {min(unknown)!r} must be one of {groups}")
        return tuple(name for name in LICENSE_GROUPS if name in named)


def options_of_action(action: str) -> list[str]:
    """The options that an action reads, besides those of all actions."""
    return [each.name for each in settings_of(PreparationOptions) if action in each.actions.split()]


def command(action: str, dataset: str, **options: Any) -> str:
    """A command line, as the user types it."""
    words = ["python3", "data/bertPrep.py", "--action", action, "--dataset", dataset]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words += [f"--{name}", str(value)]
    return shlex.join(words)
