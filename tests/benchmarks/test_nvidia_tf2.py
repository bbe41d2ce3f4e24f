"""The benchmark beside NVIDIA's TF2 code, as far as it goes without that code."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import nvidia_tf2
from benchmarks.variants import nvidia_tf2 as their_side
from bert_tf.optimizer import update_rules


def test_coefficients_in_float32_are_those_of_float32_while_they_are_asked_for():
    def second_moment():
        step, g = tf.constant(3.0), tf.ones([1])
        weight = update_rules._running_mean(tf.zeros([1]), g, 0.999, tf.constant(True))
        return float(weight[0]), float(update_rules._weight_sum(0.999, step))

    with nvidia_tf2.float32_coefficients():
        rounded = second_moment()
    assert rounded == pytest.approx((0.001, 1 - 0.999**3), rel=1e-4)
    assert all(value * 2**24 == int(value * 2**24) for value in rounded)  # as a difference from 1 is
    assert second_moment() == pytest.approx((0.001, 1 - 0.999**3), rel=1e-7) != rounded


def test_their_names_are_ours():
    class Variable:
        def __init__(self, name):
            self.name = name

    names = {
        "transformer/layer_3/self_attention/key/bias:0": "bert/encoder/layer_3/attention/self/key/bias",
        "predictions/transform/logits/kernel:0": their_side.NEXT_SENTENCE,
        "predictions/transform/logits/bias:0": "cls/seq_relationship/output_bias",
    }
    assert {their_side.our_name(Variable(name)) for name in names} == set(names.values())


def test_what_runs_among_their_packages_needs_none_that_they_lack():
    block = "import sys; sys.modules.update(dict.fromkeys(['tokenizers', 'filelock', 'dask']))"
    variants = "import benchmarks.variants.nvidia_tf2, benchmarks.variants.tf_models"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}; {variants}"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_batches_are_arrays_with_varying_numbers_of_masked_tokens(tmp_path):
    words = ["straße", "日", "alpha", "beta", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]), "utf-8")
    (tmp_path / "text.txt").write_text("Straße alpha beta. Beta 日 alpha straße. Alpha.\n" * 40, "utf-8")
    options = argparse.Namespace(
        text=[tmp_path / "text.txt"], vocab_file=tmp_path / "vocab.txt", seq_length=32, predictions=5
    )
    batches = nvidia_tf2.make_batches(SimpleNamespace(options=options, folder=tmp_path))
    number = nvidia_tf2.NUM_UPDATES * nvidia_tf2.BATCH_SIZE
    assert {type(values) for values in batches.values()} == {np.ndarray}
    assert batches["input_ids"].shape == (number, 32)
    assert len(set(batches["masked_lm_weights"].sum(axis=1))) > 2
