"""The datasets by name, and how each is read."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Callable, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.registration import deferred_function
from bert_tf.prepare.corpora import books, custom, sample, wiki
from bert_tf.prepare.corpora.documents import Corpus, read_files
from bert_tf.prepare.corpora.text_files import (
    ENCODING_OPTIONS,
    download_remedy,
    encoding_options,
    find_text_files,
    note_unread_files,
    read_lines,
    require_files,
)
from bert_tf.prepare.fetching.sources import SOURCES, wikipedia_of
from bert_tf.settings.preparation import PreparationOptions

Opener = Callable[[PreparationOptions, Path], Corpus]


class Dataset(NamedTuple):
    """One dataset.

    A corpus to pre-train on has `formatted_file` and `open`, called with the options, of which it reads those named in
    `options`, and the working directory. A dataset that consists of several `corpora` has neither. One with a
    `main_dataset` is only read together with that. One with `make_tables` is formatted, too, but into tables of
    labelled examples, in `tables_folder` below the working directory, by a stage of its own. All others are only
    downloaded.
    """

    formatted_file: str | None = None
    open: Opener | None = None
    options: tuple[str, ...] = ()
    corpora: tuple[str, ...] = ()
    main_dataset: str | None = None
    tables_folder: str = ""
    make_tables: Callable[[PreparationOptions, Path], None] | None = None

    @property
    def is_formatted(self) -> bool:
        return bool(self.formatted_file or self.make_tables)


def open_corpus(options: PreparationOptions, working_dir: Path) -> Corpus:
    """The corpus `options.dataset`, ready to be read.

    Raises: UserError where its files are missing; says how to get them.
    """
    opener = dataset_named(options.dataset).open
    assert opener
    corpus = opener(options, working_dir)
    return corpus._replace(arguments={"keep_duplicates": options.keep_duplicates, **corpus.arguments})


def _open_wiki(options: PreparationOptions, working_dir: Path) -> Corpus:
    dataset = options.dataset
    if options.skip_wikiextractor:
        folder = working_dir / "extracted" / dataset
        remedy = "unpack AA/wiki_00.bz2 with bunzip2; or read the dump itself, without --skip_wikiextractor"
        files = sorted(path for path in folder.rglob("wiki_*") if not path.suffix and path.is_file())
        paths = require_files(files, folder, "file of wikiextractor, such as AA/wiki_00", remedy=remedy)
        batches = functools.partial(read_files, paths, documents_of=wiki.read_extracted)
        return Corpus(paths, batches, wiki.clean_extracted, {"skip_wikiextractor": True})
    folder, wiki_name = working_dir / "download" / dataset, wikipedia_of(dataset)
    remedy = (
        f"{download_remedy(dataset)}; or put {dataset}.xml.bz2 there, or the published {wiki_name}-<date>-pages-"
        f"articles-multistream.xml.bz2, in one or several files, from dumps.wikimedia.org/{wiki_name}"
    )
    paths = require_files(wiki.find_dumps(folder, dataset), folder, "dump of Wikipedia", remedy=remedy)
    clean = functools.partial(wiki.clean_part, namespaces=wiki.read_namespaces(paths[0]))
    return Corpus(paths, functools.partial(wiki.read_batches, paths), clean, {})


def _open_books(options: PreparationOptions, working_dir: Path) -> Corpus:
    encoding = encoding_options(options)
    folder = working_dir / "download" / options.dataset
    paths = require_files(find_text_files(folder), folder, ".txt file", remedy=books.REMEDY)
    note_unread_files(folder, paths, "books are .txt files")
    clean = functools.partial(books.clean, read_lines=functools.partial(read_lines, **encoding))
    # One document per book, the file's name: the worker reads the text.
    batches = functools.partial(read_files, paths, documents_of=lambda path: [str(path)])
    return Corpus(paths, batches, clean, encoding)


def _open_sample(options: PreparationOptions, working_dir: Path) -> Corpus:
    folder = working_dir / "download" / "sample"
    files = list(folder.glob(sample.ARTICLES_FILE))
    paths = require_files(files, folder, sample.ARTICLES_FILE, remedy=download_remedy("sample"))
    return custom.make_corpus(paths, "paragraph", options)


def _open_custom(options: PreparationOptions, working_dir: Path) -> Corpus:
    return custom.make_corpus(custom.find_inputs(options.input_paths), options.input_format, options)


def _wiki_dataset(name: str) -> Dataset:
    options = ("skip_wikiextractor", "max_bad_records")
    return Dataset(f"{name}_one_article_per_line.txt", _open_wiki, options)


DATASETS = {
    "bookscorpus": Dataset("bookscorpus_one_book_per_line.txt", _open_books, ENCODING_OPTIONS),
    "wikicorpus_en": _wiki_dataset("wikicorpus_en"),
    "wikicorpus_zh": _wiki_dataset("wikicorpus_zh"),
    "pubmed_baseline": Dataset(
        "pubmed_baseline_one_article_per_line.txt",
        deferred_function("bert_tf.contrib.biomedical.pubmed:open_corpus"),
        ("max_bad_records",),
    ),
    "pubmed_fulltext": Dataset(
        "pubmed_fulltext_one_article_per_line.txt",
        deferred_function("bert_tf.contrib.biomedical.pubmed_fulltext:open_corpus"),
        ("license_groups", "captions", "max_bad_records"),
    ),
    "sample": Dataset("sample_one_article_per_line.txt", _open_sample),
    "custom": Dataset(
        "custom_one_document_per_line.txt",
        _open_custom,
        ("input_files", "input_format", "text_column", "max_bad_records", *ENCODING_OPTIONS),
    ),
    "books_wiki_en_corpus": Dataset(corpora=("bookscorpus", "wikicorpus_en")),
    "pubmed_daily_update": Dataset(main_dataset="pubmed_baseline"),
    "chemprot": Dataset(
        options=("max_bad_records",),
        tables_folder="biobert/ChemProt",
        make_tables=deferred_function("bert_tf.contrib.biomedical.chemprot:make_tables"),
    ),
}
# Datasets that are only downloaded: questions, sentences, weights.
DATASETS.update({name: Dataset() for name in SOURCES if name not in DATASETS})


def dataset_named(name: str) -> Dataset:
    """The dataset with this name, one of `DATASETS` or a Wikipedia; an empty `Dataset` for any other name."""
    return DATASETS.get(name) or (_wiki_dataset(name) if wikipedia_of(name) else Dataset())


def formatting_options(name: str) -> list[str]:
    """The options that the formatting of a dataset reads."""
    dataset = dataset_named(name)
    return [*dataset.options] if dataset.make_tables else [*dataset.options, "keep_duplicates"]


def find_corpora(name: str) -> tuple[str, ...]:
    """The corpora of a dataset to pre-train on; empty for other datasets."""
    dataset = dataset_named(name)
    return dataset.corpora or ((name,) if dataset.formatted_file else ())


def require_corpora(name: str) -> tuple[str, ...]:
    """As `find_corpora`. Raises: UserError where the dataset is not for pre-training."""
    if main := dataset_named(name).main_dataset:
        raise UserError(f"dataset={name} is read together with {main}: --dataset={main}")
    if not find_corpora(name):
        raise UserError(
            f"dataset={name} is not for pre-training; choose one of {', '.join(filter(find_corpora, DATASETS))}, or "
            "wikicorpus_<code> for the Wikipedia of another language"
        )
    return find_corpora(name)
