"""The raw corpora: where each one's files lie, how they are read and cleaned."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from bert_tf.errors import UserError
from data import books, custom, pubmed, sample, wiki
from data.formatting import Corpus, total_size

# Corpus, its files, and the arguments that change the result.
Opened = tuple[Corpus, list[Path], dict[str, Any]]


def open_corpus(options: argparse.Namespace, working_dir: Path) -> Opened:
    """How to read the corpus `options.dataset`.

    Raises:
      UserError: its files are not there; says how they come there.
    """
    dataset, download = options.dataset, working_dir / "download"
    if options.skip_wikiextractor and dataset not in wiki.WIKIS:
        raise UserError(f"skip_wikiextractor is about {' and '.join(wiki.WIKIS)}, not {dataset}")
    if options.keep_report and dataset not in wiki.WIKIS:
        raise UserError(f"keep_report is about {' and '.join(wiki.WIKIS)}, not {dataset}")
    if dataset in wiki.WIKIS and options.skip_wikiextractor:
        opened = _open_extracted(wiki.find_extracted(working_dir / "extracted" / dataset), options)
    elif dataset in wiki.WIKIS:
        opened = _open_dump(wiki.find_dumps(download / dataset, dataset), options)
    elif dataset == "pubmed_baseline":
        opened = _open_pubmed(pubmed.find_files(download / "pubmed"))
    elif dataset == "bookscorpus":
        opened = _open_books(books.find_books(download / dataset), options)
    elif dataset == "sample":
        articles = download / "sample" / sample.ARTICLES_FILE
        if not articles.is_file():
            raise UserError(f"{articles} is not there: run bertPrep.py --action=download --dataset=sample first")
        opened = _open_text([articles], "paragraph", options)
    else:
        opened = _open_text(custom.find_inputs(options.input_files), options.input_format, options)
    corpus, paths, arguments = opened
    return corpus, paths, {"keep_duplicates": options.keep_duplicates, **arguments}


def _encoding(options: argparse.Namespace) -> dict[str, Any]:
    return {"fallback_encoding": options.fallback_encoding, "encoding_errors": options.encoding_errors}


def _report(options: argparse.Namespace) -> dict[str, Any]:
    # Not named where it is off, so that what was made before there was one counts as the same.
    return {"keep_report": True} if options.keep_report else {}


def _open_dump(paths: list[Path], options: argparse.Namespace) -> Opened:
    damages: list[str] = []
    report = _report(options)
    batches = functools.partial(wiki.read_batches, paths, damages, **report)
    clean = functools.partial(wiki.clean_batch, **report)
    return Corpus(batches, clean, total_size(paths), damages), paths, report


def _open_pubmed(paths: list[Path]) -> Opened:
    damages: list[str] = []
    batches = functools.partial(pubmed.read_batches, paths, damages)
    return Corpus(batches, pubmed.clean_batch, total_size(paths), damages), paths, {}


def _open_extracted(paths: list[Path], options: argparse.Namespace) -> Opened:
    report = _report(options)
    clean = functools.partial(wiki.clean_extracted, **report)
    corpus = Corpus(functools.partial(wiki.read_extracted, paths), clean, total_size(paths), [])
    return corpus, paths, {"skip_wikiextractor": True, **report}


def _open_books(paths: list[Path], options: argparse.Namespace) -> Opened:
    encoding = _encoding(options)
    corpus = Corpus(
        functools.partial(books.read_batches, paths),
        functools.partial(books.clean_batch, **encoding),
        total_size(paths),
        [],
    )
    return corpus, paths, encoding


def _open_text(paths: list[Path], input_format: str, options: argparse.Namespace) -> Opened:
    encoding = _encoding(options)
    chosen = custom.choose_format(input_format, paths, **encoding)
    batches = functools.partial(custom.read_batches, paths, chosen, **encoding)
    corpus = Corpus(batches, custom.clean_batch, total_size(paths), [])
    return corpus, paths, {**encoding, "input_format": chosen}
