"""What people type: calls of all launchers, as DRY_RUN=1 answers them; then the scripts themselves.

data_download.sh and the scripts of docker are in tests/prepare/test_data_download.py and tests/scripts/test_docker.py.
"""

# ruff: noqa: E501
from __future__ import annotations

import re

import pytest

from benchmarks import finetuning_sweeps
from bert_tf.base.errors import UserError
from bert_tf.base.machine.hardware import GIB
from bert_tf.launch.__main__ import main as launch
from bert_tf.launch.recipes import find_recipe, find_recipes
from bert_tf.memory.plan import RankMemory
from tests.launch.helpers import ROOT, prepare, pretend_machine, values_of
from tests.processes import answer
from tests.stand_ins import nvidia_smi

WEIGHTS = "data/download/google_pretrained_weights/uncased_L-24_H-1024_A-16/bert_model.ckpt"

# The documents' own commands, which are also the defaults.
LAMB = "64 8 8 7.5e-4 5e-4 fp16 true 8 2000 200 7820 100 128 512 large"
ADAM = "16 8 1e-4 fp16 true 8 10000 1144000 5000 large 1 512 80"
SQUAD = f"10 5e-6 fp16 true 10 384 128 large 1.1 {WEIGHTS} 1.1"
GLUE = f"MRPC 16 3e-6 fp16 true 8 128 64 large 3.0 0.1 {WEIGHTS}"
BC5CDR = "8 3.125e-6 false fp16 true 16 128 base 8"
PUBMED_2 = "some/checkpoint 16 2.9e-4 false fp16 true 16 434 4340 128 5000 26 base"
DEFAULTS = {
    "pretraining_lamb": LAMB,
    "pretraining_lamb_phase1": LAMB,
    "pretraining_lamb_phase2": LAMB,
    "pretraining_adam": ADAM,
    "pretraining_budget": "24 base any",
    "squad": SQUAD,
    "glue": GLUE,
    "squad_inference": "results/tf_bert_finetuning_squad_large_fp16_gbs100/squad 8 fp16 true 384 128 large 1.1",
    "glue_inference": "MRPC results/tf_bert_finetuning_glue_mrpc_large_fp16_gbs128/glue 16 fp16 true 128 64 large",
    "biobert/ner_bc5cdr-chem": f"results/biobert_tf_uncased_base/model.ckpt {BC5CDR} 10.0",
    "biobert/ner_bc5cdr-disease": f"results/biobert_tf_uncased_base/model.ckpt-4340 {BC5CDR} 100.0",
    "biobert/rel_chemprot": "results/biobert_tf_uncased_base/model.ckpt 8 1.5e-6 false fp16 true 16 512 base 16 3.0",
    "biobert/run_pretraining-pubmed_base_phase_1": "128 9.625e-5 false fp16 true 16 1953 19531 32 5000 80 base",
    "biobert/biobert_finetune_train_benchmark": "ner_bc5cdr-chem 2 base false",
    "biobert/biobert_finetune_inference_benchmark": "ner_bc5cdr-chem base false",
}
# A short run, of two ranks; what run.sub starts with NVIDIA's values.
SMALL = "4 2 2 1e-3 1e-3 fp32 false 2 1 1 20 5 1 2 tiny"
RUN_SUB = "16 2 8 1.875e-4 1.25e-4 fp16 true 32 2000 200 7820 100 128 512 large"


def first(number, text, *more):
    return " ".join([*text.split()[:number], *more])


def run_sub(phase, old="", new=""):
    return f"+ bash scripts/run_pretraining_lamb_phase{phase}.sh {RUN_SUB}".replace(old, new, 1)


# By launcher: what is typed; variables; and lines that are shown ("; " between them), or a pattern of "error: " and the
# one line that refuses it, or of "note: " and what would stop a real run. Some of what is refused is what NVIDIA's
# scripts of the same names for other frameworks are called with.
CALLS = {
    "pretraining_lamb": [
        (LAMB, "", "global_batch_size_phase1 = 65536; global_batch_size_phase2 = 32768; effective_learning_rate_phase1 = 0.006; effective_learning_rate_phase2 = 0.004; updates_phase1 = 7038; updates_phase2 = 1564; sequences_in_all = 512491520"),
        (LAMB, "", f"results_dir = {ROOT}/results/tf_bert_pretraining_lamb_large_fp16_gbs165536_gbs232768"),
        (SMALL.replace("4 2 2", "auto auto 2"), "", "global_batch_size_phase1 = 2; updates_phase1 = 18"),
        (SMALL, "", "updates_phase1 = 18; dataset = sample; data_format = records; launcher = mpirun"),
        (SMALL, "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2", "launcher = srun"),
        (SMALL, "HOSTS=a:1,b:1 SLURM_JOB_ID=7", "launcher = mpirun"),
        (SMALL.replace(" 2 1 1 20", " 1 1 1 20"), "", "num_gpus = 1; launcher = none"),
        (SMALL, "DATASET=SAMPLE PACKING=yes", "dataset = sample; packing = true"),
        (" ".join(LAMB.split()[:7] + LAMB.split()[8:]), "", r"error: num_gpus seems to be missing \(position 8\)"),
        (LAMB + " more", "", "error: 16 arguments, but there are 15, .*: train_batch_size_phase1 .* surplus is from 'more' on"),
        ("0", "", r"error: train_batch_size_phase1 \(position 1\) is '0': must be a whole number of at least 1"),
        (first(5, LAMB, "fp8"), "", "error: .* is 'fp8': must be one of fp32, tf32, fp16, bf16"),
        (first(6, LAMB, "yes"), "", r"error: use_xla \(position 7\) is 'yes': must be one of true, false"),
        ("1 1 8 1e-3 1e-3 fp16 true 9999 0 0 9999 1 1 1", "", "error: num_gpus is 9999, but at most"),
        ("8 1000000", "", "error: phase 2: 4,096,000,000 sequences in an update .*make one smaller"),
        (first(8, LAMB, "8000"), "", "error: phase 1, .* warmup_steps=8000 is more than num_train_steps=7038"),
        ("8192 6e-3 fp16 8 0.2843 7038 200 false", "", r"error: .*\(position 2\) is '6e-3'.*--help shows the order"),
        (SMALL, "HOSTS=a:1,a:1", "error: .*'a:1' is not a host's name and number of ranks, once each"),
        (SMALL, "HOSTS=a:1,$(id):1", r"error: .*'\$\(id\):1' is not a host's name"),
        (SMALL, "HOSTS=a:1,b;id:1", "error: .*'b;id:1' is not a host's name"),
        (SMALL, "HOSTS=a:1,b:2", "error: num_gpus is 2, but HOSTS=a:1,b:2 has 3 rank"),
        (SMALL, "HOSTS=a:1,b:1 LAUNCHER=srun", "error: HOSTS is for mpirun and horovodrun"),
        (SMALL, "SLURM_JOB_ID=7 SLURM_STEP_NUM_TASKS=2", "error: srun has started 2 of this launcher, .* type it without srun"),
        (SMALL, "LAUNCHER=ssh", "error: LAUNCHER=ssh: must be one of srun, mpirun, horovodrun, none"),
        (SMALL, "LAUNCHER=none", "error: LAUNCHER=none starts one process, but num_gpus is 2"),
        (SMALL, "LAUNCHER=mpirun CONTAINER_IMAGE=x", "error: LAUNCHER=mpirun: only srun starts ranks in CONTAINER_IMAGE"),
        (SMALL, "RESULTS_DIR=/dev/null/x", "error: RESULTS_DIR=/dev/null/x: /dev/null is a file, and must be"),
        (SMALL, "RESULTS_DIR=/tmp/r[1]", r"error: RESULTS_DIR=/tmp/r\[1\]: TensorFlow cannot .* has \[ \] .* rename"),
        (SMALL, "INIT_CHECKPOINT=base", r"error: bert_model \(position 15\) is tiny, .* 2 .* 128, but .* 12 "),
        (SMALL, "EARLY_STOPPING=2", "error: phase 1, of 18 updates: early_stopping=2 counts evaluations: give eval_steps, too"),
        (SMALL, "MASKED_LM_PROB=0.3", "error: MASKED_LM_PROB=0.3: 38 of 128 tokens, but phase 1 has 20 predictions; give"),
        (SMALL, "DATASET=books", "note: no sets of data.* DATASET=books"),
        (SMALL, "INIT_CHECKPOINT=/nonexistent", "note: INIT_CHECKPOINT=/nonexistent: there is no checkpoint"),
        (SMALL, "NO_NEXT_SENTENCE=1", "note: no sets of data.* DATA_FORMAT=tokens"),
    ],
    "pretraining_lamb_phase1": [
        (SMALL.replace(" 20 ", " 9 "), "", "updates_phase1 = 8"),
        (SMALL.replace(" 20 ", " 1 "), "", r"error: train_steps .position 11. is 1: phase 1 would have no update"),
    ],
    "pretraining_lamb_phase2": [
        (SMALL.replace(" 20 ", " 9 "), "", r"error: train_steps .position 11. is 9: phase 2 would have no update"),
    ],
    "pretraining_adam": [
        (ADAM, "", "global_batch_size = 128; effective_learning_rate = 0.0008; updates = 1144000"),
        (first(11, ADAM, "64 80"), "", "error: .*: max_predictions_per_seq=80: must be at most max_seq_length=64"),
    ],
    "pretraining_budget": [
        ("0", "", r"error: hours \(position 1\) is '0': must be a number above 0"),
        ("24 mini", "", "precision = fp32; updates = follow from the rate, which is measured first"),
        ("24 mini", "MASKED_LM_PROB=", "updates = follow from the rate, which is measured first"),
    ],
    "run_sub": [
        ("", "", run_sub(1, " 32 ", " 8 ")),
        ("", "SLURM_NTASKS=12", run_sub(1, " 32 ", " 12 ")),
        ("", "SLURM_JOB_NUM_NODES= SLURM_NTASKS_PER_NODE=", run_sub(1, " 32 ", " 8 ")),
        *(
            ("", f"SLURM_JOB_NUM_NODES=4 SLURM_NTASKS_PER_NODE=8 PHASE={phase} {variables}", run_sub(phase, old, new))
            for phase, variables, old, new in [
                (1, "BATCHSIZE=16 LEARNING_RATE=1.875e-4 NUM_ACCUMULATION_STEPS=128", "", ""),
                (1, "BATCHSIZE=auto", "16 2", "auto 2"),
                (2, "WARMUP_STEPS=9", "2000 200", "2000 9"),
                (1, "PRECISION=bf16 USE_XLA=false", "fp16 true", "bf16 false"),
                (1, "TRAIN_STEPS=9000 SAVE_CHECKPOINT_STEPS=5", "7820 100", "9000 5"),
            ]
        ),
        ("", "SLURM_NTASKS=32 SLURM_JOB_NUM_NODES=4", "global_batch_size_phase1 = 65536; global_batch_size_phase2 = 32768; updates_phase1 = 7038; updates_phase2 = 1564; srun = srun --ntasks=32 --ntasks-per-node=8 --distribution=block --kill-on-bad-exit=1 --mpi=none --cpu-bind=none; launcher = srun"),
        ("64 8", "", "error: 2 arguments, but there are 0, besides the variables .* surplus is from '64' on"),
        ("", "PHASE=3", "error: PHASE=3: must be one of 1, 2"),
        ("", "LEARNING_RATE=-1e-4 PHASE=2", r"error: learning_rate_phase2 \(position 5\) is '-1e-4': must be a number above 0"),
        ("", "BATCH_SIZE=32", "error: BATCH_SIZE=32: run.sub reads no such variable; did you mean BATCHSIZE?"),
    ],
    "squad": [
        (SQUAD, "", "global_batch_size = 100; effective_learning_rate = 5e-05; epochs = 1.1"),
        (SQUAD.replace(" 1.1 ", " 2.0 "), "SQUAD_DIR=/x", "squad_version = 2.0; squad_dir = /x"),
        ("/workspace/checkpoints/bert_uncased.pt 2.0 24", "", r"error: batch_size_per_gpu \(position 1\) is '/workspace"),
        (first(5, SQUAD, "4"), "", r"error: seq_length \(position 6\) is '4': must be a whole number of at least 8"),
        (first(5, SQUAD, "384 381"), "", "error: doc_stride=381 is as long as a window of max_seq_length=384"),
        (SQUAD.replace(WEIGHTS, "base"), "", r"error: bert_model \(position 8\) is large, .* 24 .* 1024, but .* 12 "),
        (SQUAD.replace(WEIGHTS, "none"), "", r"error: checkpoint is 'none' \(random weights\), which needs VOCAB_FILE"),
        (SQUAD, "EVAL_STEPS=1.5", "error: eval_steps=1.5: above 1 it is a number of updates"),
        (SQUAD, "SQUAD_DIR=/nonexistent", "note: .*train-v1.1.json does not exist; download it with data/bertPrep.py"),
    ],
    "squad_inference": [("8 some/checkpoint", "", r"error: batch_size \(position 2\) is 'some/checkpoint'")],
    "glue": [
        ("sst-2 16 3e-6 fp16 true 4", "", "task_name = sst-2; global_batch_size = 64; warmup_proportion = 0.1 (default)"),
        ("MRCP", "", "error: .*did you mean MRPC?"),
        ("custom", "", r"error: task_name \(position 1\) is 'custom': .*run_classifier.py --task_name=custom"),
        (first(10, GLUE, "1"), "", r"error: warmup_proportion \(position 11\) is '1': must be a number of at least 0, and below"),
        (GLUE, "GLUE_DIR=/nonexistent", "note: .*MRPC has no .*GLUE_DIR names the folder"),
        ("CoLA", "GLUE_DIR=glue", r"note: checkpoint \(position 12\) is '.*L-24.*': there is no checkpoint"),
    ],
    "glue_inference": [("some/checkpoint MRPC", "", "error: .*some/checkpoint")],
    "biobert/ner_bc5cdr-chem": [
        ("x auto", "", r"error: train_batch_size \(position 2\) is 'auto': must be a whole number"),
        ("", "BIOBERT_DIR=/x", "note: /x/BC5CDR/chem has no train.tsv and no devel.tsv and no test.tsv, with a token"),
    ],
    "biobert/ner_bc5cdr-disease": [
        ("", "BIOBERT_DIR=/x", "data_dir = /x/BC5CDR/disease"),
        ("x 8 1e-5 fp16", "", r"error: cased \(position 4\) is 'fp16': must be one of true, false"),
    ],
    "biobert/rel_chemprot": [
        ("x 16 1e-5 true fp32 true 2", "", "cased = true; global_batch_size = 32; eval_batch_size = 16 (default)"),
        ("base 8 1e-6 false fp16 true 1 512 large", "", r"error: bert_model \(position 9\) is large, .* 24 "),
        ("", "BIOBERT_DIR=/x", "note: /x/ChemProt has no train.tsv and no dev.tsv and no test.tsv, with index, .*; BIOBERT_DIR"),
    ],
    "biobert/run_pretraining-pubmed_base_phase_1": [
        ("", "", "global_batch_size = 65536; effective_learning_rate = 0.00154; updates = 19531"),
        ("128 3.2e-5 true", "", "max_predictions_per_seq = 20; init_checkpoint = download/google_pretrained_weights/cased_L-12_H-768_A-12/bert_model.ckpt"),
        ("128", "INIT_CHECKPOINT=other", "init_checkpoint = other"),
        ("128", "INIT_CHECKPOINT= DATASET=", "init_checkpoint = download/google_pretrained_weights/uncased_L-12_H-768_A-12/bert_model.ckpt"),
        ("8 1e-4 false fp16 true 16 300 200", "", "error: phase 1, .* warmup_steps=300 is more than num_train_steps=200"),
        ("", "", "note: .*L-12_H-768_A-12/bert_model.ckpt: there is no checkpoint"),
        ("", "INIT_CHECKPOINT=base", "note: no sets of data.*DATASET=pubmed_baseline, cased=False"),
    ],
    "biobert/run_pretraining-pubmed_base_phase_2": [
        (PUBMED_2, "INIT_CHECKPOINT=other", "init_checkpoint = some/checkpoint; global_batch_size = 32768"),
        ("some/checkpoint", "", "learning_rate = 2.9e-4 (default); warmup_steps = 434 (default); train_steps = 4340 (default); eval_batch_size = 26 (default)"),
        ("", "", r"error: init_checkpoint \(position 1\) is '': must be a text, not empty"),
        ("base 1 1 true", "DATASET=sample", "note: no sets of data.*DATASET=sample, cased=True"),
    ],
    "biobert/biobert_finetune_train_benchmark": [
        ("rel_chemprot 4 tiny true", "", "num_gpu 4, task rel_chemprot, bert_model tiny, cased true, seq_length 128, batch_size 32, precision fp32, use_xla true"),
        ("ner_bc5cdr", "", r"error: task \(position 1\) is 'ner_bc5cdr': must be one of ner_bc5cdr-chem, "),
    ],
    "biobert/biobert_finetune_inference_benchmark": [
        ("ner_bc5cdr-disease tiny", "", "num_gpu 1, task ner_bc5cdr-disease, bert_model tiny, cased false, seq_length 128, batch_size 8, precision fp32, use_xla true"),
        ("rel_chemprot base no", "", r"error: cased \(position 3\) is 'no': must be one of true"),
    ],
    "finetune_train_benchmark": [
        ("base 4", "", "num_gpu = 4; batch_size = 8 (default)"),
        ("base 0", "", r"error: num_gpu \(position 2\) is '0'"),
    ],
    "finetune_inference_benchmark": [
        ("large 8 8 fp16", "", r"error: precision \(position 3\) is '8': must be one of"),
        ("base 2 fp32 false", "", "seq_length 384, bert_model base, batch_size 2, precision fp32, use_xla false"),
    ],
}  # fmt: skip
for name, typed in DEFAULTS.items():
    pairs = [(argument.name, text) for argument, text in zip(find_recipe(name).arguments, typed.split())]
    CALLS[name].append(("", "", "; ".join(f"{argument} = {text} (default)" for argument, text in pairs)))
    CALLS[name].append((typed, "", "; ".join(f"{argument} = {text}" for argument, text in pairs)))


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A launcher's answer where nothing is on the machine but prepared data, the launchers and Horovod without GPUs."""
    pretend_machine(monkeypatch)
    monkeypatch.setattr(finetuning_sweeps, "find_rank_memory", lambda *_: RankMemory(6 * GIB, "a small GPU"))
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("base", "glue/CoLA"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "base/bert_config.json").write_text('{"num_hidden_layers": 12, "hidden_size": 768}')
    for name in ("train", "dev"):
        (tmp_path / f"glue/CoLA/{name}.tsv").touch()
    for name, value in {"DRY_RUN": "1", "DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)

    def answer(recipe, typed, variables=""):
        for pair in variables.split():
            monkeypatch.setenv(*pair.split("=", 1))
        try:
            code = launch.__wrapped__(["launch", recipe, *typed.split()])
        except UserError as error:
            assert "\n" not in str(error)
            return f"error: {error}"
        shown = capsys.readouterr().out
        assert code == 0 and "DRY_RUN: nothing was started" in shown
        return shown

    return answer


@pytest.mark.parametrize("recipe, typed, variables, expected", [(name, *row) for name in CALLS for row in CALLS[name]])
def test_calls(call, recipe, typed, variables, expected):
    shown = call(recipe, typed, variables)
    kind, _, pattern = expected.partition(": ")
    if kind == "error":
        assert re.search(expected, shown), shown
    elif kind == "note":
        notes = [line for line in shown.splitlines() if line.startswith("note: a real run would stop here: ")]
        assert any(re.search(pattern, line) for line in notes), shown
    else:
        assert set(expected.split("; ")) <= set(shown.splitlines()), shown


def test_a_sweep_has_the_sizes_that_fit(call):
    sweep = re.findall("model base, seq_length (.*), batch_size (.*), prec", call("finetune_train_benchmark", ""))
    assert sweep == [*(("128", size) for size in "1 2 4 8 16".split()), *(("384", size) for size in "124")]


def test_every_launcher_has_its_calls_and_a_script_of_its_name():
    for name in find_recipes():
        assert {row[2].startswith("error: ") for row in CALLS[name]} == {True, False}, name
        is_called_so = name.endswith("benchmark") or "/" in name
        script = {"run_sub": "run.sub"}.get(name, f"{'' if is_called_so else 'run_'}{name}.sh")
        assert f" -m bert_tf.launch {name} " in (ROOT / "scripts" / script).read_text()


@pytest.mark.parametrize(
    "num_gpus, variables, said",
    [
        ("8", "", "num_gpus is 8, but 4 GPU(s)"),
        ("4", "", "device = GPU (4 on this machine)"),
        ("8", "HOSTS=a:4,b:4", "device = GPU"),
        ("4", "CUDA_VISIBLE_DEVICES=0,3,-1,1", "num_gpus is 4, but 2 GPU(s)"),
        ("8", "CUDA_VISIBLE_DEVICES=0,1,2,3,4", "num_gpus is 8, but 4 GPU(s)"),
        ("4", "CUDA_VISIBLE_DEVICES=", "device = CPU (4 rank(s)"),
        ("8", "DEVICE=cpu", "device = CPU (8 rank(s)"),
    ],
)
def test_fewer_gpus_than_asked_for(call, tmp_path, monkeypatch, num_gpus, variables, said):
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path / "bin", *"abcd"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert said in call("pretraining_lamb", first(7, LAMB, num_gpus), variables)


def test_help(capsys):
    for typed, expected in (("squad --help", "values of squad, by position"), ("run_sub -h", "vari"), ("-h", "squad")):
        assert launch.__wrapped__(["launch", *typed.split()]) == 0
        assert expected in capsys.readouterr().out
    with pytest.raises(UserError, match="there is no launcher 'squat'; there are .*; did you mean squad?"):
        launch.__wrapped__(["launch", "squat"])


# --- By the shell --------------------------------------------------------------------------------


def by_bash(command, **variables):
    """What bash answers in the checkout: its exit code, and the two outputs."""
    done = answer("bash", "-c", command, cwd=ROOT, DRY_RUN="1", CUDA_VISIBLE_DEVICES="", **variables)
    return done.returncode, done.stdout, done.stderr


def configurations(kind, **variables):
    """What each function of a file of configurations prints."""
    print_all = 'for name in $(compgen -A function); do [[ $name == _* ]] || echo "$name $($name)"; done'
    _, lines, _ = by_bash(f"source 'scripts/configs/{kind}_config.sh' && {print_all}", **variables)
    return dict(line.split(" ", 1) for line in lines.splitlines())


def test_configurations(call):
    batches = {}
    for name, typed in configurations("pretrain").items():
        shown = values_of(call("pretraining_lamb", typed))
        batches[name] = (shown["global_batch_size_phase1"], shown["global_batch_size_phase2"])
        assert len(typed.split()) == 15
    assert batches == {
        "dgxa100_8gpu_fp16": ("79872", "30720"),
        "dgxa100_8gpu_tf32": ("90112", "33792"),
        "dgx2_16gpu_fp16": ("61440", "30720"),
        "dgx2_16gpu_fp32": ("65536", "30720"),
        "dgx1_8gpu_fp16": ("61440", "30720"),
        "dgx1_8gpu_fp32": ("65536", "30720"),
    }
    of_squad = {
        "dgxa100_8gpu_fp16": "76 3e-5 fp16 true 8",
        "dgxa100_8gpu_tf32": "38 7.5e-6 tf32 true 8",
        "dgx2_16gpu_fp16": "12 3.75e-6 fp16 true 16",
        "dgx2_16gpu_fp32": "8 2.5e-6 fp32 true 16",
        "dgx1_8gpu_fp16": "6 5e-6 fp16 true 8",
        "dgx1_8gpu_fp32": "3 5e-6 fp32 true 8",
    }
    typed = configurations("squad", SQUAD_VERSION="2.0")
    assert typed == {name: f"{numbers} 384 128 large 2.0 {WEIGHTS} 2.0" for name, numbers in of_squad.items()}
    assert not any(call("squad", text).startswith("error") for text in typed.values())


@pytest.mark.parametrize("recipe, config", [("pretraining_lamb", "pretrain"), ("squad", "squad")])
def test_a_misspelt_configuration_is_refused(recipe, config):
    """It must not become no arguments, which would mean all defaults."""
    name = "dgx1_8gpu_fp61"
    typed = f"$(source scripts/configs/{config}_config.sh && {name})"
    code, output, errors = by_bash(f"bash scripts/run_{recipe}.sh {typed}")
    named, known, refused = errors.splitlines()
    assert (code, output) == (2, "") and named.endswith(f"{name}: command not found")
    assert known.startswith("error: the configurations are dgx1_8gpu_fp16 dgx1_8gpu_fp32 dgx2_")
    assert "'no-configuration'" in refused
