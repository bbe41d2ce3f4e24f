"""The prediction of memory: its parts add up, it orders configurations rightly, and the split follows from it."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from bert_tf.base.machine import hardware
from bert_tf.base.machine.hardware import GIB
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.google import read_checkpoint
from bert_tf.memory import plan as memory
from bert_tf.memory.plan import Workload, find_rank_memory, largest_micro_batch, plan, predict
from bert_tf.memory.split import complete_config
from bert_tf.model.heads import ClassifierModel, MaskedWordModel, PretrainingModel, SpanModel
from bert_tf.model.kernels import requirements
from bert_tf.optimizer import keras_optimizers
from bert_tf.optimizer.keras_optimizers import LARS, make_optimizer
from bert_tf.optimizer_registry import OPTIMIZERS
from bert_tf.ranks.workers import Workers
from bert_tf.run.variables import file_tensors, named_variables, open_checkpoint, save_tensors
from bert_tf.settings.programs import PretrainingOptions, ProgramOptions
from bert_tf.settings.training import AUTO, BatchSplit, FinetuningConfig, PretrainingConfig, TrainingConfig
from bert_tf.tasks.pretraining.task import PretrainingTask
from tests import processes
from tests.processes import ROOT
from tests.refusals import refused
from tests.small_models import small_config

SMALL = small_config()
LARGE = Workload(BertConfig.preset("large", 30522), 512, 80, "blocks")


def change(work=LARGE, **changes):
    return dataclasses.replace(work, **changes)


@pytest.mark.parametrize(
    "model, num_predictions, options",
    [
        (PretrainingModel(SMALL), 4, {}),
        (MaskedWordModel(SMALL), 4, {"no_next_sentence": True}),
        (SpanModel(SMALL), 0, {}),
        (ClassifierModel(SMALL, 2), 0, {"classifies": True}),
    ],
)
def test_parameters_are_those_that_the_model_trains(model, num_predictions, options):
    counted = sum(variable.shape.num_elements() for variable in model.trainable_variables)
    assert Workload(SMALL, 16, num_predictions, "off", **options).num_parameters == counted


def test_weights_moments_and_sums_are_float32_in_every_precision():
    assert LARGE.num_parameters == 336_226_108 + 6 * 1025  # Google's, and the word table's 6 rows more
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        found = predict(change(precision=precision))
        assert {found.weights, found.gradients, found.moments / 2} == {4.0 * LARGE.num_parameters}
        assert found.total == sum(dataclasses.astuple(found))


MEASURED = json.loads((ROOT / "benchmarks/results/records/gpu_h200.json").read_text())


@pytest.mark.parametrize("has_kernels, rows", [(True, MEASURED["rows"]), (False, MEASURED["before"]["rows"])])
def test_a_gpu_was_handed_out_what_is_planned_or_a_little_less(has_kernels, rows):
    for row in rows:
        config = BertConfig.preset(row["model"], 30522)
        shape = (row["length"], row["predictions"], "step", row["micro_batch"], "bf16")
        ratio = predict(Workload(config, *shape, has_kernels=has_kernels)).total / (row["memory_peak_gib"] * GIB)
        assert 1.0 <= ratio < 1.02, row


def test_kernels_are_planned_only_where_they_run(tmp_path, monkeypatch):
    step = change(scope="step", precision="fp16", has_kernels=True)
    assert step.uses_kernels
    for changes in ({"precision": "fp32"}, {"scope": "blocks"}, {"sequence_length": 500}, {"has_kernels": False}):
        assert not change(step, **changes).uses_kernels
    config = PretrainingConfig(num_train_steps=1, xla_scope="step", precision="fp16")
    code = tmp_path / "launch.so"
    code.touch()
    for capabilities, triton, compiled, expected in (
        ([(9, 0), (8, 0)], object(), code, True),
        ([(9, 0), (7, 0)], object(), code, False),
        ([(9, 0)], None, code, False),
        ([(9, 0)], object(), tmp_path / "missing.so", False),
        ([], object(), code, False),
    ):
        monkeypatch.setattr(requirements, "compute_capabilities", lambda found=capabilities: found)
        monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda _, found=triton: found)
        monkeypatch.setattr(requirements, "compiled_file", lambda _, found=compiled: found)
        sizes = dict(sequence_length=512, num_predictions=80)
        assert Workload.from_config(config, ProgramOptions(), SMALL, **sizes).has_kernels == expected


def test_predictions_that_do_not_fill_the_kernels_rows_are_planned_as_those_of_xla(monkeypatch):
    """As `fused_blocks.WordLoss` says; XLA keeps three bytes more of each logit."""
    work = change(scope="step", precision="fp16", has_kernels=True, num_predictions=77, micro_batch_size=63)
    planned = predict(work).total
    monkeypatch.setattr(memory, "LOSS_UNIT", 77)
    assert planned - predict(work).total == 3 * 63 * 77 * work.bert_config.padded_vocab_size


@pytest.mark.parametrize("slots", [(), ("momentum",), ("fast", "slow", "adam_v")])
def test_a_new_optimizer_is_planned_and_saved_by_its_entry_alone(monkeypatch, tmp_path, slots):
    """Its slots of the word table have one row per piece in files, as the table itself."""
    made = type("New", (LARS,), {"slot_names": slots})
    monkeypatch.setattr(keras_optimizers, "New", made, raising=False)
    monkeypatch.setitem(OPTIMIZERS, "new", OPTIMIZERS["lars"]._replace(class_name="New", slots=slots))
    monkeypatch.setattr(TrainingConfig, "optimizer_type", "new")
    config, sizes = FinetuningConfig(xla_scope="blocks"), dict(sequence_length=512, num_predictions=0)
    found = predict(Workload.from_config(config, ProgramOptions(), SMALL, **sizes))
    model, optimizer = SpanModel(SMALL), make_optimizer("new", 0.1, 1, 10)
    optimizer.build(model.trainable_variables)
    assert sum(4 * slot.shape.num_elements() for slot in optimizer.slot_variables) == found.moments
    save_tensors(tmp_path / "x", file_tensors([*model.variables, *optimizer.slot_variables], SMALL.vocab_size))
    table = "bert/embeddings/word_embeddings"
    shapes = open_checkpoint(tmp_path / "x").shapes
    assert all(shapes[f"{table}/{slot}"] == shapes[table] == [101, 32] for slot in slots)
    assert set(read_checkpoint(tmp_path / "x").shapes) == set(named_variables(model.variables))


@pytest.mark.parametrize(
    "more, less",
    [
        (dict(micro_batch_size=8), dict(micro_batch_size=4)),
        (dict(), dict(precision="bf16")),
        (dict(scope="off"), dict()),
        (dict(num_ranks=2, recompute=True), dict(recompute=True)),
        (dict(), dict(sequence_length=384)),
        (dict(), dict(num_predictions=0)),
    ],
)
def test_what_needs_more(more, less):
    assert predict(change(**more)).total > predict(change(**less)).total
    kept, again = (predict(change(micro_batch_size=8, recompute=recompute)) for recompute in (False, True))
    assert again.activations + again.workspace < 0.25 * (kept.activations + kept.workspace), "about one layer"


def test_the_largest_micro_batch_divides_the_rows_and_fits():
    work, limit = change(recompute=True), 11 * GIB
    size = largest_micro_batch(work, limit, 96)
    assert 96 % size == 0 and memory.fits(change(work, micro_batch_size=size), limit)
    following = next(larger for larger in range(size + 1, 97) if 96 % larger == 0)
    assert not memory.fits(change(work, micro_batch_size=following), limit)
    assert largest_micro_batch(work, GIB, 96) == 1  # nothing fits; the run itself will say so


class TwoRanks:
    """The second one has half the memory of the first."""

    size, is_chief = 2, True

    def gather(self, values):
        return np.stack([values, values // 2])


@pytest.mark.parametrize("gib, words", [(64, "4 micro-batch(es) of 16 on each rank fit\n"), (1, " rank do not fit, ")])
def test_auto_says_whether_what_it_has_found_fits(capsys, gib, words):
    options = ProgramOptions(global_batch_size=64, gpu_memory_gib=gib)
    complete_config(FinetuningConfig(train_batch_size=AUTO), options, lambda _: LARGE, Workers())
    assert words in capsys.readouterr().out


def test_the_flags_of_a_split():
    tiny = Workload(BertConfig.preset("tiny", 1000), 128, 20, "off", num_ranks=2)

    def choose(size, num_steps=None, global_size=None):
        options = ProgramOptions(num_accumulation_steps=num_steps, global_batch_size=global_size, gpu_memory_gib=1.0)
        config = FinetuningConfig(train_batch_size=size, num_accumulation_steps=num_steps or 1)
        return complete_config(config, options, lambda _: tiny, TwoRanks()).split()

    assert choose(8) == BatchSplit(8, 1, 2) and choose(8, 4) == BatchSplit(8, 4, 2)
    assert choose(AUTO, None, 64) == BatchSplit(16, 2, 2)
    for arguments, words in (
        ((AUTO,), "belong together: .* not auto and None"),
        ((AUTO, 2, 64), "finds --num_accumulation_steps by itself"),
        ((AUTO, None, 63), "multiple of the 2"),
        ((8, None, 64), "belong together: .* not 8 and 64"),
    ):
        refused(words, choose, *arguments)


def test_the_device(monkeypatch):
    assert find_rank_memory(11, 8).num_bytes == 11 * GIB
    monkeypatch.setattr(memory, "gpu_memories", lambda: [16 * GIB, 11 * GIB])
    assert find_rank_memory(None, 2) == (11 * GIB, "the GPU's memory")
    monkeypatch.setattr(memory, "gpu_memories", list)
    assert find_rank_memory(None, 2).num_bytes == pytest.approx(find_rank_memory(None, 1).num_bytes / 2, rel=0.2)
    monkeypatch.setattr(hardware, "memory_limit", lambda: 1 << 30)
    assert find_rank_memory(None, 1).num_bytes < 1 << 30, "a container's limit counts"


def test_the_table_says_what_fits():
    lines = plan(LARGE, find_rank_memory(11, 1))
    text = "\n".join(lines)
    assert "336.2 million parameters" in text and "11.00 GiB" in text
    rows = {int(line.split()[0]): line for line in lines if line[:11].strip().isdigit()}
    assert "*" in rows[1] and "*" not in rows[max(rows)] and len(rows) > 4
    marked = [line.count("*") for line in rows.values()]
    assert marked == sorted(marked, reverse=True)
    # Recomputation is planned as it runs: in blocks, also where the whole step would be compiled without.
    of_step = [line for line in plan(change(scope="step"), find_rank_memory(11, 1)) if line[:11].strip().isdigit()]
    assert [line.split()[-1] for line in of_step[:5]] == [line.split()[-1] for line in list(rows.values())[:5]]


def test_a_plan_for_a_named_gpu_has_the_gpus_scope_and_needs_no_records():
    flags = ["--plan", "--enable_xla", "--gpu_memory_gib=32", "--bert_model=large"]
    done = processes.run([sys.executable, str(ROOT / "run_pretraining.py"), *flags])
    assert done.returncode == 0, done.stderr
    vocabulary, model, work, *_ = done.stdout.splitlines()
    assert vocabulary == "without --input_files: Google's vocabulary of 30,522 pieces"
    assert model.startswith("model: 24 layers x 1024, vocabulary of 30522") and "scope step" in work


@pytest.mark.parametrize("packing, expected, share", [(False, 5, 0.25), (True, 6, 0.5)])
def test_a_packed_row_is_planned_with_the_predictions_and_instances_that_it_has_room_for(packing, expected, share):
    """With the instances' first positions and in whole eights, these are what the last layer computes."""
    config = PretrainingConfig(max_seq_length=32, max_predictions_per_seq=5, packing=packing)
    work = PretrainingTask.workload(config, PretrainingOptions(model_dir="unused"), SMALL)
    assert work.num_predictions == expected and work.last_layer_share == share


@pytest.mark.parametrize(
    "scope, threads, for_gpu, expected",
    [("blocks", 8, False, 2), ("off", 1, False, 1), ("step", 8, False, 1), ("blocks", 8, True, 1)],
)
def test_on_a_cpu_with_threads_two_micro_batches_are_computed_at_once(monkeypatch, scope, threads, for_gpu, expected):
    monkeypatch.setattr(memory, "count_cores", lambda: threads)
    for given in (str(threads), "0"):  # TensorFlow's word for "all cores"
        monkeypatch.setenv("TF_NUM_INTEROP_THREADS", given)
        assert memory.micro_batches_at_once(scope, for_gpu) == expected


def test_two_micro_batches_at_once_are_planned_only_where_an_update_has_two():
    work = change(num_at_once=2)
    assert predict(work).activations == predict(change(micro_batch_size=2)).activations
    assert memory.split_into(work, 8, 1) == change(micro_batch_size=8)
    limit = predict(memory.split_into(work, 8, 1)).total + memory.PROGRAM
    assert largest_micro_batch(work, limit, 8) == 8  # one micro-batch, so that there is no second one
    assert largest_micro_batch(work, limit, 16) == 4 and largest_micro_batch(change(), limit, 16) == 8
    assert "two micro-batches" in plan(work, find_rank_memory(11, 1))[-1]
    assert "two micro-batches" not in plan(change(), find_rank_memory(11, 1))[-1]
