"""All stages as they are typed: end to end, again, killed, refused.

As programs where that matters (`start`), else in this process, which has imported what they need (`run`).
"""

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest

from bert_tf.records.schema import RecordSchema
from bert_tf.records.shard import RecordFile, describe
from tests.preparation import CHAIN, FORMATTED, SHARDS, contents, documents, run, write
from tests.prepare.test_wiki import dump, page
from tests.processes import answer
from tests.refusals import refusal, refused

CHECKOUT = Path(__file__).parents[2]
PROGRAM = CHECKOUT / "data/bertPrep.py"


def start(working_dir, action, *arguments, program=PROGRAM):
    typed = ("--action", action, "--dataset", "Custom", "--n_processes", 1, *arguments)
    return answer(sys.executable, program, *typed, BERT_PREP_WORKING_DIR=str(working_dir))


def made_from_anywhere(folder: Path):
    """All files that were made, that which names the input's place without it."""
    found = contents(folder)
    found.pop("source.txt", None)
    name = f"{FORMATTED}.manifest.json"
    found[name] = {**json.loads(found[name]), "inputs": []}
    return found


def chain_on(prepared: Path) -> list[tuple]:
    """The actions with their arguments that have made it, and make the same elsewhere."""
    return [("text_formatting", "--input_files", prepared / "source.txt"), *CHAIN]


def test_chain_leaves_the_layout_and_manifests_that_add_up(prepared):
    pairs, shards = "masked_lm_prob_0.15_random_seed_12345_dupe_factor_2", "shard_4_test_split_10"
    folder = prepared / f"tfrecord/lower_case_1_seq_len_32_max_pred_5_{pairs}_{shards}/custom"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["vocab"]["size"] == len((folder / "vocab.txt").read_text().splitlines())
    for split, number in (("training", 4), ("test", 2)):
        entries = manifest["shards"][split]
        assert [e["file"] for e in entries] == [f"{split}/custom_{split}_{i}.tfrecord" for i in range(number)]
        assert manifest["counts"][f"num_instances_{split}"] == sum(e["num_instances"] for e in entries)
        for entry in entries:
            path = folder / entry["file"]
            assert path.stat().st_size == entry["bytes"]
            assert path.with_name(path.name + ".index").is_file()
            assert describe(path) == RecordSchema(32, 5)
            assert RecordFile(path).num_records == entry["num_instances"]
    others = ("sharded/custom/manifest.json", f"{FORMATTED}.manifest.json")
    for made in (manifest, *(json.loads((prepared / name).read_text()) for name in others)):
        assert made["counts"]["num_documents"] == 60
    assert 0.5 < manifest["counts"]["random_next_share"] < 0.8
    assert not [path for path in prepared.rglob("*") if path.suffix in (".tmp", ".partial", ".journal")]


def test_again_there_is_nothing_to_do(prepared, capsys):
    before = contents(prepared)
    for typed in chain_on(prepared):
        run(prepared, *typed)
    assert capsys.readouterr().out.count("nothing to do") == len(CHAIN) + 1
    assert contents(prepared) == before


def test_of_token_files_with_two_casings_one_is_named(work):
    (folder,) = work.glob("tokens/lower_case_1_shard_*")
    shutil.copytree(folder, folder.with_name(folder.name.replace("_1_", "_0_", 1)))
    create = run, work, "create_pairs", "--max_seq_length", 24
    refused("has token files in .*: name a casing by --do_lower_case", *create)
    create[0](*create[1:], "--do_lower_case", 1)
    assert [path.parents[2] for path in work.rglob("*.24.pairs")] == [folder] * 6


@pytest.mark.slow
def test_bytes_do_not_depend_on_the_number_of_processes(prepared, tmp_path):
    for typed in chain_on(prepared):
        run(tmp_path, *typed, "--n_processes", "3")
    assert made_from_anywhere(tmp_path) == made_from_anywhere(prepared)


def test_create_vocab_writes_only_what_it_makes(prepared):
    for name, fault in (
        ("source.txt", "was not made by --action=create_vocab"),
        ("source.txt/vocab.txt", "source.txt is a file, and must be a folder"),
        ("new.json", "create_vocab makes no tokenizer.json, but a vocab.txt or a .model"),
    ):
        refused(fault, run, prepared, "create_vocab", "--vocab_file", prepared / name)
    assert not (prepared / "new.json").exists()


@pytest.mark.parametrize(
    "action,dataset,message",
    [
        ("download", "nvidia_pretrained_weights", "https://catalog.ngc.nvidia.com/.*into .*/nvidia_pretrained_weights"),
        ("download", "bookscorpus", "no longer distributed.*put your books there.*wikicorpus_en"),
        ("download", "custom", "dataset=custom cannot be downloaded"),
        ("text_formatting", "wikicorpus_en", "put wikicorpus_en.xml.bz2"),
        ("text_formatting", "bookscorpus", "put your books there"),
        ("text_formatting", "pubmed_baseline", "--dataset pubmed_baseline fetches them"),
        ("text_formatting", "pubmed_daily_update", "read together with pubmed_baseline"),
        ("text_formatting", "sample", "--action download --dataset sample"),
        ("text_formatting", "custom", "input_files: name text files"),
        ("text_formatting", "CoLA", "dataset=cola is not for pre-training"),
        ("sharding", "wikicorpus_en", "--action text_formatting --dataset wikicorpus_en"),
        ("sharding", "books_wiki_en_corpus", "--action text_formatting --dataset bookscorpus"),
        ("create_tfrecord_files", "sample", "--action sharding --dataset sample"),
        ("create_tfrecord_files", "all", "--dataset=all is for --action=download"),
        ("verify", "custom", "nothing of custom has been prepared"),
        ("inspect", "custom", "run .*--action sharding --dataset custom first"),
    ],
)
def test_missing_inputs_say_what_to_do(tmp_path, action, dataset, message):
    refused(message, run, tmp_path, action, dataset=dataset)


def test_a_formatted_file_of_ones_own_is_not_overwritten(prepared, tmp_path):
    own = write(tmp_path / f"{FORMATTED}.txt", "One. Two.\n" * 9)
    words = "was not made by this stage"
    refused(words, run, tmp_path, "text_formatting", "--input_files", prepared / "source.txt")
    run(tmp_path, "sharding", *SHARDS)
    assert own.read_text() == "One. Two.\n" * 9


# The program, which is killed when it calls a function for the fourth time.
KILLED = """
import itertools, os, runpy, signal, sys
sys.path.insert(0, {checkout!r})
import {module} as module
import bert_tf.prepare.corpora.documents as documents
import bert_tf.prepare.corpora.formatting as formatting
documents.BATCH_CHARACTERS, formatting.CHECKPOINT_BYTES = 500, 200
calls, whole = itertools.count(1), module.{function}
def killed(*arguments, **options):
    if next(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*arguments, **options)
module.{function} = killed
sys.argv[0] = {program!r}
runpy.run_path({program!r}, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "number,target",
    [
        (0, "bert_tf.prepare.corpora.formatting.clean_batch"),
        (1, "bert_tf.prepare.sharding.sharding._write_shard"),
        (6, "bert_tf.prepare.instances.creating._make_file"),  # of token files, too
    ],
)
def test_killed_stage_goes_on_and_ends_with_the_same_bytes(prepared, tmp_path, number, target):
    working_dir = tmp_path / "work"
    chain = chain_on(prepared)
    for typed in chain[:number]:
        run(working_dir, *typed)
    module, _, function = target.rpartition(".")
    names = {"module": module, "function": function, "checkout": str(CHECKOUT), "program": str(PROGRAM)}
    program = write(tmp_path / "killed.py", KILLED.format(**names))
    assert start(working_dir, *chain[number], program=program).returncode == -signal.SIGKILL
    (journal,) = working_dir.rglob("*.journal")
    assert len(journal.read_text().splitlines()) == 4, "of what the stage was begun with, and of three pieces"
    for partial in working_dir.rglob("*.partial"):
        with open(partial, "ab") as file:
            file.write(b"written after the last checkpoint")
    again = start(working_dir, *chain[number])
    assert again.returncode == 0, again.stderr
    assert number or "going on where an earlier run stopped" in again.stdout
    for typed in chain[number + 1 :]:
        run(working_dir, *typed)
    assert made_from_anywhere(working_dir) == made_from_anywhere(prepared)


def test_program_runs_from_any_folder_and_through_a_link(tmp_path):
    (tmp_path / "linked").symlink_to(CHECKOUT / "data")
    typed = ("linked/bertPrep.py", "--action", "sharding", "--dataset", "sample")
    result = answer(sys.executable, *typed, cwd=tmp_path, BERT_PREP_WORKING_DIR=str(tmp_path / "w"))
    assert "--action text_formatting --dataset sample" in refusal(result)


def from_start(working_dir, argument, **environment):
    script = CHECKOUT / "data/create_datasets_from_start.sh"
    return answer("bash", script, argument, BERT_PREP_WORKING_DIR=str(working_dir), N_PROCESSES="1", **environment)


def test_from_start_goes_on_with_wikipedia_where_there_are_no_books(tmp_path):
    pages = (page(str(number), article) for number, article in enumerate(documents(60)))
    write(tmp_path / "download/wikicorpus_en/wikicorpus_en.xml", dump(*pages))
    sizes = {"VOCAB_SIZE": "300", "DUPE_FACTOR": "1", "SHARDS": "--n_training_shards 3 --n_test_shards 1"}
    result = from_start(tmp_path, "wiki_books", **sizes)
    assert "put your books there" in result.stderr
    assert result.returncode == 0 and "Going on with Wikipedia alone." in result.stdout
    assert len(list(tmp_path.glob("tfrecord/*/wikicorpus_en/manifest.json"))) == 2


def test_from_start_leaves_no_books_out_that_are_there_but_cannot_be_read(tmp_path):
    (tmp_path / "download").mkdir()
    (tmp_path / "download/bookscorpus").symlink_to(tmp_path / "lost")
    line = refusal(from_start(tmp_path, "wiki_books"))
    assert "download/bookscorpus is a link that leads nowhere, and must be a folder" in line


def test_from_start_ends_where_the_search_for_books_is_killed(tmp_path):
    write(tmp_path / "bin/python", "#!/bin/sh\nkill -9 $$\n").chmod(0o755)
    assert from_start(tmp_path, "wiki_books", BERT_VENV=str(tmp_path)).returncode == 137


def test_from_start_refuses_what_it_does_not_know(tmp_path):
    for argument, variables, words in (
        ("everything", {}, "must be wiki_only, wiki_books, sample, pubmed_baseline or wikicorpus_<code>"),
        ("sample", {"VOCAB_SIZE": "x"}, "VOCAB_SIZE=x: must be a whole number from 1 on"),
        ("sample", {"VOCAB_FILE": "none.txt", "VOCAB_SIZE": "9"}, "VOCAB_SIZE=9 makes one: give either, not both"),
        ("wiki_only", {"VOCAB_FILE": "none.txt"}, "VOCAB_FILE=none.txt: there is no such file"),
    ):
        assert words in refusal(from_start(tmp_path, argument, **variables))
