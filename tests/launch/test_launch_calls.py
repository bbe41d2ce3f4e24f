"""What people type: good and bad calls of all launchers with positional arguments, as DRY_RUN=1 answers them.

run.sub, which takes variables only, has its table in test_run_sub.py; data_download.sh and those of docker in
tests/prepare/test_data_download.py and tests/scripts/test_docker.py.
"""

# ruff: noqa: E501
from __future__ import annotations

import os
import re
import subprocess

import pytest

from benchmarks import finetuning_sweeps
from bert_tf.base.errors import UserError
from bert_tf.base.machine.hardware import GIB
from bert_tf.base.machine.launchers import hosts_of
from bert_tf.launch.__main__ import main as launch
from bert_tf.launch.recipes import RECIPES, find_recipe
from bert_tf.memory.plan import Device
from tests.launch.helpers import ROOT, prepare, pretend_machine, values_of
from tests.refusals import refused
from tests.stand_ins import nvidia_smi

WEIGHTS = "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt"

# The documents' own commands, which are also the defaults.
LAMB = "64 8 8 7.5e-4 5e-4 fp16 true 8 2000 200 7820 100 128 512 large"
ADAM = "16 8 1e-4 fp16 true 8 10000 1144000 5000 large 1 512 80"
SQUAD = f"10 5e-6 fp16 true 10 384 128 large 1.1 {WEIGHTS} 1.1"
GLUE = f"MRPC 16 3e-6 fp16 true 8 128 64 large 3.0 0.1 {WEIGHTS}"
SQUAD_INFERENCE = "results/tf_bert_finetuning_squad_large_fp16_gbs100/squad 8 fp16 true 384 128 large 1.1"
GLUE_INFERENCE = "MRPC results/tf_bert_finetuning_glue_mrpc_large_fp16_gbs128/glue 16 fp16 true 128 64 large"
BC5CDR = "8 3.125e-6 false fp16 true 16 128 base 8"
PUBMED_1 = "128 9.625e-5 false fp16 true 16 1953 19531 32 5000 80 base"
PUBMED_2 = "some/checkpoint 16 2.9e-4 false fp16 true 16 434 4340 128 5000 26 base"
PUBMED = "biobert/run_pretraining-pubmed_base_phase_"
BIOBERT_BENCHMARK = "biobert/biobert_finetune_{}_benchmark"
DEFAULTS = {
    "biobert/ner_bc5cdr-chem": f"results/biobert_tf_uncased_base/model.ckpt {BC5CDR} 10.0",
    "biobert/ner_bc5cdr-disease": f"results/biobert_tf_uncased_base/model.ckpt-4340 {BC5CDR} 100.0",
    "biobert/rel_chemprot": "results/biobert_tf_uncased_base/model.ckpt 8 1.5e-6 false fp16 true 16 512 base 16 3.0",
    f"{PUBMED}1": PUBMED_1,
    BIOBERT_BENCHMARK.format("train"): "ner_bc5cdr-chem 2 base false",
    BIOBERT_BENCHMARK.format("inference"): "ner_bc5cdr-chem base false",
    "pretraining_lamb": LAMB,
    "pretraining_lamb_phase1": LAMB,
    "pretraining_lamb_phase2": LAMB,
    "pretraining_adam": ADAM,
    "squad": SQUAD,
    "glue": GLUE,
    "squad_inference": SQUAD_INFERENCE,
    "glue_inference": GLUE_INFERENCE,
}
# A short run, of two ranks.
SMALL = "4 2 2 1e-3 1e-3 fp32 false 2 1 1 20 5 1 2 tiny"
AUTO = SMALL.replace("4 2 2", "auto auto 2")


def first(number, text):
    return " ".join(text.split()[:number])


def without(position, text):
    words = text.split()
    return " ".join(words[: position - 1] + words[position:])


# Script, what is typed, variables -> lines that are shown ("; " between them).
GOOD = [
    ("pretraining_lamb", LAMB, "", "global_batch_size_phase1 = 65536; global_batch_size_phase2 = 32768"),
    ("pretraining_lamb", LAMB, "", "effective_learning_rate_phase1 = 0.006; effective_learning_rate_phase2 = 0.004"),
    ("pretraining_lamb", LAMB, "", "updates_phase1 = 7038; updates_phase2 = 1564; sequences_in_all = 512491520"),
    ("pretraining_lamb", first(14, LAMB), "", "num_accumulation_steps_phase2 = 512; bert_model = large (default)"),
    ("pretraining_lamb", first(10, LAMB) + " 8341", "", "updates_phase1 = 7506; updates_phase2 = 1668"),
    ("pretraining_lamb", AUTO, "", "global_batch_size_phase1 = 2; updates_phase1 = 18"),
    ("pretraining_lamb", SMALL, "", "updates_phase1 = 18; dataset = sample; data_format = records; launcher = mpirun"),
    ("pretraining_lamb", SMALL, "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2", "launcher = srun"),
    ("pretraining_lamb", SMALL, "HOSTS=a,b LAUNCHER=horovodrun", "launcher = horovodrun"),
    ("pretraining_lamb", SMALL, "HOSTS=a:1,b:1 SLURM_JOB_ID=7", "launcher = mpirun"),
    ("pretraining_lamb", SMALL.replace(" 2 1 1 20", " 1 1 1 20"), "", "num_gpus = 1; launcher = none"),
    ("pretraining_lamb", SMALL, "RESTARTS=3 MAX_HOURS=1.5", "restarts = 3; max_hours = 1.5"),
    ("pretraining_lamb", SMALL, "DATASET=SAMPLE PACKING=yes", "dataset = sample; packing = true"),
    ("pretraining_lamb", SMALL, "RESULTS_DIR=/tmp/x/y", "results_dir = /tmp/x/y"),
    ("pretraining_lamb_phase1", SMALL.replace(" 20 ", " 9 "), "", "updates_phase1 = 8"),
    ("pretraining_lamb_phase2", LAMB, "", "updates_phase1 = 7038"),
    ("pretraining_adam", ADAM, "", "global_batch_size = 128; effective_learning_rate = 0.0008; updates = 1144000"),
    ("squad", SQUAD, "", "global_batch_size = 100; effective_learning_rate = 5e-05; epochs = 1.1"),
    ("squad", SQUAD.replace(" 1.1 ", " 2.0 "), "SQUAD_DIR=/x", "squad_version = 2.0; squad_dir = /x"),
    ("glue", "sst-2 16 3e-6 fp16 true 4", "", "task_name = sst-2; global_batch_size = 64; warmup_proportion = 0.1 (default)"),
    ("biobert/ner_bc5cdr-disease", "", "BIOBERT_DIR=/x", "data_dir = /x/BC5CDR/disease"),
    ("biobert/rel_chemprot", "x 16 1e-5 true fp32 true 2", "", "cased = true; global_batch_size = 32; eval_batch_size = 16 (default)"),
    (f"{PUBMED}1", "", "", "global_batch_size = 65536; effective_learning_rate = 0.00154; updates = 19531"),
    (f"{PUBMED}1", "128 3.2e-5 true", "", "max_predictions_per_seq = 20; init_checkpoint = download/google_pretrained_weights/cased_L-12_H-768_A-12/bert_model.ckpt"),
    (f"{PUBMED}1", "128", "INIT_CHECKPOINT=other", "init_checkpoint = other"),
    (f"{PUBMED}2", PUBMED_2, "INIT_CHECKPOINT=other", "init_checkpoint = some/checkpoint; global_batch_size = 32768"),
    (f"{PUBMED}2", "some/checkpoint", "", "; ".join(f"{argument.name} = {text} (default)" for argument, text in zip(find_recipe(f"{PUBMED}2")[0][1:], PUBMED_2.split()[1:]))),
    (BIOBERT_BENCHMARK.format("train"), "rel_chemprot 4 tiny true", "", "num_gpu 4, task rel_chemprot, bert_model tiny, cased true, seq_length 128, batch_size 32, precision fp32, use_xla true"),
    (BIOBERT_BENCHMARK.format("inference"), "ner_bc5cdr-disease tiny", "", "num_gpu 1, task ner_bc5cdr-disease, bert_model tiny, cased false, seq_length 128, batch_size 8, precision fp32, use_xla true"),
    ("finetune_train_benchmark", "base 4", "", "num_gpu = 4; batch_size = 8 (default)"),
    ("finetune_inference_benchmark", "large 8 fp16 true", "", "batch_size = 8"),
]  # fmt: skip
for name, typed in DEFAULTS.items():
    shown = "; ".join(
        f"{argument.name} = {text} (default)" for argument, text in zip(find_recipe(name)[0], typed.split())
    )
    GOOD.append((name, "", "", shown))
    GOOD.append((name, typed, "", shown.replace(" (default)", "")))

# Script, what is typed, variables -> part of the one line that refuses it. Some are what NVIDIA's scripts of the same
# names for other frameworks are called with.
BAD = [
    ("pretraining_lamb", without(8, LAMB), "", "num_gpus seems to be missing (position 8)"),
    ("pretraining_lamb", LAMB + " more", "", "16 arguments, but there are 15: train_batch_size_phase1 .* surplus is from 'more' on"),
    ("pretraining_lamb", "0", "", "train_batch_size_phase1 (position 1) is '0': must be a whole number of at least 1"),
    ("pretraining_lamb", "64 8 8 -1", "", "learning_rate_phase1 (position 4) is '-1': must be a number above 0"),
    ("pretraining_lamb", first(5, LAMB) + " fp8", "", "is 'fp8': must be one of fp32, tf32, fp16, bf16"),
    ("pretraining_lamb", first(6, LAMB) + " yes", "", "use_xla (position 7) is 'yes': must be one of true, false"),
    ("pretraining_lamb", "1 1 8 1e-3 1e-3 fp16 true 9999 0 0 9999 1 1 1", "", "num_gpus is 9999, but at most"),
    ("pretraining_lamb", "8 1000000", "", "phase 2: 4,096,000,000 sequences in an update .*make one smaller"),
    ("pretraining_lamb", first(8, LAMB) + " 8000", "", "warmup_steps_phase1 (position 9) is 8000: must be at most .* 7038"),
    ("pretraining_lamb", first(8, LAMB) + " 0 0 9", "", "train_steps (position 11) is 9: phase 2 would have no update"),
    ("pretraining_lamb", first(14, LAMB) + " huge", "", "bert_model (position 15) is 'huge': must be one of large, base"),
    ("pretraining_lamb", "8192 6e-3 fp16 8 0.2843 7038 200 false", "", "(position 2) is '6e-3'.*--help shows the order"),
    ("pretraining_lamb", SMALL, "DRY_RUN=maybe", "DRY_RUN=maybe: must be 1, 0, true"),
    ("pretraining_lamb", SMALL, "HOSTS=a:x,b:1", "'a:x' is not a host's name and number of ranks"),
    ("pretraining_lamb", SMALL, "HOSTS=a:1,a:1", "'a:1' is not a host's name and number of ranks, once each"),
    ("pretraining_lamb", SMALL, "HOSTS=a:1,b:2", "num_gpus is 2, but HOSTS=a:1,b:2 has 3 rank(s)"),
    ("pretraining_lamb", SMALL, "HOSTS=a:1,b:1 LAUNCHER=srun", "HOSTS is for mpirun and horovodrun"),
    ("pretraining_lamb", SMALL, "LAUNCHER=ssh", "LAUNCHER=ssh: must be one of srun, mpirun, horovodrun, none"),
    ("pretraining_lamb", SMALL, "LAUNCHER=none", "LAUNCHER=none starts one process, but num_gpus is 2"),
    ("pretraining_lamb", SMALL, "RESULTS_DIR=/dev/null/x", "RESULTS_DIR=/dev/null/x: /dev/null is a file, and must be"),
    ("pretraining_lamb", SMALL, "INIT_CHECKPOINT=base", "bert_model (position 15) is tiny, 2 layers of 128, but .* 12 "),
    ("pretraining_lamb_phase1", SMALL.replace(" 20 ", " 1 "), "", "phase 1 would have no update"),
    ("pretraining_lamb_phase2", SMALL.replace(" 20 ", " 9 "), "", "phase 2 would have no update"),
    ("pretraining_adam", "16 8 1e-4 fp16 true 8 11 10", "", "warmup_steps (position 7) is 11"),
    ("squad", "8 8 5e-6 fp16 true large 1.1 2", "", "precision (position 3) is '5e-6': must be one of"),
    ("squad", "/workspace/checkpoints/bert_uncased.pt 2.0 24", "", "batch_size_per_gpu (position 1) is '/workspace"),
    ("squad", first(5, SQUAD) + " 4", "", "seq_length (position 6) is '4': must be a whole number of at least 8"),
    ("squad", first(5, SQUAD) + " 384 381", "", "doc_stride=381 is as long as a window of max_seq_length=384"),
    ("squad", SQUAD.replace(WEIGHTS, "base"), "", "bert_model (position 8) is large, 24 layers of 1024, but .* 12 "),
    ("squad", SQUAD.replace(WEIGHTS, "none"), "", "checkpoint is 'none' (random weights), which needs VOCAB_FILE"),
    ("squad_inference", "8 some/checkpoint", "", "batch_size (position 2) is 'some/checkpoint'"),
    ("glue", "MRCP", "", "did you mean MRPC?"),
    ("glue", "custom", "", "task_name (position 1) is 'custom': .*run_classifier.py --task_name=custom"),
    ("glue", first(10, GLUE) + " 1", "", "warmup_proportion (position 11) is '1': must be a number of at least 0, and below"),
    ("glue_inference", "some/checkpoint MRPC", "", "some/checkpoint"),
    ("biobert/ner_bc5cdr-chem", "x auto", "", "train_batch_size (position 2) is 'auto': must be a whole number"),
    ("biobert/ner_bc5cdr-disease", "x 8 1e-5 fp16", "", "cased (position 4) is 'fp16': must be one of true, false"),
    ("biobert/rel_chemprot", "base 8 1e-6 false fp16 true 1 512 large", "", "bert_model (position 9) is large, 24 layers of"),
    (f"{PUBMED}1", "8 1e-4 false fp16 true 16 300 200", "", "warmup_steps (position 7) is 300: must be at most the phase's 200"),
    (f"{PUBMED}2", "", "", "init_checkpoint (position 1) is '': must be a text, not empty"),
    (BIOBERT_BENCHMARK.format("train"), "ner_bc5cdr", "", "task (position 1) is 'ner_bc5cdr': must be one of ner_bc5cdr-chem, "),
    (BIOBERT_BENCHMARK.format("inference"), "rel_chemprot base no", "", "cased (position 3) is 'no': must be one of true"),
    ("finetune_train_benchmark", "base 0", "", "num_gpu (position 2) is '0'"),
    ("finetune_train_benchmark", "base", "RESULTS_DIR=/dev/null", "RESULTS_DIR=/dev/null: /dev/null is a file, and"),
    ("finetune_inference_benchmark", "large 8 8 fp16", "", "precision (position 3) is '8': must be one of"),
]  # fmt: skip

# Script, what is typed, variables -> the note of a dry run about what is missing, and would stop a real one.
STOPPED = [
    ("pretraining_lamb", SMALL, "DATASET=books", "DATASET=books is not prepared for"),
    ("pretraining_lamb", SMALL, "DATA_DIR=/nonexistent", "no dataset is prepared"),
    ("pretraining_lamb", SMALL, "INIT_CHECKPOINT=/nonexistent", "INIT_CHECKPOINT=/nonexistent: there is no checkpoint"),
    ("squad", SQUAD, "SQUAD_DIR=/nonexistent", "download it with data/bertPrep.py"),
    ("glue", GLUE, "GLUE_DIR=/nonexistent", "GLUE_DIR names the folder"),
    ("biobert/rel_chemprot", "", "BIOBERT_DIR=/nonexistent", "ChemProt has no train.tsv and no dev.tsv"),
    (f"{PUBMED}1", "", "", "L-12_H-768_A-12/bert_model.ckpt: there is no checkpoint"),
    (f"{PUBMED}1", "", "INIT_CHECKPOINT=base", "DATASET=pubmed_baseline is not prepared for .* one uncased vocabulary"),
    (
        f"{PUBMED}2",
        "base 1 1 true",
        "DATASET=sample",
        "DATASET=sample is not prepared for .* with one cased vocabulary",
    ),
]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A launcher's answer where nothing is on the machine but prepared data, the launchers and Horovod without GPUs."""
    pretend_machine(monkeypatch)
    monkeypatch.setattr(finetuning_sweeps, "find_device", lambda *_: Device(6 * GIB, "a small GPU"))
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base/bert_config.json").write_text('{"num_hidden_layers": 12, "hidden_size": 768}')
    for name, value in {"DRY_RUN": "1", "DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)

    def answer(recipe, typed, variables):
        for pair in variables.split():
            monkeypatch.setenv(*pair.split("=", 1))
        code = launch.__wrapped__(["launch", recipe, *typed.split()])
        shown = capsys.readouterr().out
        assert code == 0 and "DRY_RUN: nothing was started" in shown
        return shown

    return answer


@pytest.mark.parametrize("recipe, typed, variables, lines", GOOD)
def test_good_calls(call, recipe, typed, variables, lines):
    assert set(lines.split("; ")) <= set(call(recipe, typed, variables).splitlines())


@pytest.mark.parametrize("recipe, typed, variables, message", BAD)
def test_bad_calls_are_refused_with_the_way_out(call, recipe, typed, variables, message):
    with pytest.raises(UserError) as error:
        call(recipe, typed, variables)
    pattern = re.escape(message).replace(r"\.\*", ".*").replace(r"\|", "|")
    assert re.search(pattern, str(error.value)) and "\n" not in str(error.value), error.value


@pytest.mark.parametrize("recipe, typed, variables, note", STOPPED)
def test_what_would_stop_a_real_run_is_noted(call, recipe, typed, variables, note):
    noted = [line for line in call(recipe, typed, variables).splitlines() if line.startswith("note: a real run would")]
    assert len(noted) == 1 and re.search(note, noted[0])


def test_every_launcher_has_good_and_bad_calls():
    with_arguments = {name for name in RECIPES if find_recipe(name)[0]}
    for table in (GOOD, BAD):
        assert {recipe for recipe, *_ in table} == with_arguments


def test_every_launcher_has_a_script_of_its_name():
    for name in RECIPES:
        is_called_so = name.endswith("benchmark") or "/" in name
        script = {"run_sub": "run.sub"}.get(name, f"{'' if is_called_so else 'run_'}{name}.sh")
        assert f" -m bert_tf.launch {name} " in (ROOT / "scripts" / script).read_text()


# --- Configurations ------------------------------------------------------------------------------


def configurations(kind, **variables):
    """What each function of a file of configurations prints."""
    print_all = 'for name in $(compgen -A function); do [[ $name == _* ]] || echo "$name $($name)"; done'
    file = ROOT / f"scripts/configs/{kind}_config.sh"
    lines = subprocess.run(
        ["bash", "-c", f"source '{file}' && {print_all}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
    ).stdout
    return dict(line.split(" ", 1) for line in lines.splitlines())


def test_configurations_of_pretraining(call):
    typed = configurations("pretrain")
    batches = {}
    for name, text in typed.items():
        assert len(text.split()) == 15
        shown = values_of(call("pretraining_lamb", text, ""))
        batches[name] = (shown["global_batch_size_phase1"], shown["global_batch_size_phase2"])
    assert batches == {
        "dgxa100_8gpu_fp16": ("79872", "30720"),
        "dgxa100_8gpu_tf32": ("90112", "33792"),
        "dgx2_16gpu_fp16": ("61440", "30720"),
        "dgx2_16gpu_fp32": ("65536", "30720"),
        "dgx1_8gpu_fp16": ("61440", "30720"),
        "dgx1_8gpu_fp32": ("65536", "30720"),
    }


def test_configurations_of_squad(call):
    typed = configurations("squad", SQUAD_VERSION="2.0")
    assert typed == {
        name: f"{numbers} 384 128 large 2.0 {WEIGHTS} 2.0"
        for name, numbers in {
            "dgxa100_8gpu_fp16": "76 3e-5 fp16 true 8",
            "dgxa100_8gpu_tf32": "38 7.5e-6 tf32 true 8",
            "dgx2_16gpu_fp16": "12 3.75e-6 fp16 true 16",
            "dgx2_16gpu_fp32": "8 2.5e-6 fp32 true 16",
            "dgx1_8gpu_fp16": "6 5e-6 fp16 true 8",
            "dgx1_8gpu_fp32": "3 5e-6 fp32 true 8",
        }.items()
    }
    for text in typed.values():
        call("squad", text, "")


@pytest.mark.parametrize("recipe, config", [("pretraining_lamb", "pretrain"), ("squad", "squad")])
def test_a_misspelt_configuration_is_refused(recipe, config):
    """It must not become no arguments, which would mean all defaults."""
    name = "dgx1_8gpu_fp61"
    typed = f"$(source scripts/configs/{config}_config.sh && {name})"
    answer = subprocess.run(
        ["bash", "-c", f"bash scripts/run_{recipe}.sh {typed}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "DRY_RUN": "1"},
    )
    named, known, refused = answer.stderr.splitlines()
    assert answer.returncode == 2 and not answer.stdout
    assert named.endswith(f"{name}: command not found")
    assert known.startswith("error: the configurations are dgx1_8gpu_fp16 dgx1_8gpu_fp32 dgx2_")
    assert "'no-configuration'" in refused


# --- By the shell --------------------------------------------------------------------------------


def test_the_articles_command_word_for_word(tmp_path):
    answer = subprocess.run(
        ["bash", "scripts/run_pretraining_lamb.sh", *LAMB.split()],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "DRY_RUN": "1", "CUDA_VISIBLE_DEVICES": "", "DATA_DIR": str(tmp_path), "RESULTS_DIR": ""},
    )
    assert answer.returncode == 0, answer.stderr
    shown = values_of(answer.stdout)
    assert list(shown.values())[:15] == LAMB.split()
    assert shown["results_dir"].endswith("results/tf_bert_pretraining_lamb_large_fp16_gbs165536_gbs232768")


def test_help_lists_the_arguments(capsys):
    assert launch.__wrapped__(["launch", "squad", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {argument.name}: " in shown for argument in find_recipe("squad")[0])


def test_an_unknown_launcher():
    with pytest.raises(UserError, match="there is no launcher 'nothing'; there are pretraining_lamb, "):
        launch.__wrapped__(["launch", "nothing"])


def test_fewer_gpus_than_asked_for(call, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path / "bin", *"abcd"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(UserError, match=r"num_gpus is 8, but 4 GPU\(s\)"):
        call("pretraining_lamb", LAMB, "")
    call("pretraining_lamb", first(7, LAMB) + " 4", "")
    call("pretraining_lamb", LAMB, "HOSTS=a:4,b:4")
    monkeypatch.delenv("HOSTS")
    with pytest.raises(UserError, match=r"num_gpus is 4, but 2 GPU\(s\)"):
        call("pretraining_lamb", first(7, LAMB) + " 4", "CUDA_VISIBLE_DEVICES=0,3")
    shown = call("pretraining_lamb", first(7, LAMB) + " 4", "CUDA_VISIBLE_DEVICES=")
    assert values_of(shown)["device"].startswith("CPU (4 rank(s)")


def test_hosts_are_parted_by_commas_not_by_spaces():
    assert hosts_of({"HOSTS": "a:4, b"}) == {"a": 4, "b": 1}
    refused("'a b:1' is not a host's name and number of ranks", hosts_of, {"HOSTS": "a b:1"})
