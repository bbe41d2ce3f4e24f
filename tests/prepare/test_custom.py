"""Tables, JSON lines and text in one folder: read in the same order, from any file on, and refused where damaged."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import custom, documents, formatting
from tests import preparation

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).resolve().parents[2]
ENCODING = {"fallback_encoding": None, "encoding_errors": "strict"}
DOCUMENTS = preparation.documents(90, words=60)


@pytest.fixture
def folder(tmp_path):
    """The documents in files of all kinds."""
    (tmp_path / "texts/deep/er").mkdir(parents=True)
    lines = [json.dumps({"text": document}) + "\n" for document in DOCUMENTS]
    write_table(tmp_path / "texts/a.parquet", DOCUMENTS[:30], row_group_size=7)
    (tmp_path / "texts/b.jsonl").write_text("".join(lines[30:45]))
    (tmp_path / "texts/deep/c.jsonl.gz").write_bytes(gzip.compress("".join(lines[45:60]).encode()))
    packed = pyarrow.compress("".join(lines[60:75]).encode(), "zstd", asbytes=True)
    (tmp_path / "texts/deep/er/d.ndjson.zst").write_bytes(packed)
    (tmp_path / "texts/deep/er/e.txt").write_text("\n\n".join(DOCUMENTS[75:]))
    return tmp_path / "texts"


def write_table(path, texts, **options):
    parquet.write_table(pyarrow.table({"title": ["A"] * len(texts), "text": texts}), path, **options)


def formatted(working_dir, *arguments):
    preparation.run(working_dir, "text_formatting", *arguments)
    folder = working_dir / "formatted_one_article_per_line"
    manifest = json.loads((folder / "custom_one_document_per_line.manifest.json").read_text())
    return (folder / "custom_one_document_per_line.txt").read_text().splitlines(), manifest


def test_files_of_all_kinds_in_one_folder(folder, tmp_path):
    lines, manifest = formatted(tmp_path, "--input_files", folder)
    assert lines == DOCUMENTS
    assert manifest["arguments"]["input_format"] == "jsonl+paragraph+parquet"


def test_reading_goes_on_behind_any_batch(folder, monkeypatch):
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 2000)
    sources = custom.choose_formats("auto", custom.find_inputs([str(folder)]), **ENCODING)
    batches = list(custom.read_batches(sources, {}, **ENCODING))
    assert len(batches) > 10
    for number, batch in enumerate(batches, 1):
        assert list(custom.read_batches(sources, batch.next_position, **ENCODING)) == batches[number:]


def test_field_of_json_lines(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "It is one.", "text": 1}\n')
    lines, manifest = formatted(tmp_path, "--input_files", tmp_path / "a.jsonl", "--text_column", "body")
    assert lines == ["It is one."] and manifest["arguments"]["text_column"] == "body"


def test_json_and_tables_are_not_taken_for_text(tmp_path):
    """As pandas and datasets write them, under names that do not say whether each line is an object."""
    for name in ("a.json", "b.jsonl", "C.ndjson.gz"):
        for input_format in ("auto", "sentences", "jsonl"):
            assert custom.choose_formats(input_format, [tmp_path / name], **ENCODING) == {tmp_path / name: "jsonl"}
    for name in ("a.csv", "a.tsv", "A.XML", "a.html"):
        with pytest.raises(UserError, match=f"{name}: a table or text with tags.*--input_format"):
            custom.choose_formats("auto", [tmp_path / name], **ENCODING)
        assert custom.choose_formats("line", [tmp_path / name], **ENCODING) == {tmp_path / name: "line"}


@pytest.mark.parametrize("arguments", [(), ("--input_format", "sentences")])
def test_files_of_several_kinds_are_read_in_the_same_way_by_a_repair(folder, tmp_path, arguments):
    if arguments:
        for path in [*folder.rglob("*.jsonl*"), *folder.rglob("*.ndjson*")]:
            path.unlink()
    before = formatted(tmp_path, "--input_files", folder, *arguments)
    path = tmp_path / "formatted_one_article_per_line/custom_one_document_per_line.txt"
    path.unlink()
    preparation.run(tmp_path, "verify", "--repair")
    assert path.read_text().splitlines() == before[0]


def test_a_row_group_that_is_damaged_is_an_error_and_what_was_before_it_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 500)
    monkeypatch.setattr(formatting, "CHECKPOINT_BYTES", 1)
    path = tmp_path / "a.parquet"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    write_table(path, DOCUMENTS, row_group_size=10, write_page_checksum=True, **plain)
    content = path.read_bytes()
    place = content.index(DOCUMENTS[55].encode()) + 9
    path.write_bytes(content[:place] + b"\0" + content[place + 1 :])
    with pytest.raises(
        UserError, match=r"a\.parquet: not a Parquet file, or damaged \(.*CRC.*\): fetch or make it"
    ) as error:
        formatted(tmp_path, "--input_files", path)
    assert "\n" not in str(error.value)
    (partial,) = tmp_path.rglob("*.partial")
    assert partial.read_text().splitlines()[:50] == DOCUMENTS[:50]


def test_text_that_is_not_utf8_is_a_bad_record(tmp_path):
    texts = pyarrow.array([b"It is one.", b"Caf\xe9.", b"It is two."], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="a.parquet, row 2: column 'text' is not UTF-8"):
        formatted(tmp_path, "--input_files", tmp_path / "a.parquet")
    lines, _ = formatted(tmp_path, "--input_files", tmp_path / "a.parquet", "--max_bad_records", 1)
    assert lines == ["It is one.", "It is two."]


def test_a_large_row_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(custom.text_files, "LARGEST_DOCUMENT_BYTES", 100)
    write_table(tmp_path / "a.parquet", ["It is small.", "é" * 51])
    with pytest.raises(UserError, match="a.parquet, row 2: a document of more than 100 bytes"):
        formatted(tmp_path, "--input_files", tmp_path / "a.parquet")


def test_a_page_too_large_for_memory_is_refused_with_file_and_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr(custom, "LARGEST_PAGE_BYTES", 50_000)
    monkeypatch.setattr(custom, "_COLUMN_BUFFER_BYTES", 1000)
    small, large = [[f"{kind} {number}. " * 1000 for number in range(4)] for kind in ("Small", "Large")]
    path, columns = tmp_path / "a.parquet", {"other": ["x" * 10**6] * 8, "text": small[:1] + large + small[1:]}
    for row_group_size in (1, 3):
        parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group_size, use_dictionary=False)
        lines, _ = formatted(tmp_path / f"{row_group_size}", "--input_files", path)
        assert len(lines) == 8
    parquet.write_table(pyarrow.table(columns), path, row_group_size=6, use_dictionary=False)
    with pytest.raises(UserError, match=r"a\.parquet, row group 1: holds a page of .* MB unpacked.*smaller row groups"):
        formatted(tmp_path, "--input_files", path)


def test_a_column_is_read_page_by_page(tmp_path):
    text = random.Random(0).randbytes(500_000).hex()  # which hardly packs
    write_table(tmp_path / "a.parquet", [text] * 150, write_batch_size=1, use_dictionary=False)
    program = """
import pathlib, re, sys
from bert_tf.prepare.corpora import custom

peaks = []
for _ in custom._table_documents(pathlib.Path(sys.argv[1]), "text"):
    peaks.append(int(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]))
print(peaks[-1] - peaks[0])
"""
    peak = subprocess.check_output([sys.executable, "-c", program, tmp_path / "a.parquet"], cwd=ROOT)
    assert int(peak) < 40_000, "KiB for a column of 150 MB"


@pytest.mark.parametrize("name", ["a.parquet", "deep/er/d.ndjson.zst"])
def test_without_the_package_it_is_named(folder, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(UserError, match="needs the package pyarrow .*: .* -m pip install -r requirements/parquet.txt"):
        formatted(tmp_path, "--input_files", folder / name)


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pyarrow.Table.from_arrays([pyarrow.array(["It is one."]), pyarrow.array(["It is two."])], ["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="a.parquet: has several columns 'text': rename one"):
        formatted(tmp_path, "--input_files", tmp_path / "a.parquet")
