"""docs/biomedical.md: its rehearsal is run as it is, on made-up abstracts, sentences and weights."""

import gzip
import json
import os
import random
import re
import sys
from pathlib import Path

import pytest

from tests import exported
from tests.docs.test_docs import blocks
from tests.entity_data import columns
from tests.google_checkpoints import write_encoder
from tests.processes import ROOT, answer

SET_UP = "bash scripts/setup.sh && source .venv/bin/activate\n"
DISEASES = ("colon cancer", "asthma", "cystic fibrosis")


def write_abstracts(path: Path) -> None:
    rng = random.Random(1)
    sentences = [f"{rng.choice(('The', 'This', 'A'))} gene {n} is seen in {rng.choice(DISEASES)}." for n in range(240)]
    citations = (
        f'<PubmedArticle><MedlineCitation Status="MEDLINE"><PMID Version="1">{n + 1}</PMID><Article>'
        f"<ArticleTitle>{sentences[n]}</ArticleTitle><Abstract><AbstractText>{' '.join(sentences[n + 1 : n + 6])}"
        "</AbstractText></Abstract></Article></MedlineCitation></PubmedArticle>\n"
        for n in range(0, 240, 6)
    )
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("<PubmedArticleSet>\n" + "".join(citations) + "</PubmedArticleSet>\n")


def write_labelled(folder: Path) -> None:
    folder.mkdir()
    for name, count in (("train", 60), ("devel", 10), ("test", 20)):
        named = [(f"Gene {number}", DISEASES[number % 3]) for number in range(count)]
        labels = ["O O B-Disease" + " I-Disease" * disease.count(" ") for _, disease in named]
        (folder / f"{name}.tsv").write_text(columns(zip(map(" ".join, named), labels)))


@pytest.mark.walkthrough
@pytest.mark.slow
def test_the_rehearsal_can_be_pasted_as_it_is(tmp_path):
    page = tmp_path / "rehearsal.md"
    page.write_text((ROOT / "docs/biomedical.md").read_text(encoding="utf-8").partition("\n## The full thing")[0])
    script = "\n".join(blocks(page))
    assert SET_UP in script
    for name in ("data", "run_pretraining.py", "run_ner.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    write_encoder(tmp_path / "all-MiniLM-L6-v2", exported.VOCAB, 128)
    write_abstracts(tmp_path / "rehearsal/download/pubmed/baseline/pubmed25n0001.xml.gz")
    write_labelled(tmp_path / "NCBI-disease")
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = answer("/bin/bash", "-euo", "pipefail", "-c", script.replace(SET_UP, ""), cwd=tmp_path, **variables)
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-8:])
    assert "num_documents 40" in done.stdout and "Pairs of length 128, masked as training does" in done.stdout
    runs = [tmp_path / f"results/diseases_{name}" for name in ("before", "after")]
    assert all(re.search(r"^Disease_f1 = ", (run / "eval_results.txt").read_text(), re.MULTILINE) for run in runs)
    assert (tmp_path / "diseases.html").stat().st_size > 10_000
    entities = json.loads((tmp_path / "models/diseases/config.json").read_text())
    assert entities["architectures"] == ["BertForTokenClassification"]
    assert set(entities["id2label"].values()) == {"B-Disease", "I-Disease", "O"}
    assert json.loads((tmp_path / "models/pubmed/config.json").read_text())["architectures"] == ["BertForPreTraining"]
