"""The user's own text: documents in a file, JSON lines and tables; damage refused."""

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

from bert_tf.prepare.corpora import custom, documents, formatting, text_files, words
from bert_tf.settings.preparation import PreparationOptions
from tests import preparation
from tests.processes import answer
from tests.refusals import refused

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = preparation.documents(90, words=60)


@pytest.fixture
def folder(tmp_path):
    """The documents in files of all kinds."""
    (tmp_path / "texts/deep/er").mkdir(parents=True)
    lines = [json.dumps({"text": document}) + "\n" for document in DOCUMENTS]
    write_table(tmp_path / "texts/a.parquet", DOCUMENTS[:30], row_group_size=7)
    (tmp_path / "texts/b.jsonl").write_text("".join(lines[30:45]))
    (tmp_path / "texts/deep/c.jsonl.gz").write_bytes(gzip.compress("".join(lines[45:60]).encode()))
    # Two frames, as packing in parallel makes them.
    halves = ("".join(half).encode() for half in (lines[60:70], lines[70:75]))
    packed = b"".join(pyarrow.compress(half, "zstd", asbytes=True) for half in halves)
    (tmp_path / "texts/deep/er/d.ndjson.zst").write_bytes(packed)
    (tmp_path / "texts/deep/er/e.txt").write_text("\n\n".join(DOCUMENTS[75:]))
    return tmp_path / "texts"


def write_table(path, texts, **options):
    parquet.write_table(pyarrow.table({"title": ["A"] * len(texts), "text": texts}), path, **options)


def formatted(working_dir, *arguments):
    return preparation.formatted(working_dir, "custom", "--input_files", *arguments)


def test_files_of_all_kinds_in_one_folder(folder, tmp_path):
    lines, manifest = formatted(tmp_path, folder)
    assert lines == DOCUMENTS
    assert manifest["arguments"]["input_format"] == "jsonl+paragraph+parquet"
    path = tmp_path / f"{preparation.FORMATTED}.txt"
    path.unlink()
    preparation.run(tmp_path, "verify", "--repair")
    assert path.read_text().splitlines() == lines


def test_a_repair_reads_text_beside_json_as_the_user_has_said(tmp_path):
    for name, texts in (("a.txt", DOCUMENTS[:2]), ("b.txt", DOCUMENTS[2:4])):
        (tmp_path / name).write_text("\n".join(texts))
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": DOCUMENTS[4]}))
    files = ",".join(str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl"))
    formatted(tmp_path, files, "--input_format", "line")
    path = tmp_path / f"{preparation.FORMATTED}.txt"
    path.unlink()
    preparation.run(tmp_path, "verify", "--repair")
    assert path.read_text().splitlines() == DOCUMENTS[:5]


def test_reading_goes_on_behind_any_batch(folder, monkeypatch):
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 2000)
    corpus = custom.make_corpus(custom.find_inputs([str(folder)]), "auto", PreparationOptions())
    preparation.assert_resumable(corpus.batches, corpus.paths, least=11)


def test_documents_by_file_line_and_blank_line(tmp_path):
    def read(input_format):
        corpus = custom.make_corpus([path], input_format, PreparationOptions())
        return [document.line for document in preparation.cleaned(corpus.batches({}), corpus.clean)]

    path = tmp_path / "a.txt"
    path.write_text("One is\nwrapped.\n\n\nTwo.\n" + "Long line. " * 20 + "\n")
    long_line = ("Long line. " * 20).strip()
    assert read("file") == ["One is wrapped.  Two.  " + long_line]
    assert read("paragraph") == ["One is wrapped.", "Two.  " + long_line]
    assert read("line") == ["One is", "wrapped.", "Two.", long_line]


def test_wrapped_lines_are_joined_as_their_script_wants(tmp_path):
    """Between two wide characters that are not Hangul nothing stands, otherwise a space."""
    text = "私はとても\n元気で、\n English を\n使う。\n서울은\n크다.\n"
    assert custom.clean(text).line == "私はとても元気で、 English を使う。 서울은 크다."


def test_words_of_all_scripts_are_counted_alike():
    titles = "मध्य प्रदेश विधानसभा क्षेत्र", "中华人民共和国国务院总理", "ประเทศไทย", "= Indian National Congress =", "* * *."
    texts = (
        "今天天气很好我们一起去公园散步然后吃饭再回家休息",
        "कल हम सब लोग बाज़ार गए थे और",
        "one two three four five six ten ox",
        "It is.",
    )
    assert not any(map(words.has_sentence, titles)) and all(map(words.has_sentence, texts))
    assert not any(map(words.has_words, ("* * *", "・・・", "၊ ။", "――――")))


@pytest.mark.parametrize("input_format, kept", [("line", 3), ("sentences", 3), ("paragraph", 1)])
def test_documents_that_the_user_names_need_no_full_stop(tmp_path, input_format, kept):
    """Of text between blank lines some is titles."""
    path = tmp_path / "posts.txt"
    between = "\n" if input_format == "line" else "\n\n"
    path.write_text(between.join(["good morning everyone", "* * *", "今天天气很好我们去公园", "It is one."]) + "\n")
    counts = formatted(tmp_path / input_format, path, "--input_format", input_format)[1]["counts"]
    assert counts["num_documents"] == kept and counts["num_dropped_without_sentence"] == 4 - kept


@pytest.mark.parametrize("line_end", ["\n", "\r\n", " \r"])
def test_line_ends_of_texts_in_json_are_those_of_text_files(tmp_path, line_end):
    text = line_end.join(["A title", "", "It is one,", "wrapped.", " ", "It is two."])
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}))
    assert formatted(tmp_path, tmp_path / "a.jsonl")[0] == ["A title  It is one, wrapped.  It is two."]


def test_format_chosen_by_what_is_there(tmp_path):
    def chosen(*names, input_format="auto"):
        paths = [tmp_path / name for name in names]
        return list(custom.choose_formats(input_format, paths, text_files.read_lines).values())

    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    (tmp_path / "b.txt").write_text("One.\nTwo.\n")
    assert [chosen("a.txt"), chosen("b.txt"), chosen("a.txt", "b.txt")] == [["paragraph"], ["line"], ["file", "file"]]
    # As pandas and datasets write them, under names that do not say whether each line is an object.
    for input_format in ("auto", "sentences"):
        assert chosen("a.json", "b.jsonl", "C.ndjson.gz", "d.json.gz", input_format=input_format) == ["jsonl"] * 4
    for name in ("a.csv", "A.XML", "a.csv.gz", "a.tsv.zst", "a.html.gz"):
        refused(f"{name}: a table or text with tags.*--input_format", chosen, name)
        assert chosen(name, input_format="line") == ["line"]


@pytest.mark.parametrize(
    "line,message",
    [
        ("{'text': 1}", "is not valid JSON"),
        ('[{"text": "One."}]', r"holds no JSON object, .*of a list, jq -c '.\[\]' FILE > OUT makes such lines"),
        ('{"content": "x"}', "no text in the field 'text' .the line has 'content'.; name .* by --text_column; a l"),
        ('{"text": "One.", "text": "Two."}', "the field 'text' occurs twice"),
        ("[" * 100_000, ""),
    ],
)
def test_wrong_json_line_is_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "One."}\n\n' + line + '\n{"text": "Two."}')
    fault = f"a.jsonl, line 3.*{message}"
    preparation.assert_left_out(tmp_path, "custom", fault, ["One.", "Two."], "--input_files", path)


def test_packed_json_of_a_folder_and_what_is_not_read_of_it(tmp_path, capsys):
    """As C4 comes; beside other files .json rather describes them."""
    lines = [{"text": f"It is number {number}.", "url": "http://a.example", "n": 1} for number in range(3)]
    (tmp_path / "texts").mkdir()
    packed = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())
    (tmp_path / "texts/c4.00000-of-00002.json.gz").write_bytes(packed)
    assert formatted(tmp_path / "a", tmp_path / "texts")[0] == [line["text"] for line in lines]
    assert "fields with text that are not read: 'url' (3); --text_column names" in capsys.readouterr().err
    (tmp_path / "texts/b.txt").write_text("It is other text.")
    (tmp_path / "texts/about.json").symlink_to("gone.json")
    (tmp_path / "texts/README").write_text("It is none.")
    (tmp_path / "texts/.hidden").write_text("It is none.")
    assert formatted(tmp_path / "b", tmp_path / "texts")[0] == ["It is other text."]
    assert "texts: not read: 1 .gz, 1 without a suffix (" in capsys.readouterr().err


def test_a_folder_of_datasets_is_refused_for_its_table(tmp_path):
    """As `save_to_disk` of Hugging Face's datasets writes it, with a stream of Arrow's."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/state.json").write_text('{\n  "_split": null\n}')
    table = pyarrow.table({"text": ["It is one."]})
    with pyarrow.ipc.new_stream(tmp_path / "disk/data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    message = r"data-00000-of-00001.arrow: an Arrow table, .*: datasets.Dataset.from_file\('data-.*.arrow'\).to_json"
    refused(message, formatted, tmp_path, tmp_path / "disk")


DATA = {
    "JSON: give --input_format=jsonl": "".join(json.dumps({"text": f"It is {n}."}) + "\n" for n in range(3)),
    "JSON: ": json.dumps([{"text": "It is one.", "n": [1, None]}] * 2, indent=1),
    "text with tags": "<html>\n<p>It is one.</p>\nIt is two.\n</html>",
    "table of 2 columns with tabs .*: cut -f2 a.txt > OUT": "".join(f"{n}\tIt is, so, {n}.\n" for n in range(9)),
    "table of 3 columns with commas": 'id,text,label\n1,"One, two.\nIt is.",a\n2,It is.,b\n',
    "web archive": "WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 22\r\n\r\nIt is a page, it says.\r\n",
    "treebank in CoNLL-U: sed .* a.txt > OUT": "# newdoc\n# text = It is.\n1\tIt\tit\n2\tis\tbe\n3\t.\t.\n",
    "sequences in FASTA: awk .* a.txt > OUT": ">sp|P1|ONE\nMKV\nAA*\n>sp|P2|TWO\nMKL\n",
    "table of 2 columns with semicolons": "text;label\nIt is one.;1\nIt is two.;2\n",
}


@pytest.mark.parametrize("message", DATA)
def test_data_under_the_name_of_a_text_is_noticed(tmp_path, message, capsys):
    (tmp_path / "a.txt").write_text(DATA[message])
    refused(f"a.txt: (a )?{message}.*; or name the --input_format", formatted, tmp_path, tmp_path / "a.txt")
    formatted(tmp_path, tmp_path / "a.txt", "--input_format", "line")
    assert "a.txt: read as text, though it is " in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "One, two.\nThree, four.\nFive, six.\n",
        "Red are they all as all of us are,\nand blue are they all as all are,\nit is so in the oldest of books,\n",
        "[1] It is cited.\n[2] It is, too.\n[3] So is this.\n",
        '"It is," he said.\n"It is not," she said.\n"It may be."\n',
        "> It is cited.\nYes.\n",
        "<unk> is one.\n<unk> is two.\n<unk> is three.\n",
        "It is one.\tIt is two.\n",
    ],
)
def test_prose_is_no_data(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    expected = [" ".join(line.split()) for line in text.splitlines()]
    assert formatted(tmp_path, tmp_path / "a.txt", "--keep_duplicates")[0] == expected


def test_inputs_must_exist(tmp_path):
    refused("nowhere does not exist", custom.find_inputs, [str(tmp_path / "nowhere")])
    refused("/dev/null is not a file; give --input_files files or folders", custom.find_inputs, ["/dev/null"])
    refused("holds no .txt, .jsonl or .parquet file", custom.find_inputs, [str(tmp_path)])


@pytest.mark.parametrize("name", ["deep/c.jsonl.gz", "deep/er/d.ndjson.zst"])
def test_damaged_packed_files(folder, tmp_path, name):
    path = folder / name
    for content in (path.read_bytes()[:-3], b"not packed at all"):
        path.write_bytes(content)
        refused(f"{path.name}: damaged, or not what its name says", formatted, tmp_path, path)


def test_a_packed_file_with_a_long_window_can_be_packed_anew(tmp_path):
    """As `zstd --long=31` writes it: a frame's head with a window of 2 GB, and a block that is not packed."""
    text = b'{"text": "It is one."}\n'
    frame = b"\x28\xb5\x2f\xfd\0\xa8" + (len(text) << 3 | 1).to_bytes(3, "little") + text
    path = tmp_path / "RC 2015.jsonl.zst"
    path.write_bytes(frame)
    message = r"too much memory.*; if packed by zstd --long, .*: zstd -dc --long=31 'RC 2015.jsonl.zst' \| zstd > OUT"
    refused(message, formatted, tmp_path, path)
    path.write_bytes(frame.replace(b"\0\xa8", b"\0\x88"))  # of 128 MB, zstd's own limit
    assert formatted(tmp_path, path)[0] == ["It is one."]


def test_column_of_tables_and_field_of_json_lines(tmp_path):
    path, lines = tmp_path / "a.parquet", tmp_path / "a.jsonl"
    texts = pyarrow.array([b"It is one.\n\nIt goes on.", None, b"Caf\xe9.", b"It is two."], pyarrow.binary())
    names = ["body", "id", "id"]
    columns = [texts.view(pyarrow.string()), *[pyarrow.array([1] * 4)] * 2]
    parquet.write_table(pyarrow.Table.from_arrays(columns, names), path)
    for column in ("text", "id"):
        message = rf"has no column '{column}', or several: name one of \['body', 'id', 'id'\] by --text_column"
        refused(message, formatted, tmp_path, path, "--text_column", column)
    message = "a.parquet, row 2: no text in UTF-8 in column 'body'.*--max_bad_rec"
    refused(message, formatted, tmp_path, path, "--text_column", "body")
    given, manifest = formatted(tmp_path, path, "--text_column", "body", "--max_bad_records", 2)
    assert given == ["It is one.  It goes on.", "It is two."]
    assert "row 3: no text in UTF-8" in manifest["shards"]["documents"][0]["bad_records"][1]
    lines.write_text('{"body": "It is one.", "text": 1}\n')
    given, manifest = formatted(tmp_path / "b", lines, "--text_column", "body")
    assert given == ["It is one."] and manifest["arguments"]["text_column"] == "body"
    path.write_bytes(b"not a table")
    refused("a.parquet: damaged, or not what its name says", formatted, tmp_path / "c", path)


def test_a_column_of_bytes_is_text_and_one_of_lists_is_named(tmp_path):
    """Impala, and Spark's older writers, do not say in the file that the bytes are text."""
    texts = [b"It is one.", "Es wärmt.".encode(), b"Caf\xe9."]
    of_bytes = pyarrow.array(texts, pyarrow.binary())
    columns = {"text": of_bytes, "packed": of_bytes.dictionary_encode(), "lists": [["It is one."]] * 3}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    for column in ("text", "packed"):
        chosen = tmp_path / "a.parquet", "--text_column", column
        refused(f"row 3: no text in UTF-8 in column '{column}'", formatted, tmp_path / column, *chosen)
        assert formatted(tmp_path / column, *chosen, "--max_bad_records", 1)[0] == ["It is one.", "Es wärmt."]
    refused("'lists', of type list<", formatted, tmp_path, tmp_path / "a.parquet", "--text_column", "lists")


def test_a_page_that_is_damaged_is_an_error_and_what_was_before_it_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 500)
    monkeypatch.setattr(formatting, "CHECKPOINT_BYTES", 1)
    path = tmp_path / "a.parquet"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    write_table(path, DOCUMENTS, row_group_size=10, write_page_checksum=True, **plain)
    content = path.read_bytes()
    place = content.index(DOCUMENTS[55].encode()) + 9
    path.write_bytes(content[:place] + b"\0" + content[place + 1 :])
    refused(r"a\.parquet: damaged, or not what its name says \(.*CRC.*\): fetch or make it", formatted, tmp_path, path)
    (partial,) = tmp_path.rglob("*.partial")
    assert partial.read_text().splitlines()[:45] == DOCUMENTS[:45]


TOO_LARGE = "a document of more than 1,000 bytes.*: split it into several"


@pytest.mark.parametrize(
    "form,head,between,ways_out",
    [
        ("file", "", "\n", "; or let --dataset=custom .*--input_format=paragraph.*--input_format=line"),
        ("paragraph", "Short one.\n\n", "\n", "; or let --dataset=custom .*--input_format=paragraph"),
        ("line", "Short one.\n", " ", "$"),  # which cannot be split at line ends
        ("jsonl", '{"text": "Short one."}\n', " ", "$"),
    ],
)
def test_a_document_over_the_limit_is_refused(tmp_path, monkeypatch, form, head, between, ways_out):
    monkeypatch.setattr(text_files, "LARGEST_DOCUMENT_BYTES", 1000)
    source = tmp_path / "mine.txt"
    text = between.join(f"Sentence {number:09d}." for number in range(60))[:999] + "."
    if form == "jsonl":
        text = json.dumps({"text": text[len('{"text": ""}') :]})
    source.write_text(f"{head}{text}\n")
    formatted(tmp_path / "fits", source, "--input_format", form)
    source.write_text(f"{head}{text.replace('Sentence', 'Sentences', 1)}\n")
    refused(f"mine.txt.*{TOO_LARGE}{ways_out}", formatted, tmp_path, source, "--input_format", form)


def test_a_large_row_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LARGEST_DOCUMENT_BYTES", 1000)
    write_table(tmp_path / "a.parquet", ["It is small.", "é" * 501])
    refused(f"a.parquet, row 2: {TOO_LARGE}", formatted, tmp_path, tmp_path / "a.parquet")


def test_a_column_is_read_page_by_page(tmp_path):
    text = random.Random(0).randbytes(500_000).hex()  # which hardly packs
    write_table(tmp_path / "a.parquet", [text] * 60, write_batch_size=1, use_dictionary=False)
    program = """
import pathlib, re, sys
from bert_tf.prepare.corpora import custom

peaks = []
for _ in custom._table_documents(pathlib.Path(sys.argv[1]), "text"):
    peaks.append(int(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]))
print(peaks[-1] - peaks[0])
"""
    peak = answer(sys.executable, "-c", program, tmp_path / "a.parquet", cwd=ROOT).stdout
    assert int(peak) < 30_000, "KiB for a column of 60 MB"


@pytest.mark.parametrize("name", ["a.parquet", "deep/er/d.ndjson.zst"])
def test_without_the_package_it_is_named(folder, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    message = "needs the package pyarrow .*: .* -m pip install -r requirements/parquet.txt"
    refused(message, formatted, tmp_path, folder / name)
