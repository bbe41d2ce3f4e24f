"""The folders below a working directory, and the workers that a stage's options ask for."""

from __future__ import annotations

from pathlib import Path

from bert_tf.prepare.corpora import registry
from bert_tf.prepare.fetching.sources import source_of
from bert_tf.prepare.running.workers import ProcessPool, TaskPool
from bert_tf.records.manifest import MANIFEST_NAME
from bert_tf.settings.preparation import PreparationOptions


class Layout:
    """The folders below a working directory."""

    def __init__(self, working_dir: Path):
        self.root = working_dir
        self.download = working_dir / "download"
        self.formatted = working_dir / "formatted_one_article_per_line"
        self.sharded = working_dir / "sharded"
        self.tfrecord = working_dir / "tfrecord"
        self.tokens = working_dir / "tokens"
        self.vocab = working_dir / "vocab"

    def download_folder(self, dataset: str) -> Path:
        source = source_of(dataset)
        return source.folder_below(self.download) if source else self.download / dataset

    def formatted_file(self, corpus: str) -> Path:
        name = registry.dataset_named(corpus).formatted_file
        assert name
        return self.formatted / name

    def formatted_manifest(self, corpus: str) -> Path:
        if tables_folder := registry.dataset_named(corpus).tables_folder:
            return self.root / tables_folder / MANIFEST_NAME
        return self.formatted_file(corpus).with_suffix(".manifest.json")


def make_task_pool(options: PreparationOptions, layout: Layout) -> TaskPool:
    if options.dask_scheduler is None:
        return ProcessPool(options.n_processes or 1)
    # Imported here, because it needs a package that is installed only by users of Dask.
    from bert_tf.prepare.running.dask_cluster import DaskCluster

    return DaskCluster(options.dask_scheduler, layout.root)
