"""Makes the sample, and finds raw corpora that were placed by hand."""
from __future__ import annotations

from pathlib import Path

from bert_tf.errors import UserError
from data import books, wiki

DATASETS = ("sample", "wikicorpus_en", "bookscorpus")


def require_raw_corpus(dataset: str, folder: Path) -> str:
    """What is there of `dataset`, in words.

    Raises:
      UserError: nothing; says which file goes where, and what to do without it.
    """
    if dataset == "wikicorpus_en":
        found = wiki.find_dumps(folder)
    elif dataset == "bookscorpus":
        found = books.find_books(folder)
    else:
        raise UserError(f"dataset={dataset} cannot be downloaded; there are {', '.join(DATASETS)}")
    num_bytes = sum(path.stat().st_size for path in found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{dataset}: taking {found[0]}{more} as placed there, {num_bytes / 1e6:,.1f} MB"
