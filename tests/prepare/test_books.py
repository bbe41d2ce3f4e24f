"""Books and own text: heads and tails, encodings, line breaks, documents in a file."""

from __future__ import annotations

import errno
import gzip
import json
import os

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import books, custom, text_files
from bert_tf.prepare.corpora.documents import as_line, has_sentence
from bert_tf.prepare.corpora.formatting import SeenDocuments
from bert_tf.programs.prepare import parse
from tests import preparation
from tests.refusals import refused

BOOK = """The Project Gutenberg EBook of Things

Character set encoding: {encoding}

*** START OF THIS PROJECT GUTENBERG EBOOK THINGS ***

Produced by Nobody and
the Others

THINGS

It was a _very_
dark café.

[Illustration: A dog]

* * *

The end came.

End of the Project Gutenberg EBook of Things

*** END OF THIS PROJECT GUTENBERG EBOOK THINGS ***
Licence.
*** START: FULL LICENSE ***
"""
LINE = "THINGS  It was a very dark café.  The end came."


def book(path, encoding: str, stated: str, newline: str = "\n") -> None:
    path.write_bytes(BOOK.format(encoding=stated).replace("\n", newline).encode(encoding))


@pytest.mark.parametrize(
    "encoding,stated,newline",
    [
        ("utf-8", "UTF-8", "\n"),
        ("utf-8-sig", "ASCII", "\r\n"),
        ("latin-1", "ISO-8859-1", "\r\n"),
        ("utf-16", "none", "\n"),
    ],
)
def test_book_is_one_line_without_the_distributor(tmp_path, encoding, stated, newline):
    book(tmp_path / "a.txt", encoding, stated, newline)
    assert books.clean(tmp_path / "a.txt", None, "strict") == LINE


@pytest.mark.parametrize(
    "text,line",
    [
        (
            "_All of\nit_, hence in_ter._ On 21_st_ not snake_case_here __init__.",
            "All of it, hence inter. On 21st not snake_case_here __init__.",
        ),
        ("The other way--\nin short--\n“so”.", "The other way--in short--“so”."),
        (
            "A summer-\ncloud, summer-\nand winter-time, 1914-\n18, X-\nRay.",
            "A summer-cloud, summer- and winter-time, 1914- 18, X- Ray.",
        ),
        (
            "Text.\n\nThis e-text is from Project\nGutenberg’s archives.",
            "Text.  This e-text is from Project Gutenberg’s archives.",
        ),
    ],
)
def test_line_breaks_and_italics(tmp_path, text, line):
    (tmp_path / "a.txt").write_text(text)
    assert books.clean(tmp_path / "a.txt", None, "strict") == line


@pytest.mark.parametrize("token", ["_", "_a", "[Illustration", "[Illustration: a", "--\n", "a-\n", "*", "\n", " "])
def test_any_text_takes_linear_time(tmp_path, token):
    (tmp_path / "a.txt").write_text(token * (1_000_000 // len(token)) + "\n\nThe end.")
    assert books.clean(tmp_path / "a.txt", None, "strict").endswith("The end.")


def test_unknown_encoding_names_the_byte_and_the_ways_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Ein Café.\nNoch eins.".encode("latin-1"))
    refused(r"a.txt: not valid UTF-8 at byte 7: .*fallback_enc", books.clean, path, None, "strict")
    assert books.clean(path, "latin-1", "strict") == "Ein Café. Noch eins."
    assert books.clean(path, None, "replace") == "Ein Caf\ufffd. Noch eins."


def test_books_of_any_depth_in_a_fixed_order(tmp_path):
    for name in ("b/c/1.txt", "a.TXT", ".hidden/x.txt", "b/.y.txt", "b/notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("Text.")
    found = books.find_books(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found] == ["a.TXT", "b/c/1.txt"]


def test_links_are_followed_once_and_those_to_nothing_named(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.txt").write_text("Text.")
    (tmp_path / "here/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/round").symlink_to(tmp_path / "here")
    assert books.find_books(tmp_path / "here") == [tmp_path / "here/linked/a.txt"]
    (tmp_path / "here/b.txt").symlink_to(tmp_path / "gone.txt")
    refused("here/b.txt does not exist; repair it", books.find_books, tmp_path / "here")
    (tmp_path / "here/b.txt").unlink()
    os.mkfifo(tmp_path / "here/b.txt")
    refused("b.txt is not a file; repair it", books.find_books, tmp_path / "here")


def test_an_unreadable_folder_is_named(tmp_path, monkeypatch):
    # The permissions themselves would not keep root out.
    (tmp_path / "shut").mkdir()
    (tmp_path / "a.txt").write_text("Text.")
    real_scandir = os.scandir

    def scandir(path):
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    refused(f"{tmp_path}/shut: cannot be read .Permission denied", books.find_books, tmp_path)


@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_binary_file_is_no_text_whatever_is_wished(tmp_path, errors):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)))
    refused(r"a.txt: a binary file, not text.* take it out", books.clean, path, "latin-1", errors)
    path.write_bytes("Ein Café.".encode("utf-16-le"))
    with pytest.raises(
        UserError, match="a.txt: a binary file or UTF-16, not UTF-8 text; .*iconv -f UTF-16LE .*--fallback_enc"
    ):
        books.clean(path, None, errors)
    assert books.clean(path, "utf-16-le", errors) == "Ein Café."


def test_no_book_says_where_they_go_and_the_other_way_out(tmp_path):
    refused("put your books there.*wikicorpus_en", books.find_books, tmp_path / "none")


def documents(path, input_format):
    sources = {path: input_format}
    batches = custom.read_batches(sources, {}, fallback_encoding=None, encoding_errors="strict")
    return [custom.clean(document) for batch in batches for document in batch.documents]


def test_custom_documents_by_file_line_and_blank_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One is\nwrapped.\n\n\nTwo.\n" + "Long line. " * 20 + "\n")
    long_line = ("Long line. " * 20).strip()
    assert documents(path, "file") == ["One is wrapped.  Two.  " + long_line]
    assert documents(path, "paragraph") == ["One is wrapped.", "Two.  " + long_line]
    assert documents(path, "line") == ["One is", "wrapped.", "Two.", long_line]


def test_custom_format_chosen_by_what_is_there(tmp_path):
    wrapped, lines = tmp_path / "a.txt", tmp_path / "b.txt"
    wrapped.write_text("One.\n\nTwo.\n")
    lines.write_text("One.\nTwo.\n")

    def chosen(*paths):
        found = custom.choose_formats("auto", paths, fallback_encoding=None, encoding_errors="strict")
        return list(found.values())

    assert [chosen(wrapped), chosen(lines), chosen(wrapped, lines)] == [["paragraph"], ["line"], ["file", "file"]]


@pytest.mark.parametrize(
    "line,message",
    [
        ("{'text': 1}", "not JSON"),
        ('{"body": "x"}', "no object"),
        ('{"text": 5}', "that is a string"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_wrong_json_line_is_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "One."}\n\n' + line + '\n{"text": "Two."}')
    with pytest.raises(UserError, match=f"a.jsonl, line 3: .*{message}.*larger --max_bad_records"):
        preparation.run(tmp_path, "text_formatting", "--input_files", path)
    preparation.run(tmp_path, "text_formatting", "--input_files", path, "--max_bad_records", 1)
    folder = tmp_path / "formatted_one_article_per_line"
    assert (folder / "custom_one_document_per_line.txt").read_text() == "One.\nTwo.\n"
    manifest = json.loads((folder / "custom_one_document_per_line.manifest.json").read_text())
    assert manifest["counts"]["num_read"] == 3 and manifest["counts"]["num_dropped_bad_records"] == 1
    assert "a.jsonl, line 3: " in manifest["shards"]["documents"][0]["bad_records"][0]


@pytest.mark.parametrize("name", ["base64", "rot13", "hex", "undefined", "klingon", "a\0b"])
def test_what_is_no_encoding_of_text_is_refused(name):
    with pytest.raises(UserError, match="fallback_encoding=.*not a text encoding"):
        parse(["--action=text_formatting", "--dataset=bookscorpus", f"--fallback_encoding={name}"])


def test_a_fallback_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"Caf\xe9 five")
    for fallback in ("utf-16", "utf-32", "ascii"):
        with pytest.raises(UserError, match=f"not valid UTF-8 at byte 3 and not {fallback} either"):
            text_files.encoding_of(path, fallback, "strict")


def test_custom_inputs_must_exist(tmp_path):
    refused("^input_files: name text files", custom.find_inputs, [])
    refused("nowhere does not exist", custom.find_inputs, [str(tmp_path / "nowhere")])
    refused("/dev/null is not a file; give --input_files files or folders", custom.find_inputs, ["/dev/null"])
    refused("the folder .* holds no .txt, .jsonl or .parquet file", custom.find_inputs, [str(tmp_path)])


def test_sentences_are_told_from_titles():
    assert has_sentence("It is.") and has_sentence("one two three four five six seven eight")
    assert not has_sentence("") and not has_sentence("* * *.") and not has_sentence("= A Title =")


def test_as_line_keeps_paragraphs_by_two_spaces():
    assert as_line(["a\u2028 b\n", " ", "***", "c"]) == "a b  c"


def test_seen_documents_grow(monkeypatch):
    monkeypatch.setattr(SeenDocuments, "_NEWEST", 1000)
    seen = SeenDocuments()
    assert all(seen.add(str(i).encode()) for i in range(70_500))
    assert not any(seen.add(str(i).encode()) for i in range(70_500))
    full = SeenDocuments(most=3)
    added = "".join(letter for letter in "abacddb" if full.add(letter.encode()))
    assert added == "abcdd", "what came late is compared with the first ones alone"


@pytest.mark.parametrize("packed", [".gz", ".zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_packed_files(tmp_path, packed, kind):
    text = "Grüße.\n\nIt is two.\n" if kind == "txt" else '{"text": "Grüße."}\n{"text": "It is two."}\n'
    path = tmp_path / f"a.{kind}{packed}"
    content = gzip.compress(text.encode())
    if packed == ".zst":
        compress = pytest.importorskip("pyarrow").compress
        # Two frames, as packing in parallel makes them.
        content = b"".join(compress(half.encode(), "zstd", asbytes=True) for half in (text[:9], text[9:]))
    path.write_bytes(content)
    preparation.run(tmp_path, "text_formatting", "--input_files", tmp_path)
    formatted = tmp_path / "formatted_one_article_per_line/custom_one_document_per_line.txt"
    assert formatted.read_text() == "Grüße.\nIt is two.\n"
    for damaged in (content[:-3], b"not packed at all"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"a.{kind}{packed}: damaged, or not compressed"):
            preparation.run(tmp_path / "b", "text_formatting", "--input_files", path)


def test_a_wrong_byte_in_a_packed_file_is_named(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"x" * (1 << 20) + b"abc \xe9 d"))
    refused(rf"not valid UTF-8 at byte {(1 << 20) + 4}: ", text_files.encoding_of, path, None, "strict")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(
        pyarrow.table({"body": ["It is one.\n\nIt goes on.", None, "It is two."], "id": [1, 2, 3]}), path
    )
    arguments = ("--input_files", path, "--text_column")
    with pytest.raises(UserError, match="has no column 'text' but body, id: name one by --text_column"):
        preparation.run(tmp_path, "text_formatting", *arguments, "text")
    with pytest.raises(UserError, match="a.parquet, row 2: no text in column 'body'.*--max_bad_records"):
        preparation.run(tmp_path, "text_formatting", *arguments, "body")
    preparation.run(tmp_path, "text_formatting", *arguments, "body", "--max_bad_records", 1)
    formatted = tmp_path / "formatted_one_article_per_line/custom_one_document_per_line.txt"
    assert formatted.read_text() == "It is one.  It goes on.\nIt is two.\n"
    path.write_bytes(b"not a table")
    refused("a.parquet: not a Parquet file", preparation.run, tmp_path / "b", "text_formatting", "--input_files", path)
