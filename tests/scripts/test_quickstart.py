"""What the quickstart does with a user's own files; the set-up and the trainings are stand-ins."""

import bz2
import json
import os
import random
import shutil
import sys

import pytest

from bert_tf.base.machine.software import horovod_library
from scripts import own_files
from tests.processes import ROOT, answer
from tests.refusals import refusal

PRETRAINING = """echo "$DATASET $*" >>calls
mkdir -p "$RESULTS_DIR"/phase_{1,2}
echo "loss = 1.23456" | tee "$RESULTS_DIR"/phase_{1,2}/eval_results.txt >/dev/null
"""
SQUAD = """echo "$SQUAD_DIR $*" >>calls
mkdir -p "$RESULTS_DIR/squad"
printf '%s = %s\\n' f1 45.6789 HasAns_f1 0.0 HasAns_total 5 NoAns_f1 100.0 >"$RESULTS_DIR/squad/eval_results.txt"
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder that looks like a checkout, but trains nothing."""
    for name in ("bert_tf", "benchmarks", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")  # a link would lead them to the real checkout
    for name, text in (("setup", ""), ("run_pretraining_lamb", PRETRAINING), ("run_squad", SQUAD)):
        (tmp_path / f"scripts/{name}.sh").write_text(text)
    return tmp_path


def quickstart(checkout, *arguments):
    """Started from the folder above, to which paths are relative."""
    script = f"{checkout.name}/scripts/quickstart.sh"
    return answer("bash", script, *arguments, cwd=checkout.parent, BERT_VENV=sys.prefix)


def write_book(path, num_chapters=30):
    generator = random.Random(path.name)
    words = [f"{consonant}{vowel}{end}" for consonant in "bdfglmnr" for vowel in "aeiou" for end in "nrst"]
    lines = ["Title", "", "*** START OF THIS PROJECT GUTENBERG EBOOK X ***", ""]
    for chapter in range(num_chapters):
        lines += [f"CHAPTER {chapter + 1}.", ""]
        for _ in range(20):
            lines += [" ".join(generator.choices(words, k=10)).capitalize() + " _very_ much." for _ in range(3)] + [""]
    path.write_text("\n".join([*lines, "*** END OF THIS PROJECT GUTENBERG EBOOK X ***", "", "A licence.", ""]))


def write_questions(path, num_paragraphs=10, answer_start=0):
    paragraphs = []
    for number in range(num_paragraphs):
        answered = {"question": "Who?", "answers": [{"text": "Rollo", "answer_start": answer_start}]}
        questions = [{"id": f"a{number}", **answered}]
        questions.append({"id": f"b{number}", "question": "Why?", "answers": [], "is_impossible": True})
        paragraphs.append({"context": f"Rollo {number} led the Norse.", "qas": questions})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


@pytest.mark.slow
def test_two_books_and_questions_without_answers(checkout, monkeypatch):
    """In a language that writes numbers with a comma, which then are none for other programs."""
    awk = shutil.which("awk")
    (checkout / "bin").mkdir()
    (checkout / "bin/awk").write_text(f'#!/bin/sh\n[ "$LC_ALL" = C ] && exec {awk} "$@"\n{awk} "$@" | tr . ,\n')
    (checkout / "bin/awk").chmod(0o755)
    monkeypatch.setenv("PATH", f"{checkout}/bin:{os.environ['PATH']}")
    (checkout / "two,books").mkdir()
    for name in ("a.txt", "b.txt"):
        write_book(checkout / "two,books" / name)
    questions = write_questions(checkout / "questions.json")
    done = quickstart(checkout, "--corpus", f"{checkout.name}/two,books", "--squad", questions)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (data,) = checkout.glob("results/*/data")
    (text,) = data.glob("formatted_one_article_per_line/custom_*.txt")
    assert not {"GUTENBERG", "licence", "_very_"} & set(text.read_text().split())
    sharded = data / "sharded/custom"
    training, test = (sum(file.stat().st_size for file in sharded.glob(f"{name}/*")) for name in ("training", "test"))
    assert test / (training + test) == pytest.approx(0.1, abs=0.02)
    trained, fine_tuned, _ = (checkout / "calls").read_text().splitlines()
    rates = "0.0075 0.004" if horovod_library() else "0.015 0.008"  # of each rank
    assert trained.startswith(f"custom 16 8 8 {rates} ") and " tiny 2.0 " in fine_tuned
    assert "finetuned/squad: f1 45.679, HasAns_f1 0.000" in done.stdout, "rounded, not cut"
    assert "F1 with an answer (HasAns) 0.000, without one (NoAns) 100.000: no question is answered" in done.stdout


@pytest.mark.parametrize("option, content", [("--squad", '{"data": 3}'), ("--vocab_file", "[PAD]\n")])
def test_a_users_files_are_checked_before_anything_is_made(checkout, option, content):
    (checkout / "own").write_text(content)
    done = quickstart(checkout, option, checkout / "own")
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "own" in done.stderr
    assert not (checkout / "calls").exists() and not list(checkout.glob("results/*/data"))


@pytest.mark.parametrize("name", ["own.xml", "enwiki-latest-pages-articles1.xml-p1p41242.bz2"])
def test_a_dump_is_known_by_its_name(checkout, name):
    """A whole one, or a part as it is published; in this one is no article."""
    dump = b"<mediawiki><page><title>A</title><ns>0</ns><redirect title='B'/></page></mediawiki>"
    (checkout / name).write_bytes(bz2.compress(dump) if name.endswith(".bz2") else dump)
    done = quickstart(checkout, "--corpus", checkout / name)
    assert done.returncode == 2 and "no document is left of the input (num_read 1, " in done.stderr
    assert "num_dropped_redirects 1" in done.stderr


def test_a_results_folder_that_cannot_be_written(checkout):
    (checkout / "results").touch()
    line = refusal(quickstart(checkout))
    assert line.startswith(f"error: {checkout / 'results/quickstart'} cannot be written to by user {os.getuid()};")


def test_books_are_told_from_other_text(tmp_path):
    write_book(tmp_path / "book.txt", 2)
    chapters = "".join(f"Chapter {number}\n\nIt rained.\n\n" for number in "I II III".split())
    (tmp_path / "chapters.txt").write_text(chapters)
    (tmp_path / "wide.txt").write_text((tmp_path / "book.txt").read_text(), encoding="utf-16")
    (tmp_path / "articles.txt").write_text("Rain falls.\n\nIn chapter 3 it snows.\n\nChapter 3 says so.\n")
    kinds = [own_files.dataset_of(tmp_path / f"{name}.txt") for name in ("book", "chapters", "wide", "articles")]
    assert kinds == ["bookscorpus"] * 3 + ["custom"]
    notes = tmp_path / "notes"
    notes.mkdir()
    for number in range(own_files.FEW):
        assert own_files.dataset_of(notes) == ("bookscorpus" if number > 1 else "custom")
        (notes / f"{number}.txt").write_text("A note.")
    assert own_files.dataset_of(notes) == "custom"  # enough documents to hold some out


def test_few_documents_are_cut_between_paragraphs(tmp_path):
    long = "  ".join(f"Paragraph {number} of it. It ends." for number in range(500))
    sentences = " ".join(f"Sentence {number} stands here." for number in range(400))
    formatted, output = tmp_path / "in.txt", tmp_path / "out.txt"
    formatted.write_text(f"{long}\n{sentences}\nShort.\n")
    own_files.cut_few(formatted, output)
    parts = output.read_text().splitlines()
    assert len(parts) == pytest.approx(90, abs=10) and parts[-1] == "Short."
    assert "  ".join(parts).replace("  ", " ") == f"{long} {sentences} Short.".replace("  ", " ")
    assert max(map(len, parts)) < 2 * len(long + sentences) / 100
    written = output.stat().st_mtime_ns
    own_files.cut_few(formatted, output)
    assert output.stat().st_mtime_ns == written
    formatted.write_text("Short.\n" * 100)
    output.unlink()
    own_files.cut_few(formatted, output)
    assert not output.exists()


def test_what_is_asked_of_a_users_files(tmp_path):
    """From any folder."""
    right = write_questions(tmp_path / "questions.json")
    wrong = write_questions(tmp_path / "wrong.json", answer_start=7)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    for arguments, code, printed in (
        (["--squad", right, tmp_path / "out"], 0, "2.0\n"),
        (["--squad", wrong, tmp_path / "other"], 2, "wrong.json"),  # what fine-tuning would refuse
        (["--vocab_file", tmp_path / "vocab.txt"], 0, "1 1\n"),
    ):
        done = answer(sys.executable, "../scripts/own_files.py", *arguments, cwd=ROOT / "tests")
        assert done.returncode == code and printed in (refusal(done) if code else done.stdout)
    assert sorted(path.name for path in tmp_path.rglob("*v2.0.json")) == ["dev-v2.0.json", "train-v2.0.json"]
    assert not (tmp_path / "other").exists()
