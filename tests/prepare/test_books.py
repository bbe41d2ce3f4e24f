"""Books: heads and tails, line breaks; text files: which, and in what encoding."""

import errno
import gzip
import io
import os
import tarfile
import tracemalloc

import pytest

from bert_tf.prepare.corpora import books, text_files
from bert_tf.prepare.corpora.formatting import SeenDocuments
from tests.preparation import run, write
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


def line_of(path, *encoding):
    return books.clean(path, lambda path: text_files.read_lines(path, *encoding)).line


@pytest.mark.parametrize(
    "encoding,stated,end",
    [("utf-8", "UTF-8", "\n"), ("utf-8-sig", "ASCII", "\r\n"), ("latin-1", "ISO-8859-1", "\r\n"), ("utf-16", "", "\n")],
)
def test_book_is_one_line_without_the_distributor(tmp_path, encoding, stated, end):
    path = write(tmp_path / "a.txt", BOOK.format(encoding=stated).replace("\n", end).encode(encoding))
    assert line_of(path) == "THINGS  It was a very dark café.  The end came."


def test_heads_in_other_words(tmp_path):
    head = "***START OF THE PROJECT GUTENBERG EBOOK THINGS, VOLUME\nI, JANUARY 1916***"
    note = "[Transcriber's Notes: the spelling\nwas kept.]"
    for start in ("E-text prepared by", "This eBook was produced by", "This etext was prepared by"):
        book = f"{head}\n\n\n{start} Nobody\n\n{note}\n\nI\n\nIt was dark.\n\n{head.replace('START', 'END')}"
        assert line_of(write(tmp_path / "a.txt", book)) == "I  It was dark."


@pytest.mark.parametrize(
    "text,line",
    [
        ("_All\nit_, in_ter._ On 21_st_ not snake_case __init__.", "All it, inter. On 21st not snake_case __init__."),
        ("The other way--\nin short--\n“so”.", "The other way--in short--“so”."),
        ("A sea-\nside, sea-\nand wood-side, 1914-\n18, X-\nRay.", "A sea-side, sea- and wood-side, 1914- 18, X- Ray."),
        ("Text.\n\nIt is from Project\nGutenberg’s archives.", "Text.  It is from Project Gutenberg’s archives."),
    ],
)
def test_line_breaks_and_italics(tmp_path, text, line):
    (tmp_path / "a.txt").write_text(text)
    assert line_of(tmp_path / "a.txt") == line


@pytest.mark.parametrize("token", ["_", "_a", "[Illustration", "[Illustration: a", "--\n", "a-\n", "*", "\n", " "])
def test_any_text_takes_linear_time(tmp_path, token):
    (tmp_path / "a.txt").write_text(token * (1_000_000 // len(token)) + "\n\nThe end.")
    assert line_of(tmp_path / "a.txt").endswith("The end.")


LATIN, WIDE = "Ein Café.".encode("latin-1"), "Ein Café.".encode("utf-16-le")


def tar_of(content):
    archive, member = io.BytesIO(), tarfile.TarInfo("a")
    member.size = len(content)
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))
AS_UTF_16 = "a binary file or UTF-16, not UTF-8 text; .*iconv -f UTF-16LE .*--fallback_encoding$"
WITHOUT_NULS = r"tr -d '\\0' <FILE >OUT takes stray ones out"


@pytest.mark.parametrize(
    "content,encoding,message",
    [
        (LATIN, (), "not valid UTF-8 at byte 7: .*fallback_enc"),
        (LATIN, ("utf-16",), "not valid UTF-8 at byte 7 and not utf-16 either"),
        (LATIN, ("utf-32",), "not valid UTF-8 at byte 7 and not utf-32 either"),
        (LATIN, ("ascii",), "not valid UTF-8 at byte 7 and not ascii either"),
        (PNG, ("latin-1", "strict"), "a binary file, not text.* take it out.*fallback_encoding$"),
        (PNG, ("latin-1", "replace"), "a binary file, not text.* take it out.*fallback_encoding$"),
        pytest.param(b"Text.\n" * 4000 + b"\0", (), rf"a NUL at byte 24000 \({WITHOUT_NULS}\): ", id="a late NUL"),
        (b"It is text.\0", ("latin-1",), rf"a binary file, not text \(a NUL at byte 11; {WITHOUT_NULS}\); or take"),
        (WIDE, (None, "strict"), AS_UTF_16),
        (WIDE, (None, "replace"), AS_UTF_16),
        # Of other scripts only spaces and digits have a zero byte.
        ("Ελλάδα και νησιά, 12 Μαΐου 2020. Το νερό.".encode("utf-16-le"), (), AS_UTF_16),
        ("हिन्दी एक भाषा है. यह 1 है और 2 है.".encode("utf-16-be"), (), AS_UTF_16.replace("LE", "BE")),
        (tar_of(b"It is text."), (), "a tar archive, not UTF-8 text; convert it: tar -xf a.txt"),
        (b"7z\xbc\xaf\x27\x1c\0\4", (), "a 7z archive, not UTF-8 text; convert it: 7z x a.txt; or take it out[^,]*$"),
        (b"\n<!DOCTYPE html>\n<p>Text.</p>", (), "text with tags: write .* or take it out of the input$"),
        (rb"{\rtf1 Text.\par}", ("latin-1",), "a document in Rich Text Format, not UTF-8 text; .*out of the input$"),
    ],
)
def test_what_is_no_text_in_a_known_encoding_is_refused(tmp_path, content, encoding, message):
    (tmp_path / "a.txt").write_bytes(content)
    refused(f"a.txt: {message}", line_of, tmp_path / "a.txt", *encoding)


def test_the_ways_out(tmp_path):
    path = write(tmp_path / "a.txt", LATIN)
    assert line_of(path, "latin-1") == "Ein Café." and line_of(path, None, "replace") == "Ein Caf\ufffd."
    assert line_of(write(path, WIDE), "utf-16-le") == "Ein Café."
    packed = write(tmp_path / "a.txt.gz", gzip.compress(b"x" * (1 << 20) + b"abc \xe9 d"))
    refused(rf"not valid UTF-8 at byte {(1 << 20) + 4}: ", text_files.find_encoding, packed, None, "strict")


def test_files_of_any_depth_in_a_fixed_order(tmp_path):
    for name in ("b/c/1.txt", "a.TXT", ".hidden/x.txt", "b/.y.txt", "b/notes.md"):
        write(tmp_path / name, "Text.")
    found = text_files.find_text_files(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found] == ["a.TXT", "b/c/1.txt"]
    assert text_files.find_text_files(tmp_path / "none") == []


def test_links_are_followed_once_and_those_to_nothing_named(tmp_path):
    (tmp_path / "here").mkdir()
    write(tmp_path / "elsewhere/a.txt", "Text.")
    (tmp_path / "here/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/round").symlink_to(tmp_path / "here")
    assert text_files.find_text_files(tmp_path / "here") == [tmp_path / "here/linked/a.txt"]
    (tmp_path / "here/b.txt").symlink_to(tmp_path / "gone.txt")
    refused("here/b.txt does not exist; repair it", text_files.find_text_files, tmp_path / "here")
    (tmp_path / "here/b.txt").unlink()
    os.mkfifo(tmp_path / "here/b.txt")
    refused("b.txt is not a file; repair it", text_files.find_text_files, tmp_path / "here")


def test_an_unreadable_folder_is_named(tmp_path, monkeypatch):
    # The permissions themselves would not keep root out.
    (tmp_path / "shut").mkdir()
    (tmp_path / "a.txt").write_text("Text.")

    def scandir(path, scandir=os.scandir):
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    refused(f"{tmp_path}/shut cannot be read .Permission denied", text_files.find_text_files, tmp_path)


@pytest.mark.parametrize("name", ["base64", "undefined", "klingon", "a\0b"])
def test_what_is_no_encoding_of_text_is_refused(tmp_path, name):
    arguments = ("text_formatting", f"--fallback_encoding={name}")
    refused("fallback_encoding=.*not a text encoding", run, tmp_path, *arguments, dataset="bookscorpus")


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


def test_seen_documents_grow(monkeypatch):
    monkeypatch.setattr(SeenDocuments, "_NEWEST", 1000)
    seen = SeenDocuments()
    assert all(seen.add(str(i).encode()) for i in range(70_500))
    assert not any(seen.add(str(i).encode()) for i in range(70_500))
    monkeypatch.setattr(SeenDocuments, "MAX_DOCUMENTS", 3)
    full = SeenDocuments()
    added = "".join(letter for letter in "abacddb" if full.add(letter.encode()))
    assert added == "abcdd", "what came late is compared with the first ones alone"
