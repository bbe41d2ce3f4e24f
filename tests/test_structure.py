"""The house rules: layers, no side effects, lengths, and the flags that people's scripts use."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = sorted(path for folder in ("bert_tf", "data") for path in (ROOT / folder).rglob("*.py"))
PROGRAMS = sorted(ROOT.glob("run_*.py"))
MAX_FUNCTION_LINES, MAX_MODULE_LINES = 80, 500

# A module imports from its own layer and from those above it, never from below.
LAYERS = [
    {"errors", "files", "progress", "command_line", "example_proto", "record_frames"},
    {"config", "tokenization", "masking", "records", "data_order", "memory", "packing", "squad"},
    {"randomness", "blocks", "model", "losses", "optimization", "input_pipeline", "checkpoint"},
    {"distributed", "telemetry", "telemetry_sinks", "loss_watch", "report", "run_folder"},
    {"train_step", "interval", "memory_trial"},
    {"training", "replay", "finetuning", "inference"},
    {"launch"},
]
WITHOUT_TENSORFLOW = LAYERS[0] | LAYERS[1] | {"loss_watch", "report", "run_folder", "launch"}

FLAGS = {
    "run_pretraining.py": """
        adam_bias_correction allreduce_compression bert_config_file bert_model continue_with_changes continuous_join
        deterministic display_loss_steps dllog_path enable_xla eval_batch_size eval_files global_batch_size
        gpu_memory_gib init_checkpoint input_files keep_checkpoints lamb_adapt_excluded learning_rate max_eval_steps
        max_predictions_per_seq max_seq_length model_dir num_accumulation_steps num_train_steps optimizer_type packing
        plan precision recompute replay_update save_checkpoint_steps seed train_batch_size use_horovod warmup_steps
        xla_scope""",
    "run_squad.py": """
        bert_config_file continue_with_changes display_loss_steps dllog_path do_lower_case doc_stride enable_xla eval
        global_batch_size gpu_memory_gib init_checkpoint keep_checkpoints learning_rate max_answer_length
        max_query_length max_seq_length mode model_dir n_best_size null_score_diff_threshold num_accumulation_steps
        num_train_epochs plan precision predict_batch_size predict_file recompute save_checkpoint_steps seed
        train_batch_size train_file use_horovod version_2_with_negative vocab_file warmup_proportion xla_scope""",
}


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path):
    """Dotted names of everything a module imports, at any depth."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(dotted):
    """``bert_tf.squad.features`` -> ``squad``; None for anything outside bert_tf."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == "bert_tf" and len(parts) > 1 else None


def room_of_file(path):
    return path.relative_to(ROOT / "bert_tf").parts[0].removesuffix(".py")


def layer_of(name):
    return next((number for number, layer in enumerate(LAYERS) if name in layer), None)


BERT_TF = [path for path in PRODUCT if path.is_relative_to(ROOT / "bert_tf") and path != ROOT / "bert_tf/__init__.py"]


@pytest.mark.parametrize("path", BERT_TF, ids=names(BERT_TF))
def test_imports_go_upwards(path):
    own = layer_of(room_of_file(path))
    assert own is not None, f"{path.name} has no place in LAYERS"
    for dotted in imported(path):
        assert dotted.split(".")[0] not in ("data", "tests"), dotted
        if room(dotted):
            assert layer_of(room(dotted)) is not None and layer_of(room(dotted)) <= own, dotted
        if dotted.split(".")[0] in ("tensorflow", "keras"):
            assert room_of_file(path) not in WITHOUT_TENSORFLOW, dotted
        if dotted.split(".")[0] == "horovod":
            assert room_of_file(path) == "distributed" or (
                room_of_file(path) == "launch" and dotted.startswith("horovod.runner.")
            )


@pytest.mark.parametrize("path", [path for path in PRODUCT if path not in BERT_TF])
def test_data_uses_only_the_top_of_the_library(path):
    for dotted in imported(path):
        assert dotted.split(".")[0] not in ("tensorflow", "keras", "horovod"), dotted
        allowed = (
            None,
            "errors",
            "files",
            "progress",
            "masking",
            "records",
            "record_frames",
            "tokenization",
            "example_proto",
        )
        assert room(dotted) in allowed, dotted


WITHOUT_FLAGS = [path for path in PRODUCT if path.name != "command_line.py"]  # the programs' shared part


@pytest.mark.parametrize("path", WITHOUT_FLAGS, ids=names(WITHOUT_FLAGS))
def test_flags_stay_in_the_programs(path):
    used = {node.id for node in ast.walk(parsed(path)) if isinstance(node, ast.Name)}
    assert "FLAGS" not in used
    assert not any(dotted.startswith("absl.flags") for dotted in imported(path))


EVERYTHING = [*PRODUCT, *PROGRAMS]


@pytest.mark.parametrize("path", EVERYTHING, ids=names(EVERYTHING))
def test_lengths(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"
    length = len(path.read_text(encoding="utf-8").splitlines())
    assert length <= MAX_MODULE_LINES, f"{length} lines: split it by meaning"


def test_importing_has_no_side_effects(tmp_path):
    """One process imports everything without TensorFlow; it says, writes, starts and warns nothing."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in PRODUCT
        if path.stem not in ("__init__", "__main__")
        and (path not in BERT_TF or room_of_file(path) in WITHOUT_TENSORFLOW)
    ]
    check = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import importlib, os, threading, random, logging\n"
        "state = random.getstate(), len(logging.root.handlers), dict(os.environ), os.getcwd()\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "assert state == (random.getstate(), len(logging.root.handlers), dict(os.environ), os.getcwd())\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "loaded = {'tensorflow', 'keras', 'horovod'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    answer = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_rest_says_nothing(tmp_path):
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in BERT_TF
        if path.stem not in ("__init__", "__main__") and room_of_file(path) not in WITHOUT_TENSORFLOW
    ]
    check = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "assert 'horovod' not in sys.modules\n"
        # Asking for devices would settle them before a program can choose.
        "from tensorflow.python.eager import context\n"
        "assert not context.context()._initialized\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", FLAGS)
def test_flags_are_frozen(program):
    """People's scripts use these names; add the new one here, and think twice before taking one away."""
    defined = [
        node.args[0].value
        for path in (ROOT / program, ROOT / "bert_tf/command_line.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("DEFINE_")
    ]
    assert sorted(defined) == sorted(FLAGS[program].split())
