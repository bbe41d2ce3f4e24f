"""Where each dataset comes from: what stands in sources.json, addresses and published checksums.

sha256 of SQuAD and GLUE as in the Hugging Face Hub's and TensorFlow Datasets' lists, of Google's
weights as in NVIDIA's (LanguageModeling/BERT/data/GooglePretrainedWeightDownloader.py). Wikimedia
and PubMed publish theirs beside the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, Union


class RemoteFile(NamedTuple):
    """`name` is relative to the dataset's folder; `checksum` is ``"<algorithm>:<hex>"``."""

    url: str
    name: str
    checksum: str | None = None


class Files(NamedTuple):
    """Files fetched one by one."""

    folder: str
    files: tuple[RemoteFile, ...]


class Archive(NamedTuple):
    """An archive whose folder `top` becomes `into` (relative to the dataset's folder).

    `files` have to be in it, with their sha256 where that is known.
    """

    url: str
    top: str
    into: str
    files: dict[str, str | None]
    checksum: str | None = None


class Archives(NamedTuple):
    """Files that come packed."""

    folder: str
    archives: tuple[Archive, ...]


class Paraphrases(NamedTuple):
    """MRPC: two files of pairs, and which pairs of the first one are held out."""

    folder: str
    training: RemoteFile
    test: RemoteFile
    held_out: RemoteFile


class Dump(NamedTuple):
    """A wiki's newest complete dump; `base_url` lists the dates of its dumps."""

    folder: str
    base_url: str
    wiki: str


class PubMed(NamedTuple):
    """All files that `base_url` lists, with their checksums beside them; `grows` with each day."""

    folder: str
    base_url: str
    grows: bool


class Books(NamedTuple):
    """What is no longer distributed."""

    folder: str


class Catalogue(NamedTuple):
    """Archives that people fetch by hand from a page, which asks them to agree to its terms."""

    folder: str
    page: str


Source = Union[Files, Archives, Paraphrases, Dump, PubMed, Books, Catalogue]

_KINDS: dict[str, type] = {
    "files": Files,
    "archives": Archives,
    "paraphrases": Paraphrases,
    "dump": Dump,
    "pubmed": PubMed,
    "books": Books,
    "catalogue": Catalogue,
}


def _source(content: dict[str, Any]) -> Source:
    fields = dict(content)
    kind = _KINDS[fields.pop("kind")]
    if kind is Files:
        fields["files"] = tuple(RemoteFile(**file) for file in fields["files"])
    elif kind is Archives:
        fields["archives"] = tuple(Archive(**archive) for archive in fields["archives"])
    elif kind is Paraphrases:
        fields.update({name: RemoteFile(**file) for name, file in fields.items() if name != "folder"})
    return kind(**fields)


def _read() -> dict[str, Source]:
    content = json.loads(Path(__file__).with_name("sources.json").read_bytes())
    return {name: _source(source) for name, source in content.items()}


# By the dataset's name in lower case, in the order in which "all" takes them.
SOURCES = _read()
