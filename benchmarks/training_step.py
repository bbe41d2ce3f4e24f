"""One pre-training update of this project beside tf-models-official, Hugging Face and NVIDIA's TF2 code.

Every variant is a process in its own environment. All get the same random batch of full rows, accumulate the same
micro-batches, clip and apply.

    python -m benchmarks training_step --bert_model mini --rounds 15
    python -m benchmarks training_step --no_peers --label versions --also 2.20=.venv-2.20/bin/python
"""

from __future__ import annotations

import argparse

from benchmarks.frame import Bench, Variant
from benchmarks.variants.nvidia_tf2 import checkout_folder, describe
from bert_tf.bert_config import BertConfig

NEEDS = "peers tf_models, pytorch; nvidia_tf2 with --checkout"
ROUNDS = 15


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bert_model", default="mini")
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--seq_length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--micro_batch_size", type=int, default=16)
    parser.add_argument("--num_accumulation_steps", type=int, default=2)
    parser.add_argument("--checkout", type=checkout_folder, help="of NVIDIA/DeepLearningExamples, to compare with")
    parser.add_argument("--also", action="append", default=[], help="TensorFlow=PYTHON: ours in that environment, too")
    parser.add_argument("--ours", default="blocks/fp32,blocks/bf16", help="scope/precision of our variants, by comma")


def run(bench: Bench) -> None:
    options = bench.options
    config = BertConfig.preset(options.bert_model, options.vocab_size).to_dict()
    settings = {**vars(options), "bert_config": config}

    def update(module: str, peer: str = "", **more: str) -> Variant:
        return Variant(f"benchmarks.variants.{module}:update", {**settings, **more}, peer, warm_up=2)

    variants = {}
    if options.checkout:
        bench.note(describe(options.checkout))
        variants["NVIDIA TF2, its LAMB, fp32"] = update("nvidia_tf2", "nvidia_tf2")
    variants["tf-models-official, its LAMB, fp32"] = update("tf_models", "tf_models")
    for precision in ("fp32", "bf16"):
        name = f"Hugging Face on PyTorch, fused AdamW, {precision}"
        variants[name] = update("hugging_face", "pytorch", precision=precision)
    for scope, precision in (part.split("/") for part in options.ours.split(",")):
        ours = update("this_project", scope=scope, precision=precision)
        variants[f"this project, {precision}, scope {scope}"] = ours
        for version, _, python in (text.partition("=") for text in options.also):
            variants[f"with TensorFlow {version}, {precision}, scope {scope}"] = ours._replace(python=python)
    steps, size = options.num_accumulation_steps, options.micro_batch_size
    title = f"{options.bert_model}, length {options.seq_length}: {steps} x {size} sequences"
    # On one core processor time is what the clock would show on an idle machine.
    clock = "cpu" if len(bench.cores) == 1 else "wall"
    bench.compare(title, variants, amount=size * steps, unit="sequences", clock=clock)
