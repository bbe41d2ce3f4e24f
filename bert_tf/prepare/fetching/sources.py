"""Where each dataset comes from: reads URLs and published checksums from sources.json.

The sha256 sums of SQuAD and GLUE are those listed by the Hugging Face Hub and TensorFlow Datasets; those of Google's
weights come from NVIDIA's LanguageModeling/BERT/data/GooglePretrainedWeightDownloader.py. Wikimedia and
PubMed publish checksums beside their files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args


class RemoteFile(NamedTuple):
    """`name` is relative to the dataset's folder; `checksum` is ``"<algorithm>:<hex>"``."""

    url: str
    name: str
    checksum: str | None = None


class Archive(NamedTuple):
    """An archive whose folder `top` is unpacked as `into` (relative to the dataset's folder).

    `files` are the names of its required files below `top`, each with its sha256 or None.
    """

    url: str
    top: str
    into: str
    files: dict[str, str | None]
    checksum: str | None = None


class Files(NamedTuple):
    """Files fetched one by one, or in archives."""

    folder: str
    files: tuple[RemoteFile, ...] = ()
    archives: tuple[Archive, ...] = ()


class Paraphrases(NamedTuple):
    """MRPC: the files of training and test pairs, and of the training pairs held out as the development set."""

    folder: str
    files: tuple[RemoteFile, ...]


class Dump(NamedTuple):
    """The newest complete dump of a wiki; `base_url` lists the dates of its dumps."""

    folder: str
    base_url: str
    wiki: str


class PubMed(NamedTuple):
    """All files that `base_url` lists, each with a checksum file beside it; `grows`: files are added daily."""

    folder: str
    base_url: str
    grows: bool


class Books(NamedTuple):
    """BookCorpus, which is no longer distributed: the user places books in `folder`."""

    folder: str


class Catalogue(NamedTuple):
    """Archives that the user fetches by hand from a web page, after agreeing to its terms."""

    folder: str
    page: str


Source = Union[Files, Paraphrases, Dump, PubMed, Books, Catalogue]

_KINDS = {kind.__name__.lower(): kind for kind in get_args(Source)}


def _archive(content: dict[str, Any]) -> Archive:
    """In sources.json `into` is left out if it equals `top`, and `files` is a list if no checksums are published."""
    files = content["files"]
    named = files if isinstance(files, dict) else dict.fromkeys(files)
    return Archive(**{"into": content["top"], **content, "files": named})


def _source(kind: str, fields: dict[str, Any]) -> Source:
    if "files" in fields:
        fields["files"] = tuple(RemoteFile(**file) for file in fields["files"])
    if "archives" in fields:
        fields["archives"] = tuple(map(_archive, fields["archives"]))
    return _KINDS[kind](**fields)


def _read() -> dict[str, Source]:
    content = json.loads(Path(__file__).with_name("sources.json").read_bytes())
    return {name: _source(source.pop("kind"), source) for name, source in content.items()}


# Keys are lower-case names of datasets; "all" downloads them in this order.
SOURCES = _read()

_WIKIPEDIA = re.compile("wikicorpus_([a-z]{2,}(?:-[a-z]+)*)")


def wikipedia_of(dataset: str) -> Dump | None:
    """The Wikipedia of a dataset wikicorpus_<code>, where the code is the one in the wiki's address: en, zh-min-nan."""
    match = _WIKIPEDIA.fullmatch(dataset)
    if match is None:
        return None
    wiki = f"{match[1].replace('-', '_')}wiki"
    return Dump(dataset, f"https://dumps.wikimedia.org/{wiki}/", wiki)
