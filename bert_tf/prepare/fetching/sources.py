"""Where each dataset comes from: reads URLs and published checksums from sources.json.

The sha256 sums of SQuAD and GLUE are those listed by the Hugging Face Hub and TensorFlow Datasets; those of Google's
weights come from NVIDIA's LanguageModeling/BERT/data/GooglePretrainedWeightDownloader.py. Wikimedia,
PubMed and PubMed Central publish checksums beside their files; BioCreative and BLUE publish none.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple


class RemoteFile(NamedTuple):
    """`name` is relative to the dataset's folder; `checksum` is ``"<algorithm>:<hex>"``."""

    url: str
    name: str
    checksum: str | None = None


class Archive(NamedTuple):
    """An archive whose folder `top` is unpacked as the dataset's folder.

    `files` are the names of its required files below `top`, each with its published checksum or None.
    """

    url: str
    files: dict[str, str | None]
    top: str = ""
    checksum: str | None = None


class Source(NamedTuple):
    """Where a dataset comes from, and its folder, relative to ``download/``.

    `kind` is one of

    * ``files``: fetched one by one, or in archives.
    * ``paraphrases`` (MRPC): files of training and test pairs, and of the training pairs held out for development.
    * ``dump``: the newest complete one of a wiki; `url` lists the dates of its dumps.
    * ``pubmed``: all files that `url` lists, each with a checksum file beside it; if it `grows`, some are added daily.
    * ``articles``: those of PubMed Central, from its bucket at `url`.
    * ``books``: no longer distributed; the user places books in `folder`.
    * ``catalogue``: archives that the user fetches by hand from the web page `url`, after agreeing to its terms.

    A source with `by_name_only` is not part of the dataset "all".
    """

    kind: str
    folder: str
    files: tuple[RemoteFile, ...] = ()
    archives: tuple[Archive, ...] = ()
    url: str = ""
    grows: bool = False
    by_name_only: bool = False

    def folder_below(self, download: Path) -> Path:
        return Path(os.path.normpath(download / self.folder))


def _source(fields: dict[str, Any]) -> Source:
    files = tuple(RemoteFile(**file) for file in fields.pop("files", ()))
    archives = tuple(Archive(**archive) for archive in fields.pop("archives", ()))
    return Source(files=files, archives=archives, **fields)


# Keys are lower-case names of datasets; "all" downloads them in this order.
SOURCES = {
    name: _source(fields) for name, fields in json.loads(Path(__file__).with_name("sources.json").read_bytes()).items()
}

_WIKIPEDIA = re.compile("wikicorpus_([a-z]{2,}(?:-[a-z]+)*)")


def wikipedia_of(dataset: str) -> str | None:
    """Wikimedia's name for the wiki of a dataset wikicorpus_<code>: zh_min_nanwiki for zh-min-nan; else None."""
    match = _WIKIPEDIA.fullmatch(dataset)
    return f"{match[1].replace('-', '_')}wiki" if match else None


def source_of(dataset: str) -> Source | None:
    """The source of a dataset with this name; None if there is none."""
    if wiki := wikipedia_of(dataset):
        return Source("dump", dataset, url=f"https://dumps.wikimedia.org/{wiki}/")
    return SOURCES.get(dataset)
