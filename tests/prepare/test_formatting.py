"""Formatted text goes on where a killed run has stopped, and is there only when it is whole."""

import bz2
import errno
import os

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import documents, formatting
from bert_tf.prepare.running import workers
from tests.preparation import run, write
from tests.prepare.test_wiki import dump, multistream, page
from tests.refusals import refused

NAMES = (".txt", ".manifest.json")


def corpus(folder, is_multistream=True):
    """Two files of a dump, of which the first lacks its last bytes."""
    pages = [page(f"Page {n}", f"It is {n % 50}.\n* item {n}\n\nfragment {{{{t|{n}}}}}") for n in range(180)]
    for number, part in enumerate((pages[:60], pages[60:]), 1):
        path = folder / f"download/wikicorpus_en/enwiki-20240101-pages-articles{number}.xml.bz2"
        streams = multistream(*("".join(part[first : first + 6]).encode() for first in range(0, len(part), 6)))
        content = streams if is_multistream else bz2.compress(dump(*part))
        write(path, content[:-3] if number == 1 else content)
        os.utime(path, (0, 0))  # the manifest names the time of its inputs
    return folder


def formatted(folder, *arguments):
    run(folder, "text_formatting", *arguments, dataset="wikicorpus_en")
    stem = "wikicorpus_en_one_article_per_line"
    return [(folder / "formatted_one_article_per_line" / (stem + end)).read_bytes() for end in NAMES]


@pytest.mark.parametrize("is_multistream,arguments", [(True, ()), (False, ("--keep_duplicates",))])
def test_processes_and_stops_leave_the_same_bytes(tmp_path, monkeypatch, capsys, is_multistream, arguments):
    """Stopped by errors of the disk, which leave what was written before the last checkpoint, or behind it."""
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 1000)
    monkeypatch.setattr(formatting, "CHECKPOINT_BYTES", 1)
    whole = formatted(corpus(tmp_path / "whole", is_multistream), *arguments)
    assert b'"num_removed_list_items": 180' in whole[1] and b'"num_documents": 50' in whole[1] or arguments
    assert b"articles1.xml.bz2: cut off or damaged at byte" in whole[1]
    assert formatted(corpus(tmp_path / "two", is_multistream), "--n_processes", 2, *arguments) == whole
    folder = corpus(tmp_path / "stopped", is_multistream)
    write_batch, num_batches = formatting.Writer.write, 0

    def stopping(writer, batch):
        nonlocal num_batches
        num_batches += 1
        write_batch(writer, batch)
        if num_batches % 7 == 0:
            writer._file.write(b"behind\n")
            writer._file.flush()
            raise OSError(errno.ESTALE, "the disk says no")

    monkeypatch.setattr(formatting.Writer, "write", stopping)
    for _ in range(100):
        try:
            assert formatted(folder, *arguments) == whole
            break
        except UserError as error:
            assert "the disk says no" in str(error) and not list(folder.glob("formatted*/*.txt"))
    assert num_batches > 20 and "going on where an earlier run stopped" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [(), ("--keep_duplicates",)])  # which reads nothing of the text
def test_kills_after_all_was_written_leave_the_same_text(tmp_path, monkeypatch, arguments):
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
    write(tmp_path / "download/wikicorpus_en/wikicorpus_en.xml", dump(page("A", "no sentence")))
    refused("no document is left", formatted, tmp_path)
    assert not list(tmp_path.glob("formatted*/*.txt*"))
