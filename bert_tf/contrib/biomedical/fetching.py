"""Downloads PubMed's files and PubMed Central's articles, or finds those that the user has placed."""

from __future__ import annotations

import re
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file
from bert_tf.base.progress import Progress
from bert_tf.contrib.biomedical import pmc, pubmed, pubmed_fulltext
from bert_tf.prepare.fetching.download import Files
from bert_tf.prepare.fetching.fetch import adding_remedy
from bert_tf.prepare.fetching.sources import RemoteFile
from bert_tf.prepare.running.stage import journal_path, read_journal
from bert_tf.records.manifest import FileEntry

_PUBMED_LINK = re.compile(r'href="([^"/?]+\.xml\.gz)"')
_MD5 = re.compile(r"\b[0-9a-fA-F]{32}\b")


def placed_pubmed(files: Files) -> list[Path]:
    """The files that the user has placed, if PubMed's list cannot be read; else [], so that missing ones are fetched.

    [] also if an unfinished download has fetched some of them, because they are only a part.
    """
    placed, journal = pubmed.find_xml_files(files.folder), read_journal(journal_path(files.manifest_path))
    is_partial = journal and any("url" in entry.details for entry in journal.finished.values())
    if placed and not is_partial and not files.manifest_path.exists():
        try:
            list_pubmed(files)
        except UserError as error:
            print(f"{error}\nUntil then:", flush=True)
            return placed
    return []


def list_pubmed(files: Files) -> list[str]:
    """The names of all files that the source lists."""
    remedy = f"fetch the files by other means and put them into {files.folder}, where text_formatting reads them"
    with adding_remedy(remedy):
        names = sorted(set(_PUBMED_LINK.findall(files.client.text(files.source.url))))
        if not names:
            raise UserError(f"{files.source.url} lists no .xml.gz file")
    return names


def fetch_pubmed(files: Files) -> None:
    """Downloads the missing files, each verified by the checksum that is published beside it."""
    names = list_pubmed(files)
    for number, name in enumerate(names, 1):
        if files.needs(name):
            url = f"{files.source.url}{name}"
            with adding_remedy(files.remedy(name)):
                checksum = _MD5.search(files.client.text(f"{url}.md5"))
                if checksum is None:
                    raise UserError(f"{url}.md5 holds no checksum")
            files.fetch(RemoteFile(url, name, f"md5:{checksum[0]}"), f"{name} ({number:,} of {len(names):,})")


def placed_articles(files: Files) -> list[Path]:
    """The packages and single articles that the user has placed; [] while a download is unfinished."""
    return [] if journal_path(files.manifest_path).exists() else pubmed_fulltext.find_files(files.folder)


def fetch_articles(files: Files) -> None:
    """Downloads the missing packages, with the articles of the chosen licence groups."""
    remedy = f"put packages or single files of articles into {files.folder}, where text_formatting reads them"
    with adding_remedy(remedy):
        service = pmc.CloudService(files.client, files.source.url)
        packages = service.packages(files.folder / ".list")
        missing = {name: articles for name, articles in packages.items() if files.needs(name, may_be_placed=False)}
        num_articles, num_missing = (sum(map(len, numbers.values())) for numbers in (packages, missing))
        with Progress(
            total=num_articles, initial=num_articles - num_missing, unit="articles", description=files.dataset
        ) as bar:
            for name, articles in missing.items():
                path = files.folder / name
                counts = service.write_package(path, articles, files.license_groups)
                details = {"url": files.source.url, "counts": counts}
                files.add(name, FileEntry(name, path.stat().st_size, sha256_of_file(path), details))
                bar.update(len(articles), name)
