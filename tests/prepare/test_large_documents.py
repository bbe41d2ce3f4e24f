"""A document over the limit is refused by name, without being read as a whole."""

import json
import tracemalloc

import pytest

from bert_tf.prepare.corpora import text_files
from tests import preparation
from tests.prepare.test_wiki import dump, page
from tests.refusals import refused

LIMIT = 1000
TOO_LARGE = "a document of more than 1,000 bytes.*: split it into several"
OR_LINES = "; or let --dataset=custom .*--input_format=paragraph.*--input_format=line"


def sentences(num_bytes: int, between: str = " ") -> str:
    count = num_bytes // 20 + 1
    return between.join(f"Sentence {n:09d}." for n in range(count))[: num_bytes - 1] + "."


@pytest.fixture(autouse=True)
def small_limit(monkeypatch, request):
    if "limit_is" not in request.node.name:
        monkeypatch.setattr(text_files, "LARGEST_DOCUMENT_BYTES", LIMIT)


def content(form: str, text: str) -> str:
    if form == "jsonl":
        return '{"text": "Short one."}\n' + json.dumps({"text": text}) + "\n"
    between = "\n\n" if form == "paragraph" else "\n"
    return (text if form == "file" else f"Short one.{between}{text}") + "\n"


@pytest.mark.parametrize("form", ["file", "line", "paragraph", "jsonl"])
def test_own_documents(tmp_path, form):
    source = tmp_path / "mine.txt"
    arguments = ("text_formatting", "--input_files", source, "--input_format", form)
    room = len('{"text": ""}') if form == "jsonl" else 0
    between = "\n" if form in ("file", "paragraph") else " "
    source.write_text(content(form, sentences(LIMIT - room, between)))
    preparation.run(tmp_path / "fits", *arguments)
    source.write_text(content(form, sentences(LIMIT - room + 1, between)))
    ways_out = OR_LINES if form in ("file", "paragraph") else "$"  # a line cannot be split at line ends
    refused(f"mine.txt.*{TOO_LARGE}{ways_out}", preparation.run, tmp_path / "refused", *arguments)


def test_pages(tmp_path):
    content = dump(page("One", "It is one."), page("Two", sentences(LIMIT + 1)))
    preparation.write(tmp_path / "download/wikicorpus_en/wikicorpus_en.xml", content)
    message = f"wikicorpus_en.xml, page 'Two': {TOO_LARGE}"
    refused(message, preparation.run, tmp_path, "text_formatting", dataset="wikicorpus_en")


def test_formatted_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.prepare.corpora.text_files._LARGEST_LINE_BYTES", LIMIT)
    path = tmp_path / "formatted_one_article_per_line" / "custom_one_document_per_line.txt"
    preparation.write(path, f"First one.\n{sentences(LIMIT)}\n{sentences(LIMIT + 1)}\n")
    arguments = ("sharding", "--n_training_shards", 1, "--n_test_shards", 1)
    refused(f"the line at byte 1,012: {TOO_LARGE}", preparation.run, tmp_path, *arguments)


def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path, monkeypatch):
    """100 MB of zeros and ones, which a sparse file would have as well."""
    monkeypatch.setattr(text_files, "LARGEST_DOCUMENT_BYTES", 1 << 20)
    path = tmp_path / "endless.txt"
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(b"01" * (1 << 19))
    tracemalloc.start()
    try:
        refused("endless.txt, line 1", lambda: list(text_files.read_lines(path)))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
