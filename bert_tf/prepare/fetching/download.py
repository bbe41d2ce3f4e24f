"""Downloads datasets into folders below ``download/``; uses files that the user has placed there.

A file under its final name is complete and verified, or placed by the user, so a download that was
stopped at any moment continues with the missing files.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Callable

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_folder, sync
from bert_tf.base.registration import deferred_function
from bert_tf.prepare.corpora import books, text_files, wiki
from bert_tf.prepare.fetching import mrpc
from bert_tf.prepare.fetching.fetch import Client, NotThereError, adding_remedy, describe_file
from bert_tf.prepare.fetching.sources import SOURCES, Archive, RemoteFile, Source, source_of, wikipedia_of
from bert_tf.prepare.running.stage import Stage, StageResult, clear_disk_errors, run_stage
from bert_tf.records.manifest import FileEntry
from bert_tf.settings.preparation import LICENSE_GROUPS

# Dumps are published twice a month; the newest ones may be incomplete.
_NUM_DUMPS_TRIED = 4
_DATE_LINK = re.compile(r'href="(\d{8})/?"')


class NotDistributedError(UserError):
    """The dataset cannot be downloaded by a program; the message says what to do instead."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits.h, by which create_datasets_from_start.sh knows it


def download(
    dataset: str,
    root: Path,
    sources: Mapping[str, Source] = SOURCES,
    client: Client | None = None,
    license_groups: Sequence[str] = LICENSE_GROUPS[:1],
) -> None:
    """Downloads `dataset` (or all, if it is ``all``) into its folder below `root`.

    Args:
      license_groups: the groups of licences whose articles to fetch from PubMed Central.

    Raises: UserError where the download failed; the message names the URL, and where to place the file by hand.
    """
    client = client or Client()
    if dataset == "all":
        _download_all(root, sources, client, license_groups)
        return
    source = sources.get(dataset) or source_of(dataset)
    if source is None:
        raise UserError(f"dataset={dataset} cannot be downloaded; there are {', '.join(sources)}, sample and all")
    files = Files(dataset, source, source.folder_below(root), client, license_groups)
    with clear_disk_errors(files.folder):
        placed = _FIND_PLACED.get(source.kind, lambda _: [])(files)
        if placed and not files.manifest_path.exists():
            more = f" and {len(placed) - 1:,} more" if len(placed) > 1 else ""
            megabytes = text_files.total_size(placed) / 1e6
            print(f"{dataset}: taking {placed[0]}{more} as placed there, {megabytes:,.1f} MB", flush=True)
        elif source.kind in _BY_HAND:
            raise NotDistributedError(_BY_HAND[source.kind].format(url=source.url, folder=files.folder))
        else:
            run_stage(files.stage, dataset, files.folder, lambda _: files.make(_FETCH[source.kind]))


def _download_all(root: Path, sources: Mapping[str, Source], client: Client, license_groups: Sequence[str]) -> None:
    failed = []
    chosen = [name for name, source in sources.items() if not source.by_name_only]
    for dataset in chosen:
        try:
            download(dataset, root, sources, client, license_groups)
        except NotDistributedError as error:
            print(f"left out: {error}", flush=True)
        except UserError as error:
            print(f"failed: {error}", flush=True)
            failed.append(dataset)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(chosen)} datasets could not be downloaded: "
            f"{', '.join(failed)}; the reasons are above; the same command continues with the missing files"
        )


class Files:
    """The files of one dataset: finds those that exist, and downloads the others."""

    def __init__(self, dataset: str, source: Source, folder: Path, client: Client, license_groups: Sequence[str]):
        self.dataset, self.source, self.folder, self.client = dataset, source, folder, client
        self.manifest_path = folder / "manifest.json"
        self.license_groups = list(license_groups)
        arguments = {"license_groups": self.license_groups} if source.kind == "articles" else {}
        self.stage = Stage("download", dataset, self.manifest_path, arguments, [], is_fetched=True, grows=source.grows)

    def make(self, fetch: Callable[[Files], None]) -> StageResult:
        """Gets all missing files by `fetch`; returns the counts and entries of all files."""
        fetch(self)
        entries = sorted(self.stage.finished.values(), key=lambda entry: entry.file)
        counts = collections.Counter(num_files=len(entries), num_bytes=sum(entry.num_bytes for entry in entries))
        for entry in entries:
            counts.update(entry.details.get("counts", {}))
        return dict(counts), {"files": entries}

    def needs(self, name: str, *, may_be_placed: bool = True) -> bool:
        """Whether a file must be fetched; one that the user has placed is used as it is, if `may_be_placed`."""
        if name in self.stage.finished:
            return False
        path, earlier = self.folder / name, self.stage.earlier_entries.get(name)
        was_fetched = name in self.stage.damaged_files or (earlier and "url" in earlier.details)
        if was_fetched or not may_be_placed or not path.is_file():
            return True
        print(f"{self.dataset}: taking {path} as placed there", flush=True)
        self.add(name, describe_file(path))
        return False

    def remedy(self, name: str) -> str:
        return f"fetch it by other means and put it there as {self.folder / name}"

    def fetch(self, remote: RemoteFile, label: str = "") -> None:
        path = self.folder / remote.name
        with adding_remedy(self.remedy(remote.name)):
            described = self.client.fetch(remote.url, path, checksum=remote.checksum, label=label or path.name)
        self.add(remote.name, described)

    def fetch_files(self) -> None:
        """The source's missing files, one by one."""
        for remote in self.source.files:
            if self.needs(remote.name):
                self.fetch(remote)

    def fetch_archive(self, archive: Archive) -> None:
        """Unpacks the missing files of an archive, which is fetched if the user has not placed it."""
        missing = [name for name in archive.files if self.needs(name)]
        if not missing:
            return
        placed = packed = self.folder / archive.url.rpartition("/")[2]
        if placed.is_file():
            print(f"{self.dataset}: unpacking {placed} as placed there", flush=True)
        else:
            # Under another name, by which the next run knows after a kill that it was fetched.
            packed = self.folder / f".{placed.name}"
            if not packed.is_file():
                with adding_remedy(self.remedy(placed.name)):
                    self.client.fetch(archive.url, packed, checksum=archive.checksum, label=placed.name)
        unpacked = self.folder / f".{placed.name}.unpacked"
        try:
            unpack(packed, unpacked, [PurePosixPath(archive.top, name).as_posix() for name in missing])
            for name in missing:
                source, path = unpacked / archive.top / name, self.folder / name
                with adding_remedy(f"delete {packed}, which is not the published archive"):
                    entry = describe_file(source, archive.files[name])
                path.parent.mkdir(parents=True, exist_ok=True)
                sync(source)
                os.replace(source, path)
                sync(path.parent)
                self.add(name, dataclasses.replace(entry, details={"url": archive.url}))
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
        if packed != placed:
            packed.unlink()

    def add(self, name: str, described: FileEntry) -> None:
        self.stage.add(dataclasses.replace(described, file=name))


def unpack(archive: Path, folder: Path, members: Sequence[str] | None = None) -> None:
    """Unpacks members of a .zip, by default all, into `folder`; writes nothing outside of it.

    Raises: UserError where it is damaged, no .zip, needs a password, or lacks one of the members.
    """
    with (
        adding_remedy(f"delete {archive}, so that it is fetched anew"),
        text_files.refusing_damage(archive, zipfile.BadZipFile, LookupError, RuntimeError, UnicodeDecodeError),
        zipfile.ZipFile(archive) as packed,
    ):
        packed.extractall(folder, members)  # drops ".." and a leading "/" from names


def _fetch_files(files: Files) -> None:
    files.fetch_files()
    for archive in files.source.archives:
        files.fetch_archive(archive)


def _fetch_mrpc(files: Files) -> None:
    if files.stage.damaged_files or not all((files.folder / name).is_file() for name in mrpc.MADE_FILES):
        files.fetch_files()
        mrpc.make_files(files.folder, *(files.folder / remote.name for remote in files.source.files))
    for name in mrpc.MADE_FILES:
        files.add(name, describe_file(files.folder / name))


def _fetch_dump(files: Files) -> None:
    name = f"{files.dataset}.xml.bz2"
    if files.needs(name):
        with adding_remedy(files.remedy(name)):
            newest = _newest_dump(files, name)
        files.fetch(newest)


def _newest_dump(files: Files, name: str) -> RemoteFile:
    """The newest complete dump: the first whose published checksums include the articles."""
    url, wiki_name = files.source.url, wikipedia_of(files.dataset)
    dates = sorted(set(_DATE_LINK.findall(files.client.text(url))), reverse=True)[:_NUM_DUMPS_TRIED]
    for date in dates:
        articles = f"{wiki_name}-{date}-pages-articles-multistream.xml.bz2"
        try:
            checksums = files.client.text(f"{url}{date}/{wiki_name}-{date}-sha1sums.txt")
        except NotThereError:
            continue
        if match := re.search(rf"^([0-9a-f]+)\s+{re.escape(articles)}$", checksums, re.MULTILINE):
            print(f"the newest complete dump is of {date}", flush=True)
            return RemoteFile(f"{url}{date}/{articles}", name, f"sha1:{match[1]}")
    raise UserError(f"{url} lists no complete dump among its newest ({', '.join(dates) or 'there is none'})")


def _placed_checkpoints(files: Files) -> list[Path]:
    """Unpacks the archives that the user has placed; returns the index files of all checkpoints in the folder."""
    for packed in sorted(files.folder.glob("*.zip")):
        if not packed.with_suffix("").exists():
            with atomic_folder(packed.with_suffix("")) as folder:
                unpack(packed, folder)
            print(f"{files.dataset}: unpacked {packed}", flush=True)
    checkpoints = sorted(files.folder.rglob("*.ckpt*.index"))
    for index in checkpoints:
        print(f"{files.dataset}: checkpoint {index.with_suffix('')}", flush=True)
    return checkpoints


# By a source's kind: fetches its missing files.
_FETCH: dict[str, Callable[[Files], None]] = {
    "files": _fetch_files,
    "paraphrases": _fetch_mrpc,
    "dump": _fetch_dump,
    "pubmed": deferred_function("bert_tf.contrib.biomedical.fetching:fetch_pubmed"),
    "articles": deferred_function("bert_tf.contrib.biomedical.fetching:fetch_articles"),
}
# By a source's kind: finds files that the user has placed and that stand for the whole dataset.
_FIND_PLACED: dict[str, Callable[[Files], list[Path]]] = {
    "dump": lambda files: wiki.find_dumps(files.folder, files.dataset),
    "pubmed": deferred_function("bert_tf.contrib.biomedical.fetching:placed_pubmed"),
    "articles": deferred_function("bert_tf.contrib.biomedical.fetching:placed_articles"),
    "books": lambda files: text_files.find_text_files(files.folder),
    "catalogue": _placed_checkpoints,
}
# By the kind of a source that no program can fetch: what to do instead.
_BY_HAND = {
    "books": f"BookCorpus is no longer distributed, and {{folder}} holds no .txt file: {books.REMEDY}",
    "catalogue": "NVIDIA asks for agreement to its terms before a download: fetch the .zip from {url} with a browser, "
    "put it into {folder} and start the same command again, which unpacks it there",
}
