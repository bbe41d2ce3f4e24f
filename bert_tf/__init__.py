"""BERT pre-training with LAMB in TensorFlow 2: the library behind the programs at the top level.

The packages are listed in the order in which the data flows; each imports only from those above it:

    base         errors, files, locks, progress, TensorFlow's versions: what is not about BERT
    optimizer_registry, bert_config    what settings and plans must know about optimizers and models
    settings     one declaration of every setting -> flags, checks, variables, pages
    text         text -> ids of a vocabulary, exactly by the rules of whoever made it
    records      ids -> instances on disk (token files, TFRecords) and back
    batches      (shards, seed, epoch) -> masked, packed batches [A, B, ...]
    prepare      raw corpora -> token files and records, in stages, without TensorFlow
    model        batches -> sums of losses
    optimizer    gradients -> weights
    memory       (model, micro-batch, GPU) -> bytes
    ranks        many processes -> one update
    run          a run -> a folder with checkpoints and metrics that survives kills
    report       run folders -> a page
    interchange  weights in other projects' formats <-> ours, under our names
    training     batches -> updates, until a phase is done
    tasks        questions and sentences -> rows; logits -> answers and scores
    launch       positional arguments -> a checked plan and running ranks
    planning     a cluster's data sheet -> the recipe's time, cost and split on it
    doctor       a machine -> what would keep a training from working
    contrib      what the recipe does not need: the other packages name it in tables, none imports it
    programs     a command line -> one call of the above
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Imports `from_pretrained` on first access, so that ``import bert_tf`` does not import TensorFlow."""
    if name == "from_pretrained":
        from bert_tf.interchange.pretrained import from_pretrained

        return from_pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
