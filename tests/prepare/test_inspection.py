"""--action inspect: what is planted is found, said in words, and nothing else looks wrong."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from bert_tf.prepare.checking import inspection
from tests.preparation import changed, documents, run, shard
from tests.refusals import refused

SHARDS = ("--n_training_shards", 3, "--n_test_shards", 2)
WORDS = " ".join(documents(3)).replace(".", "").split()
RECORDS = ("--max_seq_length", 64, "--max_predictions_per_seq", 10, "--dupe_factor", 2)


def inspect(capsys, working_dir, *arguments):
    """(what is printed, the warnings)."""
    capsys.readouterr()
    run(working_dir, "inspect", *arguments)
    output = capsys.readouterr().out
    return output, re.findall("^looks wrong: (.*)$", output, re.MULTILINE)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    shard(folder, documents(60), *SHARDS)
    run(folder, "create_vocab", "--vocab_size", 2500)
    run(folder, "create_tfrecord_files", *RECORDS)
    return folder


def test_instances_shares_and_settings_are_shown(prepared, capsys):
    output, wrong = inspect(capsys, prepared)
    assert wrong == [] and "nothing looks wrong" in output
    manifest = json.loads(next(prepared.glob("tfrecord/*/custom/manifest.json")).read_text())
    assert f"vocabulary of {manifest['vocab']['size']:,} pieces" in output
    assert "max_seq_length 64, dupe_factor 2" in output
    assert f"Of {manifest['counts']['num_instances_training']:,} training instances" in output
    random_next = float(re.search(r"([\d.]+)% random next", output)[1]) / 100
    padding = float(re.search(r"([\d.]+)% padding", output)[1]) / 100
    assert random_next == pytest.approx(manifest["counts"]["random_next_share"], abs=0.02)
    assert padding == pytest.approx(manifest["counts"]["padding_share"], abs=0.02)
    masked, kept, replaced = (
        float(number) for number in re.search(r"([\d.]+)% masked, ([\d.]+)% kept, ([\d.]+)% replaced", output).groups()
    )
    assert 74 < masked < 86 and kept + replaced == pytest.approx(100 - masked, abs=0.2)
    bars = re.findall(r"^ +\d+-\d+ +([\d.]+)% #*$", output, re.MULTILINE)
    assert sum(map(float, bars)) == pytest.approx(100, abs=1)
    assert "what follows A (label 0)" in output and "from elsewhere (label 1)" in output


def test_every_mask_shown_has_its_answer(prepared, capsys):
    output, _ = inspect(capsys, prepared)
    found = re.findall(r"of 64 tokens; .*?\n  A  (.*?)\n  B  (.*?)\n +to predict: (.*?)\n\n", output, re.DOTALL)
    assert len(found) == 3
    words = {word for text in documents(60) for word in text.lower().replace(".", "").split(" ")}
    for *passages, answers in found:
        shown = re.sub(r"\s+", " ", " ".join(passages)).split(" ")
        predictions = re.findall(r"(\d+) (\S+) \((masked|kept|shown as \S+)\)", re.sub(r"\s+", " ", answers))
        assert shown.count("[MASK]") == sum(how == "masked" for *_, how in predictions) > 0
        assert len(words & set(shown)) > len(set(shown)) / 2


def test_repeated_documents_and_train_test_leaks_are_found(tmp_path, capsys):
    texts = documents(40)
    shards = ("--n_training_shards", 2, "--n_test_shards", 2, "--fraction_test_set", 0.4)
    shard(tmp_path, [*texts, *(text.upper() for text in texts[:20]), changed(texts[30])], *shards)
    split = {
        name: "".join(path.read_text().lower() for path in (tmp_path / "sharded/custom").glob(f"{name}/*.txt"))
        for name in ("training", "test")
    }
    leaks = [text for text in texts[:20] if all(text[:25].lower() in split[name] for name in split)]
    assert 2 < len(leaks) < 18
    output, wrong = inspect(capsys, tmp_path)
    assert len(wrong) == 2
    assert re.match(rf"{len(leaks)} of \d+ test documents are in the training split too", wrong[0])
    assert wrong[1].startswith(f"{20 - len(leaks)} of 61 documents repeat an earlier one")


def test_text_without_test_documents_or_a_vocabulary(tmp_path, capsys):
    shard(tmp_path, documents(40), "--n_training_shards", 3, "--n_test_shards", 0, "--fraction_test_set", 0)
    output, wrong = inspect(capsys, tmp_path)
    assert wrong == [] and "40 of 40 compared" in output


def test_large_corpora_are_sampled_and_it_is_said(prepared, capsys, monkeypatch):
    monkeypatch.setattr(inspection, "MOST_DOCUMENTS", 20)
    output, wrong = inspect(capsys, prepared)
    compared = int(re.search(r"(\d+) of 60 compared", output)[1])
    assert 5 < compared < 40 and wrong == []


def test_a_corpus_of_headings_is_named(prepared, tmp_path, capsys):
    shutil.copytree(prepared / "sharded", tmp_path / "sharded")
    assert inspect(capsys, tmp_path)[1] == []
    for path in (tmp_path / "sharded/custom/training").iterdir():
        lines = re.sub("(?m)^(.{20}).*$", r"\1", path.read_text())
        path.write_text(lines.ljust(path.stat().st_size, "\n"))
    wrong = inspect(capsys, tmp_path)[1]
    assert any(re.match("sentences have 20 char.*, 100.0% without a stop: these are headings", what) for what in wrong)


@pytest.mark.parametrize("content", ["[]", "{}", '{"dataset": "cus'])
def test_a_broken_manifest_of_records_is_a_fault(prepared, tmp_path, capsys, content):
    shutil.copytree(prepared, tmp_path / "work")
    (manifest,) = (tmp_path / "work").glob("tfrecord/*/custom/manifest.json")
    manifest.write_text(content)
    output, wrong = inspect(capsys, tmp_path / "work")
    assert len(wrong) == 1 and str(manifest) in wrong[0] and "nothing looks wrong" not in output
    shutil.rmtree(tmp_path / "work/sharded")
    refused(re.escape(str(manifest)), run, tmp_path / "work", "inspect")


def test_damage_and_absence_say_what_to_do(prepared, tmp_path):
    refused("--action status --dataset custom says", run, tmp_path, "inspect")
    shutil.copytree(prepared, tmp_path / "work")
    (vocab,) = (tmp_path / "work").glob("tfrecord/*/custom/vocab.txt")
    vocab.write_text("[PAD]\n")
    refused("--action verify --dataset custom --repair", run, tmp_path / "work", "inspect")
