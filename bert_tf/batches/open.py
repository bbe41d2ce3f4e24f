"""Opens the pre-training data that a flag names: records or token files."""

from __future__ import annotations

import dataclasses

from bert_tf.base.errors import UserError
from bert_tf.batches.instance_set import InstanceSet, find_shards
from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.record_set import RecordSet
from bert_tf.batches.token_set import TokenSet
from bert_tf.records.token_file import TOKENS_SUFFIX


def open_instances(
    patterns: str, argument: str, sequence_length: int, rules: MaskingRules, single_segments: bool = False
) -> InstanceSet:
    """The shards that `patterns` name.

    Args:
      argument: the flag, for messages.
      rules: for token files; records were masked when they were made.
      single_segments: instead of pairs; only token files have them.

    Raises: UserError if files are missing or of both kinds, or if what is asked for is not what records can provide.
    """
    if find_shards(patterns, argument)[0].suffix == TOKENS_SUFFIX:
        return TokenSet(patterns, argument, sequence_length, rules, single_segments)
    if single_segments:
        raise UserError(
            f"--no_next_sentence: the records of --{argument}={patterns} are pairs of segments, many of them from two "
            "documents; use token files, which have single segments too (data/bertPrep.py --action create_token_files)"
        )
    default = MaskingRules(max_predictions_per_seq=rules.max_predictions_per_seq)
    for field in dataclasses.fields(MaskingRules):
        if getattr(rules, field.name) != getattr(default, field.name):
            raise UserError(
                f"--{field.name} has no effect on --{argument}={patterns}: records were masked when they were made. "
                "Give it to --action create_tfrecord_files, or use token files"
            )
    return RecordSet(patterns, argument)
