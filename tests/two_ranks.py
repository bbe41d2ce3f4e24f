"""Started by test_distributed, alone and as two ranks: three updates of one global batch each.

Arguments: output, accumulation steps, then the types that gradients travel in, for each of which the updates are made;
or "differ", for ranks that do not have the same data.
"""

import sys

import numpy as np

from bert_tf.base.errors import exit_on_user_error
from bert_tf.model.backends import make_backend
from bert_tf.model.heads import PretrainingModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.connect import connect
from bert_tf.training.state import TrainState
from bert_tf.training.step import TrainStep
from tests.training.test_train_step import CONFIG, global_batch, rows_of


def make_updates(workers, num_accumulation_steps, reduce_dtype):
    """The metrics of each update, and the weights by name after the last one."""
    micro_batch = 8 // num_accumulation_steps // workers.size
    scope = "blocks" if reduce_dtype == "float32" else "off"  # the other one is about what travels
    # Ranks begin with different weights, so that the broadcast is needed.
    model = PretrainingModel(CONFIG, make_backend(scope), seed=1 + workers.rank)
    optimizer = make_optimizer("lamb", 0.01, 1, 10, compiled=False)
    step = TrainStep(
        TrainState(model, optimizer, LossScale(enabled=reduce_dtype == "float16")),
        PretrainingObjective(),
        workers,
        5,
        reduce_dtype,
    )
    workers.broadcast(model.variables)
    metrics = []
    for number in range(3):
        rows = rows_of(global_batch(seed=number), workers.rank, num_accumulation_steps, micro_batch)
        result = step(rows, number, stop_requested=number == 2 and workers.rank == workers.size - 1)
        metrics.append(result.metrics.numpy())
    assert result.stop_requested, "what one rank asks for, all ranks must hear"
    return {"metrics": metrics, **{variable.name: variable.numpy() for variable in model.variables}}


@exit_on_user_error
def main(argv):
    output, num_accumulation_steps, kinds = argv[1], int(argv[2]), argv[3:]
    workers = connect(use_horovod=True)
    for kind in kinds:
        workers.require_same({"kind": kind, "data": workers.rank if kind == "differ" else 0})
        found = make_updates(workers, num_accumulation_steps, kind)
        np.savez(f"{output}.{kind}.{workers.rank}.npz", **found)


main(sys.argv)
