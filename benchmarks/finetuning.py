"""Speed of fine-tuning and of predicting with a task's head, from random weights, on made-up rows without padding.

    python -m benchmarks finetuning --mode=predict --bert_model=base --batch_size=8

Started by scripts/finetune_train_benchmark.sh and finetune_inference_benchmark.sh and those of scripts/biobert, also on
several ranks. A batch is timed from the end of its copy to the device until its outputs are on the host; the first two,
which compile, do not count.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Callable

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.child import timed
from bert_tf.base.errors import exit_on_user_error
from bert_tf.base.machine.hardware import choose_device
from bert_tf.bert_config import GOOGLE_CASED_VOCAB_SIZE, GOOGLE_VOCAB_SIZE, PRESETS, BertConfig
from bert_tf.settings.training import PRECISIONS

NEEDS = "nothing; several ranks by scripts/finetune_train_benchmark.sh"
NUM_WARM_UP = 2
MIN_BATCHES = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("train", "predict"), default="predict")
    parser.add_argument("--bert_model", choices=PRESETS, default="base")
    parser.add_argument("--task", choices=("squad", "entities", "classes"), default="squad")
    parser.add_argument("--cased", choices=("true", "false"), default="false", help="whose vocabulary, of Google's")
    parser.add_argument("--batch_size", type=int, default=8, help="of one rank")
    parser.add_argument("--seq_length", type=int, default=384)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--use_xla", choices=("true", "false"), default="false")
    parser.add_argument("--secs", type=float, default=30.0, help="how long to measure, five batches at least")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--use_horovod", action="store_true")
    parser.add_argument("--dllog_path")
    return parser.parse_args()


def make_batch(args: argparse.Namespace, workers) -> Callable[[], object]:
    """A function that makes one update, or one prediction, and waits for the result."""
    from benchmarks.made_up import HEADS, made_up_rows, make_state
    from bert_tf.base.tensorflow import tf
    from bert_tf.interchange.saved_model import INPUTS
    from bert_tf.memory.plan import Workload
    from bert_tf.model.backends import choose_scope
    from bert_tf.tasks.predict import compile_model
    from bert_tf.training.step import TrainStep

    tf.config.experimental.enable_tensor_float_32_execution(args.precision == "tf32")
    vocab_size = GOOGLE_CASED_VOCAB_SIZE if args.cased == "true" else GOOGLE_VOCAB_SIZE
    config = BertConfig.preset(args.bert_model, vocab_size)
    scope = choose_scope(args.use_xla == "true", "auto", False)
    work = Workload(config, args.seq_length, 0, scope, args.batch_size, args.precision)
    head = HEADS[args.task]
    rows, state = made_up_rows(work, num_steps=1, head=head), make_state(work, "adamw", head=head)
    if args.mode == "predict":
        compute, inputs = compile_model(state.model), {name: rows[name][0] for name in INPUTS}
        return lambda: [output.numpy() for output in compute(inputs)]
    state.broadcast(workers)
    step, number = TrainStep(state, head.objective(), workers, seed=1), iter(range(10**9))
    return lambda: step(rows, next(number)).metrics.numpy()


def measure(batch: Callable[[], object], min_secs: float, workers) -> list[float]:
    """Seconds of each batch; all ranks run as many."""
    last = [timed(batch)[0] for _ in range(NUM_WARM_UP)][-1:]
    slowest = float(workers.gather(np.array(last)).max())
    return [timed(batch)[0] for _ in range(max(MIN_BATCHES, round(min_secs / slowest)))]


@exit_on_user_error
def main(argv: list[str]) -> None:
    args = arguments()
    choose_device(args.device)
    from bert_tf.ranks.connect import connect
    from bert_tf.run.sinks import DLLogger
    from bert_tf.tasks.predict import Predicted

    workers = connect(args.use_horovod)
    secs = measure(make_batch(args, workers), args.secs, workers)
    if not workers.is_chief:
        return
    speed = Predicted((), secs, args.batch_size * workers.size)
    print("random weights, made-up rows")
    print("\n".join(speed.describe_speed()), flush=True)
    if args.dllog_path:
        logger = DLLogger(args.dllog_path)
        name = "throughput_train" if args.mode == "train" else "throughput_val"
        settings = {name: value for name, value in vars(args).items() if name != "dllog_path"}
        logger.log("PARAMETER", {**settings, "num_ranks": workers.size})
        figures = speed.speed()
        logger.log([], {name: figures.pop("throughput_val"), **figures})


if __name__ == "__main__":
    main(sys.argv)
