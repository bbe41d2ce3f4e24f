"""Checks a user's vocabulary for quickstart.sh, and says how long pre-training with it will take.

    python scripts/own_vocabulary.py VOCAB_FILE [VALUE ...]

The values are those of run_pretraining_lamb.sh.

An update of phase 1 is timed with random weights and rows, in as many processes at once as there will be ranks, because
ranks share memory and cores; the time of phase 2 is estimated from its arithmetic. Prints 1 for a lower-cased
vocabulary, 0 for a cased one; the time goes to standard error.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bert_tf.base.command_line import CommandParser  # noqa: E402
from bert_tf.base.errors import UserError, exit_on_user_error  # noqa: E402
from bert_tf.base.machine import count_cores  # noqa: E402
from bert_tf.bert_config import BertConfig  # noqa: E402
from bert_tf.launch import lamb  # noqa: E402
from bert_tf.launch.pretraining import Phase  # noqa: E402
from bert_tf.run.gpus import pretraining_flops_per_sequence  # noqa: E402
from bert_tf.text.tokenizer import CasingFlags, open_vocab_file  # noqa: E402

NUM_TIMED = 3


def secs_per_update(phase: Phase, config: BertConfig, scope: str) -> float:
    import tensorflow as tf

    from benchmarks.made_up import made_up_rows, make_step
    from bert_tf.memory.plan import Workload

    tf.config.threading.set_intra_op_parallelism_threads(max(1, count_cores() // phase.num_ranks))  # as for a rank
    lengths = phase.max_seq_length, phase.max_predictions_per_seq
    work = Workload(config, *lengths, scope, micro_batch_size=int(phase.train_batch_size))
    step, rows = make_step(work), made_up_rows(work, phase.num_accumulation_steps)
    step(rows, 0)  # compiles
    secs = []
    for number in range(1, NUM_TIMED + 1):
        started = time.monotonic()
        step(rows, number)
        secs.append(time.monotonic() - started)
    return statistics.median(secs)


def secs_of_all_ranks(phase: Phase, config: BertConfig, scope: str) -> float:
    """The slowest rank's, where all work at the same time."""
    with concurrent.futures.ProcessPoolExecutor(phase.num_ranks, multiprocessing.get_context("spawn")) as pool:
        timed = [pool.submit(secs_per_update, phase, config, scope) for _ in range(phase.num_ranks)]
        try:
            return max(future.result() for future in timed)
        except BrokenProcessPool:
            raise UserError(
                f"{phase.num_ranks} processes each timed an update of a model with {config.vocab_size:,} pieces, and "
                "one was killed: probably this machine has too little memory for it; close other programs, or make a "
                "vocabulary of fewer pieces"
            ) from None


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    parser = CommandParser("own_vocabulary.py", __doc__)
    parser.add_argument("vocab_file")
    parser.add_argument("values", nargs="*", metavar="VALUE", default=[])
    options = parser.parse_args(argv[1:])
    tokenizer, _ = open_vocab_file(Path(options.vocab_file), CasingFlags(), is_hugging_face=False)
    values = lamb.parse(options.values)
    config = BertConfig.preset(values["bert_model"], tokenizer.vocab_size)
    phases = lamb.make_phases(values)
    flops = [
        phase.num_sequences
        * pretraining_flops_per_sequence(config, phase.max_seq_length, phase.max_predictions_per_seq)
        for phase in phases
    ]
    update_secs = secs_of_all_ranks(phases[0], config, "blocks" if values["use_xla"] else "off")
    secs = phases[0].num_updates * update_secs * sum(flops) / flops[0]
    print(
        f"pre-training with {tokenizer.vocab_size:,} pieces will take about {secs / 60:.0f} minutes here",
        file=sys.stderr,
    )
    print(*map(int, tokenizer.casing))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
