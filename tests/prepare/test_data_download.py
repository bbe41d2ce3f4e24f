"""scripts/data_download.sh: which datasets it fetches, and where it runs."""

import os
import shutil
from pathlib import Path

import pytest

from tests.preparation import write
from tests.processes import answer
from tests.refusals import refusal
from tests.stand_ins import programs, write_program

CHECKOUT = Path(__file__).parents[2]
GLUE = "CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE WNLI".split()


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose Python writes down what it was asked for, and fails for what `fail` names."""
    root = tmp_path / "checkout"
    # The tests themselves may run in a container.
    script = (CHECKOUT / "scripts/data_download.sh").read_text()
    assert "/.dockerenv" in script
    write(root / "scripts/data_download.sh", script.replace("/.dockerenv", str(tmp_path / "dockerenv")))
    shutil.copytree(CHECKOUT / "scripts/docker", root / "scripts/docker")
    shutil.copy(CHECKOUT / "scripts/paths.sh", root / "scripts")
    for settings in ("bert_tf/settings", "bert_tf/tasks"):  # where launch.sh finds the variables
        shutil.copytree(CHECKOUT / settings, root / settings, ignore=shutil.ignore_patterns("__pycache__"))
    python = 'echo "$BERT_PREP_WORKING_DIR ${*:2}" >>"$LOG"; [[ " ${FAIL:-} " != *" ${*: -1} "* ]]\n'
    from_start = 'echo "from start $*${DO_LOWER_CASE:+; $VOCAB_FILE $DO_LOWER_CASE}" >>"$LOG"\n'
    write(root / "scripts/python.sh", python)
    write(root / "data/create_datasets_from_start.sh", from_start)
    return root


def run(checkout, *arguments, image=False, script="data_download.sh", **environment):
    answers = f"image) exit {int(not image)} ;; info | --version) exit ;;"
    docker = f'case $1 in {answers} esac\nprintf "%s\\n" docker "$@" >>"$LOG"'
    log = write(checkout.parent / "log", "")
    outside = dict.fromkeys(("NVIDIA_PRODUCT_NAME", "SINGULARITY_CONTAINER", "BERT_PREP_WORKING_DIR"), "")
    paths = {"PATH": programs(checkout.parent / "bin", docker=docker), "LOG": str(log)}
    result = answer("bash", checkout / "scripts" / script, *arguments, **{**outside, **paths, **environment})
    return result, log.read_text().splitlines()


def downloads(lines):
    return [line.split()[-1] for line in lines if "--action download" in line]


@pytest.mark.parametrize(
    "arguments,datasets,corpora",
    [
        (["wiki_only"], ["squad", *GLUE, "google_pretrained_weights"], "wiki_only"),
        (["all", "wiki_books"], ["squad", *GLUE, "google_pretrained_weights"], "wiki_books"),
        (["glue"], GLUE, None),
        (["pretrained", "wiki_only"], ["google_pretrained_weights"], None),
        (["biobert"], ["google_pretrained_weights", "bc5cdr", "chemprot"], "pubmed_baseline"),
    ],
)
def test_what_is_fetched(checkout, arguments, datasets, corpora):
    result, lines = run(checkout, *arguments)
    assert result.returncode == 0, result.stderr
    assert downloads(lines) == datasets
    assert lines[0].startswith(f"{checkout}/data ")
    times = 2 if corpora == "pubmed_baseline" else 1
    started = [line.partition(";")[0] for line in lines if "from start" in line]
    assert started == ([f"from start {corpora}"] * times if corpora else [])


def test_a_python_without_the_packages_is_told_once(checkout):
    result, lines = run(checkout, FAIL="--help")
    assert result.returncode and len(lines) == 1 and not downloads(lines)


def test_biobert_has_both_vocabularies_and_goes_on_where_a_source_is_gone(checkout, tmp_path):
    (checkout / "scripts/biobert").mkdir()
    shutil.copy(CHECKOUT / "scripts/biobert/biobert_data_download.sh", checkout / "scripts/biobert")
    result, lines = run(checkout, script="biobert/biobert_data_download.sh", FAIL="bc5cdr")
    assert result.returncode == 2 and "error: failed: bc5cdr (" in result.stderr
    assert sum("--action text_formatting --dataset chemprot" in line for line in lines) == 1
    weights = checkout / "data/download/google_pretrained_weights"
    assert [line for line in lines if "from start" in line] == [
        f"from start pubmed_baseline; {weights}/uncased_L-12_H-768_A-12/vocab.txt 1",
        f"from start pubmed_baseline; {weights}/cased_L-12_H-768_A-12/vocab.txt 0",
    ]


def test_other_arguments_are_refused(checkout):
    for arguments in (["everything"], ["wiki_only", "all"], ["all", "wiki_only", "more"]):
        result, lines = run(checkout, *arguments)
        assert result.returncode == 2 and not lines
        assert "usage: bash scripts/data_download.sh" in result.stderr


def test_what_fails_is_named_at_the_end_and_keeps_nobody_from_the_rest(checkout):
    result, lines = run(checkout, FAIL="squad QQP")
    assert result.returncode == 2 and "from start wiki_only" in lines
    assert "error: failed: squad QQP" in result.stderr


def test_what_could_not_be_fetched_is_not_formatted(checkout):
    result, lines = run(checkout, "biobert", FAIL="chemprot")
    assert "error: failed: chemprot (" in result.stderr
    assert not any("--action text_formatting" in line for line in lines)


def test_where_there_is_an_image_it_runs_in_a_container_and_inside_of_one_right_there(checkout):
    result, lines = run(checkout, "all", "wiki_only", image=True, BERT_PREP_WORKING_DIR=str(checkout))
    assert result.returncode == 0, result.stderr
    assert lines[:3] == ["docker", "run", "--rm"] and f"BERT_PREP_WORKING_DIR={checkout}" in lines
    assert lines[-5:] == ["bert", "bash", "scripts/data_download.sh", "all", "wiki_only"]
    _, lines = run(checkout, "squad", image=True, NVIDIA_PRODUCT_NAME="TensorFlow")
    assert downloads(lines) == ["squad"]
    (checkout.parent / "dockerenv").touch()
    _, lines = run(checkout, "glue", image=True)
    assert downloads(lines) == GLUE


def test_pubmed_with_a_cased_vocabulary_from_the_start(checkout, tmp_path):
    """The stages that cut words are told the casing, which Google's vocabularies do not say."""
    shutil.copy(CHECKOUT / "data/create_datasets_from_start.sh", checkout / "data")
    (tmp_path / "vocab.txt").touch()
    typed = dict(VOCAB_FILE=str(tmp_path / "vocab.txt"), DO_LOWER_CASE="0", SHARDS="--n_training_shards 4")
    _, lines = run(checkout, "pubmed_baseline", script="../data/create_datasets_from_start.sh", **typed)
    stages = {line.split("--action ")[1].split()[0]: line for line in lines}
    assert list(stages) == ["download", "text_formatting", "sharding", "create_tfrecord_files"]
    assert ["--do_lower_case 0" in line for line in lines] == [False, False, False, True, True]
    assert all("--dataset pubmed_baseline" in line for line in lines) and "--n_training_shards 4" in stages["sharding"]


@pytest.mark.parametrize("script", ["scripts/data_download.sh", "data/create_datasets_from_start.sh"])
def test_help_is_the_top_of_the_file(script):
    done = answer("bash", CHECKOUT / script, "--help")
    assert done.returncode == 0 and not done.stderr
    assert f"  bash {script} [" in done.stdout and "set -" not in done.stdout and "#" not in done.stdout


def test_a_job_started_without_slurm_is_refused_in_one_line():
    outside = {name: None for name in os.environ if name.startswith("SLURM_")}
    line = refusal(answer("bash", CHECKOUT / "scripts/prepare_data.sub", "wiki_only", **outside))
    assert line.startswith("error: this is a job for Slurm: sbatch ")


def prepare_data(tmp_path, workers, scheduler):
    """A job whose srun and whose scheduler are these commands, and whose stages sleep."""
    for name in ("data/bertPrep.py", "scripts/python.sh"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(CHECKOUT / name, tmp_path / name)
    (tmp_path / "venv/bin").mkdir(parents=True)
    python = f"case $* in\n -c*) ;;\n *' scheduler '*) {scheduler} ;;\n *) exec sleep 60 ;;\nesac"
    write_program(tmp_path / "venv/bin/python", python)
    folders = dict(SLURM_SUBMIT_DIR=str(tmp_path), BERT_VENV=str(tmp_path / "venv"), BERT_PREP_WORKING_DIR="")
    environ = {**folders, "SLURM_JOB_ID": "7", "PATH": programs(tmp_path / "bin", srun=workers)}
    return answer("bash", CHECKOUT / "scripts/prepare_data.sub", "--action", "x", **environ)


@pytest.mark.parametrize("workers, scheduler", [("exit 1", "exec sleep 60"), ("exec sleep 60", "exit 1")])
def test_a_job_whose_scheduler_or_workers_have_all_ended_ends_too(tmp_path, workers, scheduler):
    done = prepare_data(tmp_path, workers, scheduler)
    said = f"error: the scheduler or all workers have ended: {tmp_path}/slurm-7.dask.log says why; "
    assert (done.returncode, done.stderr[: len(said)]) == (2, said)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_only_who_can_read_the_jobs_key_can_connect_to_its_dask(tmp_path):
    seen = tmp_path / "seen"
    scheduler = (
        f'stat -c "%a %n" "$DASK_DISTRIBUTED__COMM__TLS__CA_FILE" >{seen}; printenv | grep ^DASK_ >>{seen}; exit 1'
    )
    prepare_data(tmp_path, "exec sleep 60", scheduler)
    key = tmp_path / "data/.dask_key_7.pem"
    mode, *variables = seen.read_text().splitlines()
    assert mode == f"600 {key}" and not key.exists()
    assert {f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT={key}" for role in ("SCHEDULER", "WORKER", "CLIENT")} < {
        *variables
    }
    assert "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True" in variables


def test_without_openssl_the_job_says_that_anyone_can_connect(tmp_path):
    programs(tmp_path / "bin", openssl="exit 127")
    assert "warning: openssl made no key, so whoever can connect" in prepare_data(tmp_path, "exit 1", "exit 1").stdout
