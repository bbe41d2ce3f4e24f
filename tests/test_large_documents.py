"""Documents larger than a batch are formatted part by part, with the bytes they would have in one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import preparation
import pytest
from test_wiki import dump, page

from bert_tf.errors import UserError
from data import formatting, json_lines, text_files, wiki, xml_files

FORMATTED = "formatted_one_article_per_line"


def lines_of_text(count: int, seed: int) -> list[str]:
    """Wrapped and long lines, blank ones, rows of asterisks, words of several bytes."""
    rng = random.Random(seed)
    words = ["Wort", "größer", "a", "end.", "今天", '"So!"', "long" * 9]
    found = []
    for _ in range(count):
        kind = rng.random()
        num_words = 0 if kind < 0.15 else 90 if kind < 0.2 else 600 if kind < 0.22 else rng.randint(1, 9)
        found += ["", "* * *", ""] if 0.3 < kind < 0.33 else [" ".join(rng.choices(words, k=num_words))]
    return found


def corpus(folder: Path, input_format: str) -> Path:
    """Short documents, long ones, and some of either twice."""
    texts = ["\n".join(lines_of_text(count, seed)) for seed, count in enumerate((3, 400, 5, 2, 700, 4, 1, 300))]
    texts += [texts[1], "= = =\n" * 500, "Short.", texts[4], texts[0], "Last one."]
    path = folder / f"source.{'jsonl' if input_format == 'jsonl' else 'txt'}"
    if input_format == "jsonl":
        content = "\n".join(
            json.dumps({"id": [n, {"text": "no"}], "text": text, "more": "x"}, ensure_ascii=n % 2 == 0)
            for n, text in enumerate(texts)
        )
    elif input_format == "file":
        content = texts[4]
    elif input_format == "line":
        content = "\n".join(" ".join(text.split()) for text in texts)
    else:
        content = "\n\n".join(
            "\n".join(line for line in text.split("\n") if line not in ("", "* * *")) for text in texts
        )
    path.write_text(content, encoding="utf-8")
    return path


def formatted(working_dir: Path, source: Path, *arguments: object, dataset: str = "custom") -> tuple[bytes, dict]:
    preparation.run(
        working_dir,
        "text_formatting",
        *(["--input_files", source] if dataset == "custom" else []),
        *arguments,
        dataset=dataset,
    )
    (text,) = (working_dir / FORMATTED).glob(f"{dataset}*.txt")
    (manifest,) = (working_dir / FORMATTED).glob(f"{dataset}*.manifest.json")
    return text.read_bytes(), json.loads(manifest.read_text())["counts"]


@pytest.mark.parametrize("input_format", ["file", "line", "paragraph", "jsonl"])
@pytest.mark.parametrize("more", [(), ("--keep_duplicates",)])
def test_parts_give_the_bytes_of_the_whole(tmp_path, monkeypatch, input_format, more):
    source = corpus(tmp_path, input_format)
    arguments = ("--input_format", input_format, *more)
    whole = formatted(tmp_path / "whole", source, *arguments)
    if input_format != "file":
        assert whole[1]["num_dropped_without_sentence"] == 1
        assert whole[1].get("num_dropped_duplicates") == (None if more else 3)
    for number, (batch, line) in enumerate(((1000, 700), (3000, 100_000), (150, 4000))):
        monkeypatch.setattr(formatting, "BATCH_CHARACTERS", batch)
        monkeypatch.setattr(text_files, "LONGEST_LINE", line)
        assert formatted(tmp_path / str(number), source, *arguments) == whole


def test_a_run_that_stopped_inside_a_document_goes_on(tmp_path, monkeypatch):
    source = corpus(tmp_path, "paragraph")
    whole = formatted(tmp_path / "whole", source, "--input_format", "paragraph")
    monkeypatch.setattr(formatting, "BATCH_CHARACTERS", 1000)
    monkeypatch.setattr(formatting, "CHECKPOINT_BYTES", 100)
    write = formatting._Writer.write
    for stop in (3, 17, 30, 45):

        def stopping(self, cleaned, stop=stop):
            if self.num_batches == stop:
                raise formatting.WorkersError("stopped")
            write(self, cleaned)

        monkeypatch.setattr(formatting._Writer, "write", stopping)
        with pytest.raises(UserError, match="stopped"):
            formatted(tmp_path / "again", source, "--input_format", "paragraph")
    monkeypatch.setattr(formatting._Writer, "write", write)
    assert formatted(tmp_path / "again", source, "--input_format", "paragraph") == whole


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_page_in_parts(tmp_path, monkeypatch, is_cut):
    paragraphs = [f"The [[link|text]] of '''passage''' {n} ends here." for n in range(400)]
    content = dump(
        page("One", "It is one."),
        page("Two", "\n\n".join(paragraphs)),
        page("Talk:Two", "\n\n".join(paragraphs), ns="<ns>1</ns>"),
        page("Three", "It is three."),
        page("Four", " ".join(paragraphs)),
        page("Two again", "\n\n".join(paragraphs)),
    )
    if is_cut:
        content = content[: content.index(b"Four") + 9000]
    for folder in ("whole", "parts"):
        place = tmp_path / folder / "download" / "wikicorpus_en"
        place.mkdir(parents=True)
        (place / "wikicorpus_en.xml").write_bytes(content)
    whole = formatted(tmp_path / "whole", tmp_path, dataset="wikicorpus_en")
    assert whole[1]["num_documents"] == (3 if is_cut else 4)
    for size in (2000, 700):
        monkeypatch.setattr(wiki, "_LARGEST_PAGE", size)
        monkeypatch.setattr(xml_files, "BLOCK_BYTES", 1000)
        parts = formatted(tmp_path / "parts", tmp_path, dataset="wikicorpus_en")
        assert parts == whole
        for path in (tmp_path / "parts" / FORMATTED).glob("wiki*"):
            path.unlink()


def test_versions_of_a_large_page_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(wiki, "_LARGEST_PAGE", 100)
    two = page("One", "It is one. " * 99).replace("</page>", "<revision><text>It.</text></revision></page>")
    path = tmp_path / "wikicorpus_en.xml"
    path.write_bytes(dump(two))
    with pytest.raises(UserError, match="page 'One' has over 100 characters and several versions"):
        list(wiki.read_batches([path], []))


@pytest.mark.parametrize(
    "line,message",
    [
        ('{"text": "%s", "x": tru}', "not JSON"),
        ('{"text": "%s"', "not JSON"),
        ('{"text": "%s', "without an end"),
        ('{"body": "%s"}', 'no object with a "text"'),
        ('["text", "%s"]', "no object"),
        ('{"a": {"text": "%s"}}', "no object"),
        ('{"text": "%s\\x41"}', "not JSON"),
        ('{"text": "%s\\u12"}', "not JSON"),
        ('{"text": 5, "b": "%s"}', "no object"),
    ],
)
def test_wrong_json_is_named_in_a_line_of_any_length(tmp_path, monkeypatch, line, message):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 64)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "One."}\n' + line % ("word " * 50) + "\n")
    with open(path, encoding="utf-8") as file, pytest.raises(UserError, match=f"a.jsonl, line 2: .*{message}"):
        list(json_lines.documents(path, text_files.read_lines(file)))


def test_escapes_in_a_line_without_spaces_are_never_parted(tmp_path, monkeypatch):
    text = '\U0001f600\n\u4eca\\"\ud83dx' * 40
    for size in range(20, 60):
        monkeypatch.setattr(text_files, "LONGEST_LINE", size)
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"text": text}).replace(" ", ""))
        with open(path, encoding="utf-8") as file:
            parts = list(json_lines.documents(path, text_files.read_lines(file)))
        parts = [part if isinstance(part, str) else part[0] for part in parts]
        assert "".join(parts).replace("\n", "") == text.replace("\n", "")


DOCUMENT_BYTES = 60_000_000
# The program alone takes some 60 MB; with the document in memory but once it would be 120.
MOST_BYTES = 110_000_000


def write_large_document(path: Path, form: str) -> None:
    begin, between, end = {
        "file": ("", "\n\n", ""),
        "line": ("", "  ", "\nThe other."),
        "paragraph": ("", "\n", "\n\nThe other."),
        "jsonl": ('{"text": "', "\\n\\n", '"}\n{"text": "The other."}'),
        "page": (
            "<mediawiki><page><title>A</title><ns>0</ns><revision><text>",
            "\n\n",
            "</text></revision></page><page><title>B</title><revision><text>The other.</text></revision></page>"
            "</mediawiki>",
        ),
    }[form]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(begin)
        for number in range(DOCUMENT_BYTES // 1000):
            file.write(f"Sentence {number} says nothing new at all. " * 25 + between)
        file.write(end)


# What the kernel tells a parent (ru_maxrss) begins with the parent's own peak.
PROGRAM = """
import sys
from data import bertPrep
bertPrep.main(sys.argv[1:])
with open("/proc/self/status") as status:
    print(next(line for line in status if line.startswith("VmHWM")))
"""


def peak_bytes(working_dir: Path, *arguments: str) -> int:
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--n_processes", "1", *arguments],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "BERT_PREP_WORKING_DIR": str(working_dir)},
    ).stdout
    return int(output.split()[-2]) << 10


@pytest.mark.slow
@pytest.mark.parametrize("form", ["file", "line", "paragraph", "jsonl", "page"])
def test_memory_does_not_grow_with_a_document(tmp_path, form):
    dataset = "wikicorpus_en" if form == "page" else "custom"
    source = tmp_path / "download/wikicorpus_en/wikicorpus_en.xml" if form == "page" else tmp_path / "source.txt"
    write_large_document(source, form)
    assert (
        peak_bytes(
            tmp_path,
            "--action",
            "text_formatting",
            "--dataset",
            dataset,
            *([] if form == "page" else ["--input_files", str(source), "--input_format", form]),
        )
        < MOST_BYTES
    )
    num_documents = 1 if form == "file" else 2
    (manifest,) = (tmp_path / FORMATTED).glob("*.manifest.json")
    assert json.loads(manifest.read_text())["counts"]["num_documents"] == num_documents
    if form == "line":
        assert (
            peak_bytes(
                tmp_path,
                "--action",
                "sharding",
                "--dataset",
                dataset,
                "--n_training_shards",
                "1",
                "--n_test_shards",
                "1",
            )
            < MOST_BYTES
        )
        counts = json.loads((tmp_path / "sharded/custom/manifest.json").read_text())["counts"]
        assert counts["num_sentences"] == 25 * (DOCUMENT_BYTES // 1000) + 1
