"""BERT pre-training with LAMB in TensorFlow 2: the library behind the programs at the top level.

The packages are listed in the order in which the data flows; each imports only from those above it:

    base         errors, signals, whole-or-not-at-all files, progress: what is not about BERT
    optimizer_registry  what settings and plans must know of the optimizers
    config       Google's bert_config.json and the flags -> checked, frozen settings
    text         text -> ids of a vocabulary, exactly by Google's rules
    records      ids -> instances on disk (token files, TFRecords) and back
    batches      (shards, seed, epoch) -> masked, packed batches [A, B, ...]
    model        batches -> sums of losses
    optimizer    gradients -> weights
    memory       (model, micro-batch, GPU) -> bytes
    ranks        many processes -> one update
    run          a run -> a folder with checkpoints and metrics that survives kills
    report       run folders -> a page
    interchange  weights in others' formats and in ours, under our names
    training     batches -> updates, until a phase is done
    tasks        questions and sentences -> rows; logits -> answers and scores
    launch       positional arguments -> a checked plan and running ranks
    planning     a cluster's data sheet -> the recipe's time, cost and split there
    doctor       a machine and its neighbours -> what would keep a training from working

`data/` prepares token files and records, using base, text, records and parts of batches.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Imports `from_pretrained` on first access, so that ``import bert_tf`` does not import TensorFlow."""
    if name == "from_pretrained":
        from bert_tf.interchange.pretrained import from_pretrained

        return from_pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
