"""Reads a corpus' files as formatting does, in this process."""

from __future__ import annotations

import json
from collections import Counter

from bert_tf.prepare.corpora.documents import BadRecord, Damage, Document, Dropped
from bert_tf.prepare.corpora.formatting import clean_batch, total_size


def cleaned(batches, clean):
    """All documents of the batches, cleaned."""
    return [document for batch in batches for document in clean_batch(batch, clean=clean).documents]


def sorted_out(found):
    """(lines, number of dropped documents by reason, faults of bad records, sentences about damage)"""
    kinds = {kind: [one for one in found if isinstance(one, kind)] for kind in (Document, Dropped, BadRecord, Damage)}
    assert sum(map(len, kinds.values())) == len(found)
    return (
        [one.line for one in kinds[Document]],
        Counter(one.reason for one in kinds[Dropped]),
        [one.fault for one in kinds[BadRecord]],
        [one.sentence for one in kinds[Damage]],
    )


def assert_resumable(read_batches, paths, least):
    """Fails unless reading gives at least so many batches, with all bytes of the files, and resumes behind each."""
    batches = list(read_batches({}))
    assert len(batches) >= least and sum(batch.input_bytes for batch in batches) == total_size(paths)
    for number, batch in enumerate(batches, 1):
        assert list(read_batches(json.loads(json.dumps(batch.next_position)))) == batches[number:]
