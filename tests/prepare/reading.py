"""Reads a corpus' files as formatting does, in this process."""

import json
import re
from collections import Counter

from bert_tf.prepare.corpora.documents import BadRecord, Damage, Document, Dropped
from bert_tf.prepare.corpora.formatting import clean_batch, total_size
from tests import preparation
from tests.refusals import refused


def formatted(working_dir, dataset, *arguments):
    """(lines, the manifest) of the text that the stage makes."""
    preparation.run(working_dir, "text_formatting", *arguments, dataset=dataset)
    (text,) = (working_dir / "formatted_one_article_per_line").glob(f"{dataset}_*.txt")
    return text.read_text(encoding="utf-8").splitlines(), json.loads(text.with_suffix(".manifest.json").read_text())


def assert_left_out(working_dir, dataset, fault, lines, *arguments):
    """Fails unless a single bad record is refused by name, and left out and named where one may be."""
    arguments = (working_dir, dataset, *arguments, "--max_bad_records")
    refused(f"{fault}.*--max_bad_records", formatted, *arguments, 0)
    given, manifest = formatted(*arguments, 1)
    assert given == lines and manifest["counts"]["num_dropped_bad_records"] == 1
    assert re.search(fault, manifest["shards"]["documents"][0]["bad_records"][0])


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
