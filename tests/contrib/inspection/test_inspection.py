"""--action inspect: what is planted is found, said in words, and nothing else looks wrong."""

import json
import re
import shutil

import numpy as np
import pytest

from bert_tf.contrib.inspection import inspection
from bert_tf.contrib.inspection.inspection import judge, measure, read_sample
from bert_tf.records.manifest import FileEntry
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.preparation import documents, run, shard
from tests.pretraining_data import vocabulary_ids, write_records
from tests.refusals import refused

WORDS = " ".join(documents(3)).replace(".", "").split()


def inspect(capsys, working_dir, *arguments):
    """(what is printed, the warnings)."""
    capsys.readouterr()
    run(working_dir, "inspect", *arguments)
    output = capsys.readouterr().out
    return output, re.findall("^looks wrong: (.*)$", output, re.MULTILINE)


def test_instances_shares_and_settings_are_shown(prepared, capsys):
    output, wrong = inspect(capsys, prepared)
    assert wrong == [] and "nothing looks wrong" in output
    output = output.partition("create_tfrecord_files below")[2]
    manifest = json.loads(next(prepared.glob("tfrecord/*/custom/manifest.json")).read_text())
    assert f"vocabulary of {manifest['vocab']['size']:,} pieces" in output
    assert "max_seq_length 32, dupe_factor 2" in output
    assert f"Of {manifest['counts']['num_instances_training']:,} training instances" in output
    random_next = float(re.search(r"([\d.]+)% random next", output)[1]) / 100
    padding = float(re.search(r"([\d.]+)% padding", output)[1]) / 100
    assert random_next == pytest.approx(manifest["counts"]["random_next_share"], abs=0.02)
    assert padding == pytest.approx(manifest["counts"]["padding_share"], abs=0.02)
    shares = re.search(r"([\d.]+)% masked, ([\d.]+)% kept, ([\d.]+)% replaced", output)
    masked, kept, replaced = map(float, shares.groups())
    assert 74 < masked < 86 and kept + replaced == pytest.approx(100 - masked, abs=0.2)
    bars = re.findall(r"^ +\d+-\d+ +([\d.]+)% #*$", output, re.MULTILINE)
    assert sum(map(float, bars)) == pytest.approx(100, abs=1)
    assert "what follows A (label 0)" in output and "from elsewhere (label 1)" in output


def test_every_mask_shown_has_its_answer(prepared, capsys):
    output = inspect(capsys, prepared)[0].partition("create_tfrecord_files below")[2]
    found = re.findall(r"of 32 tokens; .*\n  A  (.*)\n  B  (.*)\n +to predict \(and what .*?\): (.*)\n", output)
    assert len(found) == 3
    words = {word for text in documents(60) for word in text.lower().replace(".", "").split(" ")}
    for *passages, answers in found:
        shown = " ".join(passages)
        assert shown.count("[MASK]") == len(re.findall(r"\d+ \S+ \(\[MASK\]\)", answers)) > 0
        assert len(words & set(shown.split(" "))) > len(set(shown.split(" "))) / 2


def test_repeated_documents_and_train_test_leaks_are_found(tmp_path, capsys):
    texts = documents(40)
    shards = ("--n_training_shards", 2, "--n_test_shards", 2, "--fraction_test_set", 0.4)
    shard(tmp_path, [*texts, *(text.upper() for text in texts[:20]), f"{texts[30]} And more."], *shards)
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


def test_text_without_test_documents_or_a_vocabulary_and_sampled(tmp_path, capsys, monkeypatch):
    shard(tmp_path, documents(60), "--n_training_shards", 3, "--n_test_shards", 0, "--fraction_test_set", 0)
    output, wrong = inspect(capsys, tmp_path)
    assert wrong == [] and "60 of 60 compared" in output
    monkeypatch.setattr(inspection, "MOST_DOCUMENTS", 20)
    output, wrong = inspect(capsys, tmp_path)
    assert 5 < int(re.search(r"(\d+) of 60 compared", output)[1]) < 40 and wrong == []


def test_a_corpus_of_headings_is_named(prepared, tmp_path, capsys):
    shutil.copytree(prepared / "sharded", tmp_path / "sharded")
    assert inspect(capsys, tmp_path)[1] == []
    for path in (tmp_path / "sharded/custom/training").iterdir():
        lines = re.sub("(?m)^(.{20}).*$", r"\1", path.read_text())
        path.write_text(lines.ljust(path.stat().st_size, "\n"))
    wrong = inspect(capsys, tmp_path)[1]
    assert any(re.match("sentences have 20 char.*, 100.0% without a stop: these are headings", what) for what in wrong)


def test_a_broken_manifest_of_records_or_vocabulary_is_a_fault(work, capsys):
    (manifest,) = work.glob("tfrecord/*/custom/manifest.json")
    whole = manifest.read_text()
    manifest.write_text("{}")
    output, wrong = inspect(capsys, work)
    assert len(wrong) == 1 and str(manifest) in wrong[0] and "nothing looks wrong" not in output
    manifest.write_text(whole)
    manifest.with_name("vocab.txt").write_text("[PAD]\n")
    refused("--action verify --dataset custom --repair", run, work, "inspect")
    manifest.write_text("{}")
    for name in ("sharded", "tokens"):
        shutil.rmtree(work / name)
    refused(re.escape(str(manifest)), run, work, "inspect")


IDS = vocabulary_ids([*SPECIAL_TOKENS, "a"])


def instances(count=400, masked=0.8, kept=0.1, random_next=0.5, unknown=0, padding=0):
    """By the rules: 32 tokens, of which four among the first are to be predicted."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 100, [count, 32])
    positions = np.sort(rng.permuted(np.tile(np.arange(1, 8), (count, 1)), axis=1)[:, :4])
    labels = np.take_along_axis(ids, positions, 1)
    fate = rng.random(positions.shape)
    shown = np.where(fate < masked, 4, np.where(fate < masked + kept, labels, 5 + (labels - 4) % 95))
    np.put_along_axis(ids, positions, shown, 1)
    ids[:, 10 : 10 + unknown] = 1
    return {
        "input_ids": np.pad(ids, ((0, 0), (0, padding))),
        "input_mask": np.pad(np.ones_like(ids, np.uint8), ((0, 0), (0, padding))),
        "segment_ids": np.pad(np.tile(np.arange(32) > 16, (count, 1)), ((0, 0), (0, padding))).astype(np.uint8),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": np.ones(positions.shape, np.float32),
        "next_sentence_labels": (rng.random([count, 1]) < random_next).astype(np.int64),
    }


@pytest.mark.parametrize(
    "options,message",
    [
        ({}, ""),
        ({"count": 6, "random_next": 0.9}, ""),  # a few instances prove nothing
        ({"masked": 1.0, "kept": 0.0}, "100.0% of the predictions are masked, where 80%"),
        ({"masked": 0.8, "kept": 0.2}, "of the predictions are replaced, where 10%"),
        ({"random_next": 0.2}, "where 50 to 60 % are usual: if less, is the label inverted"),
        ({"random_next": 0.95}, "of the second passages are random, where 50 to 60"),
        ({"unknown": 10}, "31.2% of the tokens are [UNK]"),
        ({"padding": 96}, "75.0% of the positions are padding"),
    ],
)
def test_broken_rules_are_said(options, message):
    warnings = list(judge(measure(instances(**options), IDS)))
    assert any(message in warning for warning in warnings) if message else not warnings


def test_the_sample_is_spread_over_all_shards(tmp_path, monkeypatch):
    arrays = instances(60)
    entries = []
    for number, rows in enumerate((slice(0, 10), slice(10, 50), slice(50, 60))):
        write_records(tmp_path / f"{number}", {name: values[rows] for name, values in arrays.items()})
        entries.append(FileEntry(f"{number}", 0, "", {"num_instances": rows.stop - rows.start}))
    whole = read_sample(tmp_path, entries)
    for name, column in whole.items():
        assert np.array_equal(column, arrays[name]), name
    monkeypatch.setattr(inspection, "SAMPLE_INSTANCES", 12)
    some = read_sample(tmp_path, entries)
    assert np.array_equal(some["input_ids"], arrays["input_ids"][np.linspace(0, 59, 12).astype(int)])
