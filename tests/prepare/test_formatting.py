"""Formatted text goes on where a killed run has stopped, and is there only when it is whole."""

from __future__ import annotations

import bz2
import os

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import documents, formatting
from bert_tf.prepare.running import workers
from tests.preparation import run
from tests.prepare.test_wiki import dump, multistream, page

NAMES = (".txt", ".manifest.json")


def corpus(folder, is_multistream=True):
    (folder / "download/wikicorpus_en").mkdir(parents=True)
    pages = [page(f"Page {n}", f"It is {n % 50}.\n* item {n}\n\nfragment {{{{t|{n}}}}}") for n in range(300)]
    path = folder / "download/wikicorpus_en/wikicorpus_en.xml.bz2"
    streams = multistream(*("".join(pages[first : first + 6]).encode() for first in range(0, 300, 6)))
    path.write_bytes(streams if is_multistream else bz2.compress(dump(*pages)))
    os.utime(path, (0, 0))  # the manifest names the time of its inputs
    return folder


def formatted(folder, *arguments):
    run(folder, "text_formatting", *arguments, dataset="wikicorpus_en")
    stem = "wikicorpus_en_one_article_per_line"
    return [(folder / "formatted_one_article_per_line" / (stem + end)).read_bytes() for end in NAMES]


@pytest.mark.parametrize("is_multistream", [True, False])
def test_any_number_of_processes_and_kills_leave_the_same_bytes(tmp_path, monkeypatch, is_multistream):
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 1000)
    monkeypatch.setattr(formatting, "CHECKPOINT_BYTES", 1)
    whole = formatted(corpus(tmp_path / "whole", is_multistream))
    assert b'"num_removed_list_items": 300' in whole[1] and b'"num_dropped_duplicates": 250' in whole[1]
    assert formatted(corpus(tmp_path / "two", is_multistream), "--n_processes", 2) == whole
    folder = corpus(tmp_path / "stopped", is_multistream)
    write, num_batches = formatting.Writer.write, 0

    def stopping(writer, batch):
        nonlocal num_batches
        num_batches += 1
        write(writer, batch)
        if num_batches % 7 == 0:
            # Written behind the checkpoint, as by a run that is killed before the next one.
            writer._file.write(b"behind\n")
            writer._file.flush()
            raise workers.WorkersError("killed")

    monkeypatch.setattr(formatting.Writer, "write", stopping)
    for _ in range(100):
        try:
            assert formatted(folder) == whole
            break
        except workers.WorkersError:
            assert not list(folder.glob("formatted*/*.txt"))
    assert num_batches > 40


@pytest.mark.parametrize("arguments", [(), ("--keep_duplicates",)])  # which reads nothing of the text
def test_a_second_kill_after_nothing_was_written_costs_nothing(tmp_path, monkeypatch, arguments):
    folder = corpus(tmp_path / "a")
    whole = formatted(corpus(tmp_path / "whole"), *arguments)

    def killed(*_):
        raise workers.WorkersError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(formatting.Stage, "complete", killed)
        for _ in range(2):
            with pytest.raises(workers.WorkersError):
                formatted(folder, *arguments)
    assert formatted(folder, *arguments) == whole


def test_input_without_a_sentence_leaves_nothing(tmp_path):
    (tmp_path / "download/wikicorpus_en").mkdir(parents=True)
    (tmp_path / "download/wikicorpus_en/wikicorpus_en.xml").write_bytes(dump(page("A", "no sentence")))
    with pytest.raises(UserError, match="no document is left"):
        formatted(tmp_path)
    assert not list(tmp_path.glob("formatted*/*.txt*"))
