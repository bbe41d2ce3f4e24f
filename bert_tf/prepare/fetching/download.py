"""Downloads datasets into folders below ``download/``; uses files that the user has placed there.

A file under its final name is complete and verified, or placed by the user, so a download that was
stopped at any moment continues with the missing files.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Callable

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file, sync
from bert_tf.base.progress import Progress
from bert_tf.prepare.corpora import books, pubmed, pubmed_fulltext, wiki
from bert_tf.prepare.corpora.jats import LICENSE_GROUPS
from bert_tf.prepare.fetching import fetch, mrpc, pmc
from bert_tf.prepare.fetching.fetch import Client, NotThereError, describe_file
from bert_tf.prepare.fetching.sources import SOURCES, Archive, RemoteFile, Source, source_of
from bert_tf.prepare.running.stage import Stage, clear_disk_errors, journal_path
from bert_tf.records.manifest import FileEntry, read_manifest

# Dumps are published twice a month; the newest ones may be incomplete.
_NUM_DUMPS_TRIED = 4
_DATE_LINK = re.compile(r'href="(\d{8})/?"')
_PUBMED_LINK = re.compile(r'href="([^"/?]+\.xml\.gz)"')
_MD5 = re.compile(r"\b[0-9a-fA-F]{32}\b")


class NotDistributedError(UserError):
    """The dataset cannot be downloaded by a program; the message says what to do instead."""


def download(
    dataset: str,
    root: Path,
    sources: Mapping[str, Source] = SOURCES,
    client: Client | None = None,
    license_groups: Sequence[str] = LICENSE_GROUPS[:1],
) -> None:
    """Downloads `dataset` (or all, if it is ``all``) into its folder below `root`.

    Args:
      license_groups: of PubMed Central's articles.

    Raises: UserError where the download failed; the message names the URL, and where to place the file by hand.
    """
    client = client or Client()
    if dataset == "all":
        _download_all(root, sources, client, license_groups)
        return
    source = sources.get(dataset) or source_of(dataset)
    if source is None:
        raise UserError(f"dataset={dataset} cannot be downloaded; there are {', '.join(sources)}, sample and all")
    arguments = {"license_groups": list(license_groups)} if source.kind == "articles" else {}
    files = _Collection(dataset, source, source.folder_below(root), client, arguments)
    with clear_disk_errors(files.folder):
        _DOWNLOADERS[source.kind](files)


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


class _Collection:
    """The files of one dataset: finds those that exist, downloads the others, writes the manifest."""

    def __init__(
        self, dataset: str, source: Source, folder: Path, client: Client, arguments: Mapping[str, Any] | None = None
    ):
        self.dataset, self.source, self.folder, self.client = dataset, source, folder, client
        self.manifest_path = folder / "manifest.json"
        self.arguments = arguments or {}
        self._names: list[str] = []

    def make(self, fetch_all: Callable[[], None], names: Callable[[], Iterable[str]] = tuple) -> None:
        """Gets all files and writes the manifest, unless the manifest already lists them all, including `names()`."""
        with Stage(
            "download", self.dataset, self.manifest_path, self.arguments, [], of_any_program=True
        ) as self._stage:
            if self._stage.is_done and self._stage.finished.keys() >= set(names()):
                print(f"nothing to do: {self.manifest_path} lists all files", flush=True)
                return
            manifest = read_manifest(self.manifest_path)
            made = manifest.entries if manifest else ()
            self._fetched_before = {entry.file for entry in made if "url" in entry.details}
            self._stage.resume_from_journal()
            fetch_all()
            entries = [self._stage.finished[name] for name in self._names]
            num_bytes = sum(entry.num_bytes for entry in entries)
            counts = collections.Counter(num_files=len(entries), num_bytes=num_bytes)
            for entry in entries:
                counts.update(entry.details.get("counts", {}))
            self._stage.complete(dict(counts), {"files": entries})
            print(f"{self.dataset}: {len(entries):,} files, {num_bytes / 1e6:,.1f} MB\n{self.folder}", flush=True)

    def needs(self, name: str, *, may_be_placed: bool = True) -> bool:
        """Whether a file must be fetched; one that the user has placed is used as it is, if that `may_be`."""
        if name in self._stage.finished:
            self._names.append(name)
        elif may_be_placed and name not in self._fetched_before and (self.folder / name).is_file():
            print(f"{self.dataset}: taking {self.folder / name} as placed there", flush=True)
            self.add(name, describe_file(self.folder / name))
        else:
            return True
        return False

    def remedy(self, name: str) -> str:
        return f"fetch it by other means and put it there as {self.folder / name}"

    def fetch(self, remote: RemoteFile, label: str = "") -> None:
        path, name = self.folder / remote.name, remote.name
        remedy, label = self.remedy(name), label or path.name
        self.add(name, self.client.fetch(remote.url, path, checksum=remote.checksum, remedy=remedy, label=label))

    def fetch_files(self) -> None:
        """The source's missing files, one by one."""
        for remote in self.source.files:
            if self.needs(remote.name):
                self.fetch(remote)

    def fetch_archive(self, archive: Archive) -> None:
        """Unpacks the missing files of an archive, which is fetched if the user has not placed it."""
        # Maps the name of each missing file below the dataset's folder to its name in the archive.
        names = {PurePosixPath(archive.into, name).as_posix(): name for name in archive.files}
        missing = {placed: name for placed, name in names.items() if self.needs(placed)}
        if not missing:
            return
        packed_name = archive.url.rpartition("/")[2]
        by_hand, fetched = self.folder / packed_name, self.folder / f".{packed_name}"
        if by_hand.is_file():
            print(f"{self.dataset}: unpacking {by_hand} as placed there", flush=True)
        elif not fetched.is_file():
            remedy = self.remedy(packed_name)
            self.client.fetch(archive.url, fetched, checksum=archive.checksum, remedy=remedy, label=packed_name)
        packed = by_hand if by_hand.is_file() else fetched
        unpacked = self.folder / f".{packed_name}.unpacked"
        try:
            fetch.unpack(packed, unpacked)
            top = unpacked / archive.top
            entries = {
                placed: _checked_member(top / name, packed, archive.files[name]) for placed, name in missing.items()
            }
            for placed, entry in entries.items():
                path = self.folder / placed
                path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(top / missing[placed], path)
                sync(path.parent)
                self.add(placed, dataclasses.replace(entry, details={"url": archive.url}))
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
        fetched.unlink(missing_ok=True)

    def add(self, name: str, described: FileEntry) -> None:
        self._stage.add(dataclasses.replace(described, file=name))
        self._names.append(name)

    def print_placed(self, paths: Sequence[Path]) -> None:
        num_bytes = sum(path.stat().st_size for path in paths)
        more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
        print(f"{self.dataset}: taking {paths[0]}{more} as placed there, {num_bytes / 1e6:,.1f} MB", flush=True)


def _checked_member(path: Path, packed: Path, sha256: str | None) -> FileEntry:
    try:
        return describe_file(path, f"sha256:{sha256}" if sha256 else None)
    except (FileNotFoundError, UserError) as error:
        reason = str(error) if isinstance(error, UserError) else f"holds no {path.name}"
    raise UserError(
        f"{packed}: {reason}: not the published archive; delete it, and start the same command again to fetch it anew"
    )


def _download_files(files: _Collection) -> None:
    def fetch_all() -> None:
        files.fetch_files()
        for archive in files.source.archives:
            files.fetch_archive(archive)

    files.make(fetch_all)


def _download_mrpc(files: _Collection) -> None:
    def make_all() -> None:
        if not all((files.folder / name).is_file() for name in mrpc.MADE_FILES):
            files.fetch_files()
            mrpc.make_files(files.folder, *(files.folder / remote.name for remote in files.source.files))
        for name in mrpc.MADE_FILES:
            files.add(name, describe_file(files.folder / name))

    files.make(make_all)


def _download_dump(files: _Collection) -> None:
    placed = wiki.find_dumps(files.folder, files.dataset, needed=False)
    if placed and not files.manifest_path.exists():
        files.print_placed(placed)
        return
    name = f"{files.dataset}.xml.bz2"

    def fetch_all() -> None:
        if files.needs(name):
            files.fetch(_newest_dump(files, name))

    files.make(fetch_all)


def _newest_dump(files: _Collection, name: str) -> RemoteFile:
    """The newest complete dump: the first whose published checksums include the articles."""
    url, remedy = files.source.url, files.remedy(name)
    wiki_name = url.rstrip("/").rpartition("/")[2]
    dates = sorted(set(_DATE_LINK.findall(files.client.text(url, remedy))), reverse=True)[:_NUM_DUMPS_TRIED]
    for date in dates:
        articles = f"{wiki_name}-{date}-pages-articles-multistream.xml.bz2"
        for algorithm in ("sha1", "md5"):
            try:
                sums = files.client.text(f"{url}{date}/{wiki_name}-{date}-{algorithm}sums.txt", remedy)
            except NotThereError:
                continue
            listed = re.search(rf"^([0-9a-f]+)\s+{re.escape(articles)}$", sums, re.MULTILINE)
            if listed:
                print(f"the newest complete dump is of {date}", flush=True)
                return RemoteFile(f"{url}{date}/{articles}", name, f"{algorithm}:{listed[1]}")
    raise UserError(f"{url} lists no complete dump among its newest ({', '.join(dates) or 'there is none'}); {remedy}")


def _download_pubmed(files: _Collection) -> None:
    url = files.source.url
    remedy = f"fetch the files by other means and put them into {files.folder}, where text_formatting reads them"

    @functools.cache
    def names() -> list[str]:
        names = sorted(set(_PUBMED_LINK.findall(files.client.text(url, remedy))))
        if not names:
            raise UserError(f"{url} lists no .xml.gz file; {remedy}")
        return names

    def fetch_all() -> None:
        for number, name in enumerate(names(), 1):
            if files.needs(name):
                checksum = _MD5.search(files.client.text(f"{url}{name}.md5", remedy))
                if checksum is None:
                    raise UserError(f"{url}{name}.md5 holds no checksum; {remedy}")
                remote = RemoteFile(f"{url}{name}", name, f"md5:{checksum[0]}")
                files.fetch(remote, f"{name} ({number:,} of {len(names()):,})")

    placed = pubmed.files_in(files.folder)
    if placed and not files.manifest_path.exists():
        try:
            names()
        except UserError as error:  # no network; with one, the files that are not there are fetched
            print(f"{error}\nUntil then:", flush=True)
            files.print_placed(placed)
            return
    files.make(fetch_all, names if files.source.grows else tuple)


def _download_articles(files: _Collection) -> None:
    placed = pubmed_fulltext.find_files(files.folder, needed=False)
    if placed and not files.manifest_path.exists() and not journal_path(files.manifest_path).exists():
        files.print_placed(placed)
        return
    remedy = f"put packages or single files of articles into {files.folder}, where text_formatting reads them"

    def fetch_all() -> None:
        with pmc.CloudService(files.client, files.source.url, remedy) as service:
            packages = service.packages(files.folder / ".list")
            missing = {name: articles for name, articles in packages.items() if files.needs(name, may_be_placed=False)}
            num_articles, num_missing = (sum(map(len, some.values())) for some in (packages, missing))
            with Progress(
                total=num_articles, initial=num_articles - num_missing, unit="articles", description=files.dataset
            ) as bar:
                for name, articles in missing.items():
                    path = files.folder / name
                    counts = service.write_package(path, articles, files.arguments["license_groups"])
                    details = {"url": files.source.url, "counts": counts}
                    files.add(name, FileEntry(name, path.stat().st_size, sha256_of_file(path), details))
                    bar.update(len(articles), name)

    files.make(fetch_all)


def _take_books(files: _Collection) -> None:
    try:
        files.print_placed(books.find_books(files.folder))
    except UserError as error:
        raise NotDistributedError(f"BookCorpus is no longer distributed, and {error}") from None


def _unpack_by_hand(files: _Collection) -> None:
    folder = files.folder
    folder.mkdir(parents=True, exist_ok=True)
    for packed in sorted(folder.iterdir()):
        stem = fetch.stem(packed)
        if stem and not (folder / stem).exists():
            temporary = folder / f".{packed.name}.unpacked"
            fetch.unpack(packed, temporary)
            os.replace(temporary, folder / stem)
            print(f"{files.dataset}: unpacked {packed}", flush=True)
    checkpoints = sorted(folder.rglob("*.ckpt*.index"))
    if not checkpoints:
        raise NotDistributedError(
            f"NVIDIA asks for agreement to its terms before a download: fetch an archive (.zip, .tar.gz) from "
            f"{files.source.url} with a browser, put it into {folder} and start the same "
            "command again, which unpacks it there"
        )
    for index in checkpoints:
        print(f"{files.dataset}: checkpoint {index.with_suffix('')}", flush=True)


_DOWNLOADERS: dict[str, Callable[[_Collection], None]] = {
    "files": _download_files,
    "paraphrases": _download_mrpc,
    "dump": _download_dump,
    "pubmed": _download_pubmed,
    "articles": _download_articles,
    "books": _take_books,
    "catalogue": _unpack_by_hand,
}
