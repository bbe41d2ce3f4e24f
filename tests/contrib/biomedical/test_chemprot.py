"""ChemProt's files of abstracts, entities and relations into tables of sentences with a marked pair."""

import gzip
import json

import pytest

from bert_tf.prepare.fetching.sources import SOURCES
from bert_tf.tasks.glue.read import read_examples
from bert_tf.tasks.glue.tasks import find_task
from tests.contrib.biomedical.chemprot_data import files_of, write_files
from tests.preparation import run
from tests.prepare.test_download import CLIENT, download, zipped
from tests.refusals import refused

# Of the articles in chemprot_data.py: index, sentence, label.
SECOND = "Both aspirin and (S. R)-x. Tol inhibit COX-2."
ROWS = [
    ("101.T1.T2", '@CHEMICAL$ and "the" @GENE$', "false"),
    ("101.T3.T5", SECOND.replace("aspirin", "@CHEMICAL$").replace("COX-2", "@GENE$"), "CPR:4"),
    ("101.T3.T5", SECOND.replace("aspirin", "@CHEMICAL$").replace("COX-2", "@GENE$"), "CPR:3"),
    ("101.T4.T5", SECOND.replace("(S. R)-x. Tol", "@CHEMICAL$").replace("COX-2", "@GENE$"), "false"),
    ("102.T2.T9", "A @GENE$ takes @CHEMICAL$.", "CPR:9"),
    ("103.T1.T2", "We saw  that @CHEMICAL$ \u00a0 binds  @GENE$.", "CPR:3"),
    ("104.T1.T2", "An @CHEM-GENE$ binds.", "CPR:3"),
]


@pytest.fixture
def folder(tmp_path):
    """A working directory with the training part, unpacked."""
    write_files(tmp_path / "download/chemprot", files_of("training"))
    return tmp_path


def formatted(working_dir, *arguments):
    run(working_dir, "text_formatting", *arguments, dataset="chemprot")
    return working_dir / "biobert/ChemProt"


def rows_of(table):
    examples = read_examples(table, find_task("ChemProt"), wants_labels=True)
    return list(zip(examples.indices, examples.texts[0], examples.labels))


def test_each_chemical_with_each_gene_of_its_sentence_is_an_example(folder):
    tables = formatted(folder)
    assert rows_of(tables / "train.tsv") == ROWS
    assert sorted(path.name for path in tables.glob("[!.]*")) == ["manifest.json", "train.tsv"]
    assert json.loads((tables / "manifest.json").read_text())["counts"] == {
        "num_documents": 4,
        "num_examples": 7,
        "num_examples_false": 2,
        "num_overlapping": 1,
        "num_relations_not_evaluated": 0,
        "num_relations_across_sentences": 1,
        "num_dropped_bad_records": 0,
    }


def test_all_parts_however_they_are_packed(folder):
    """Zip files in a zip file, as the corpus is distributed; gzip; folders; carriage returns."""
    expected = formatted(folder) / "train.tsv"
    packed, parts = folder / "packed", {part: files_of(part) for part in ("training", "development", "test")}
    inner = {f"ChemProt_Corpus/chemprot_{part}.zip": zipped(files) for part, files in parts.items()}
    write_files(packed / "download/chemprot", {"ChemProt_Corpus.zip": zipped({**inner, "__MACOSX/._a.zip": b"x"})})
    unpacked = folder / "unpacked"
    for part, suffix in (("training", ""), ("development", ".gz"), ("test", "")):
        files = files_of(part, end="\r\n" if part == "test" else "\n")
        del files[f"chemprot_{part}_gold_standard.tsv"]
        pack = gzip.compress if suffix else bytes
        files = {f"{name}{suffix}": pack(content) for name, content in files.items()}
        write_files(unpacked / "download/chemprot" / part, files)
    for working_dir in (packed, unpacked):
        tables = formatted(working_dir)
        for name in ("train.tsv", "dev.tsv", "test.tsv"):
            assert (tables / name).read_bytes() == expected.read_bytes()
    counts = json.loads((unpacked / "biobert/ChemProt/manifest.json").read_text())["counts"]
    assert counts["num_relations_not_evaluated"] == 3 and counts["num_documents"] == 12


# A file's kind, the number of a line in it (from 1; 0: a new one), what the line becomes.
BAD = [
    ("abstracts", 1, "101 title"),
    ("abstracts", 0, "101 a b"),
    ("entities", 1, "101 T1 CHEMICAL 1 8 Aspirin"),
    ("entities", 1, "101 T1 CHEMICAL x 7 Aspirin"),
    ("entities", 1, "101 T1 DISEASE 0 7 Aspirin"),
    ("entities", 1, "999 T1 CHEMICAL 0 7 Aspirin"),
    ("entities", 0, "101 T1 CHEMICAL 0 7 Aspirin"),
    ("gold_standard", 1, "101 CPR:4 Arg1:T3"),
    ("gold_standard", 1, "101 CPR:4 Y Arg1:T3 Arg2:T5"),
    ("gold_standard", 1, "101 CPR:4 Arg1:T3 Arg2:T77"),
    ("gold_standard", 1, "101 CPR:4 Arg1:T3 Arg2:T4"),
    ("gold_standard", 1, "101 CPR:11 Arg1:T3 Arg2:T5"),
]
RULES = {"abstracts": "a number that no other abstract has", "entities": "one of CHEMICAL", "gold_standard": "CPR:9 "}


@pytest.mark.parametrize("kind, number, line", BAD)
def test_bad_lines_are_refused_or_named_and_counted(folder, capsys, kind, number, line):
    file = folder / f"download/chemprot/chemprot_training_{kind}.tsv"
    lines = file.read_bytes().split(b"\n")[:-1]
    number, line = number or len(lines) + 1, line.replace(" ", "\t")
    lines[number - 1 : number] = [line.encode()]
    file.write_bytes(b"\n".join(lines) + b"\n")
    refused(f"{file}, line {number}: .*{RULES[kind]}.*; correct .*--max_bad_records", formatted, folder)
    tables = formatted(folder, "--max_bad_records", 20)
    assert f"warning: left out: {file}, line {number}: {line!r}, where columns must be" in capsys.readouterr().err
    manifest = json.loads((tables / "manifest.json").read_text())
    assert manifest["counts"]["num_dropped_bad_records"] >= 1


def test_files_that_are_damaged_missing_or_contradict_each_other(folder):
    source = folder / "download/chemprot"
    broken = source / "ChemProt_Corpus.zip"
    broken.write_bytes(b"PK no zip")
    refused(f"{broken}: damaged, or not what its name says", formatted, folder)
    broken.write_bytes(zipped({"a/chemprot_training_abstracts.tsv": b"1\tother\tcontent\n"}))
    refused("abstracts.tsv is not the same as .*abstracts.tsv: take one of them away", formatted, folder)
    broken.write_bytes(zipped(files_of("training")))  # unpacked beside it
    (source / "chemprot_training_entities.tsv").write_bytes(b"101\tT\xff")
    broken.unlink()
    refused("entities.tsv, line 1: byte 5 is not UTF-8", formatted, folder)
    (source / "chemprot_training_entities.tsv").unlink()
    refused("abstracts.tsv: there is no file of entities beside it", formatted, folder)
    for file in source.glob("chemprot*"):
        file.rename(source / file.name.replace("chemprot_", "drugprot_"))
    refused("drugprot_.* and 2 more hold no chemprot_training_abstracts.tsv", formatted, folder)
    for file in source.glob("drug*"):
        file.unlink()
    refused("chemprot holds no .tsv or .zip file: .*--action download --dataset chemprot fetches", formatted, folder)


def test_the_stage_is_like_the_others(folder, capsys):
    table = formatted(folder) / "train.tsv"
    content = table.read_bytes()
    run(folder, "status", dataset="chemprot")
    assert "num_examples 7" in capsys.readouterr().out
    table.write_bytes(content.replace(b"CPR:9", b"CPR:4"))
    refused("broken: .*train.tsv", run, folder, "verify", dataset="chemprot")
    run(folder, "verify", "--repair", dataset="chemprot")
    assert table.read_bytes() == content


def test_a_table_of_ones_own_is_kept(folder):
    tables = folder / "biobert/ChemProt"
    write_files(tables, {"train.tsv": b"index\tsentence\tlabel\n"})
    refused("train.tsv exists, and was not made by this stage: use it", formatted, folder)
    assert (tables / "train.tsv").read_bytes() == b"index\tsentence\tlabel\n"


def test_it_is_downloaded_by_name_only(tmp_path, server):
    inner = {f"chemprot_{part}.zip": zipped(files_of(part)) for part in ("training", "development")}
    server.add("/ChemProt_Corpus.zip", zipped({f"ChemProt_Corpus/{name}": part for name, part in inner.items()}))
    source = SOURCES["chemprot"]
    (archive,) = source.archives
    there = archive._replace(url=server.url("/ChemProt_Corpus.zip"), files=dict.fromkeys(inner))
    here = source._replace(archives=(there,))
    download("all", tmp_path / "download", {"chemprot": here}, CLIENT)
    assert not (tmp_path / "download/chemprot").exists()
    gone = {"chemprot": source._replace(archives=(archive._replace(url=server.url("/gone/ChemProt_Corpus.zip")),))}
    message = "ChemProt_Corpus.zip: 404.*put it there as .*chemprot/ChemProt_Corpus.zip"
    refused(message, download, "chemprot", tmp_path / "download", gone, CLIENT)
    download("chemprot", tmp_path / "download", {"chemprot": here}, CLIENT)
    tables = formatted(tmp_path)
    assert rows_of(tables / "train.tsv") == rows_of(tables / "dev.tsv") == ROWS
