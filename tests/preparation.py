"""Preparation in this process, where a UserError can be caught: its actions, what a corpus gives, tokens as text."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bert_tf.prepare.corpora.documents import BadRecord, Damage, Document, Dropped
from bert_tf.prepare.corpora.formatting import clean_batch
from bert_tf.prepare.corpora.text_files import total_size
from bert_tf.prepare.layout import Layout
from bert_tf.programs import prepare as bertPrep
from bert_tf.records.token_file import TokenizedText
from tests.refusals import refused

# The stages after formatting, at small sizes.
CHAIN = (
    ("sharding", "--n_training_shards", 4, "--n_test_shards", 2),
    ("create_vocab", "--vocab_size", 300),
    ("create_token_files",),
    ("create_pairs", "--max_seq_length", 32, "--dupe_factor", 2),
    ("create_pairs", "--max_seq_length", 32, "--no_next_sentence"),
    ("create_tfrecord_files", "--max_seq_length", 32, "--max_predictions_per_seq", 5, "--dupe_factor", 2),
)
SHARDS = ("--n_training_shards", 2, "--n_test_shards", 1)
# The text of the dataset custom, without a suffix.
FORMATTED = "formatted_one_article_per_line/custom_one_document_per_line"
# Generated words, so that nothing but what is planted occurs twice.
_SYLLABLES = "ba de fi go lu ma ne pi ro su ta ve wi zo ka".split()


def run(working_dir: Path, action: str, *arguments: object, dataset: str = "custom") -> None:
    options = bertPrep.parse(["--action", action, "--dataset", dataset, "--n_processes", "1", *map(str, arguments)])
    bertPrep.ACTIONS[action](options, Layout(working_dir))


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file, and makes the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """What the files below a folder hold, locks and journals apart, by their names in it."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".lock", ".journal"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def flip(path: Path, place: int) -> None:
    """Changes a bit of a file's byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def documents(count: int, seed: int = 0, words: int = 120) -> list[str]:
    """Documents of sentences of made-up words."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 3))) for _ in range(2000)]
    found = []
    for _ in range(count):
        text = rng.choices(vocabulary, k=words)
        for start in range(0, words, 8):
            text[start] = text[start].capitalize()
            text[min(start + 7, words - 1)] += "."
        found.append(" ".join(text))
    return found


def shard(working_dir: Path, texts: list[str], *arguments: object) -> None:
    """Formats (keeping duplicates) and shards documents."""
    source = working_dir / "source.txt"
    source.write_text("\n\n".join(texts), encoding="utf-8")
    run(working_dir, "text_formatting", "--input_files", source, "--keep_duplicates")
    run(working_dir, "sharding", *arguments)


def token_files(working_dir: Path) -> tuple[Path, dict]:
    """The folder of the only ones that there are, and their manifest."""
    (path,) = working_dir.glob("tokens/*/custom/manifest.json")
    return path.parent, json.loads(path.read_text())


def formatted(working_dir, dataset, *arguments):
    """(lines, the manifest) of the text that the stage makes."""
    run(working_dir, "text_formatting", *arguments, dataset=dataset)
    (text,) = (working_dir / "formatted_one_article_per_line").glob(f"{dataset}_*.txt")
    return text.read_text(encoding="utf-8").splitlines(), json.loads(text.with_suffix(".manifest.json").read_text())


def assert_left_out(working_dir, dataset, fault, lines, *arguments):
    """Fails unless a single bad record is refused by name, and left out and named where one may be."""
    arguments = (working_dir, dataset, *arguments, "--max_bad_records")
    refused(f"{fault}.*--max_bad_records", formatted, *arguments, 0)
    given, manifest = formatted(*arguments, 1)
    assert given == lines and manifest["counts"]["num_dropped_bad_records"] == 1
    assert re.search(fault, manifest["shards"]["documents"][0]["bad_records"][0])


def cleaned(batches, clean):
    """All documents of the batches, cleaned."""
    return [document for batch in batches for document in clean_batch(batch, clean=clean, is_document=bool).documents]


def sorted_out(found):
    """(lines, number of dropped documents by reason, faults of bad records, sentences about damage)"""
    kinds = {kind: [one for one in found if isinstance(one, kind)] for kind in (Document, Dropped, BadRecord, Damage)}
    assert sum(map(len, kinds.values())) == len(found)
    return (
        [one.line for one in kinds[Document]],
        Counter(one.reason for one in kinds[Dropped]),
        [one.fault for one in kinds[BadRecord]],
        [one.sentence for one in kinds[Damage]],
    )


def assert_resumable(read_batches, paths, least):
    """Fails unless reading gives at least so many batches, with all bytes of the files, and resumes behind each."""
    batches = list(read_batches({}))
    assert len(batches) >= least and sum(batch.input_bytes for batch in batches) == total_size(paths)
    for number, batch in enumerate(batches, 1):
        assert list(read_batches(json.loads(json.dumps(batch.next_position)))) == batches[number:]


def numbered_documents(count: int, longest_sentence: int = 20) -> list[list[list[int]]]:
    """Documents of sentences of token ids, which count on through all of them: so each tells where it comes from."""
    rng, token, documents = random.Random(0), 1000, []
    for _ in range(count):
        documents.append([])
        for _ in range(rng.randint(1, 25)):
            size = rng.randint(1, longest_sentence)
            documents[-1].append(list(range(token, token + size)))
            token += size
    return documents


def tokenized(documents: Iterable[list[list[int]]]) -> TokenizedText:
    """From token ids by sentence by document; none of them is empty."""
    documents = list(documents)
    sentences = [sentence for document in documents for sentence in document]
    return TokenizedText(
        np.array([token for sentence in sentences for token in sentence], np.int32),
        np.cumsum([0, *map(len, sentences)]),
        np.cumsum([0, *map(len, documents)]),
    )
