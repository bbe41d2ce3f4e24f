"""PubMed Central's open-access articles from its Cloud Service, into packages of up to a thousand.

The service has had no packages of its own since August 2026: each version of an article is a JATS file in a public
bucket, with a JSON file beside it that names its licence and its checksum. A list of all versions appears daily.
Described in the bucket's README.txt and at https://pmc.ncbi.nlm.nih.gov/tools/pmcaws.
"""

from __future__ import annotations

import concurrent.futures
import gzip
import io
import json
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file
from bert_tf.contrib.biomedical.jats import license_group
from bert_tf.prepare.fetching.fetch import NUM_CONNECTIONS, Client, NotThereError

_INVENTORIES = "inventory-reports/pmc-oa-opendata/metadata/"
_DATED = re.compile(rf"<Prefix>({re.escape(_INVENTORIES)}\d{{4}}-\d\d-\d\d[^<]*/)</Prefix>")
_LISTED = re.compile(rb'"metadata/PMC(\d{1,8})\.(\d{1,2})\.json"')
_MOST_ARTICLES = 10**8
_PER_PACKAGE = 1000
_MD5 = re.compile(r"[?&]md5=([0-9a-f]{32})")


class CloudService:
    """The bucket at `url`."""

    def __init__(self, client: Client, url: str):
        self._client, self._url = client, url
        # The newest version of each article, by its number. Memory is used only for numbers that occur.
        self._newest = np.zeros(_MOST_ARTICLES, np.uint8)

    def packages(self, folder: Path) -> dict[str, np.ndarray]:
        """The names of the packages -> the numbers of their articles, from the newest list of all articles.

        Args:
          folder: where the list is kept while it is read.
        """
        listing = self._client.text(f"{self._url}?list-type=2&delimiter=/&prefix={_INVENTORIES}")
        newest_list = max(_DATED.findall(listing), default="")
        if not newest_list:
            raise UserError(f"{self._url}{_INVENTORIES} lists no articles")
        print(f"the newest list of articles: {newest_list}", flush=True)
        files = self._json(f"{newest_list}manifest.json")["files"]
        for number, file in enumerate(files, 1):
            url, path, checksum = self._url + file["key"], folder / f"{number}.csv.gz", f"md5:{file['MD5checksum']}"
            label = f"list of articles ({number} of {len(files)})"
            self._client.fetch(url, path, checksum=checksum, label=label)
            with gzip.open(path) as lines:
                for line in lines:
                    if listed := _LISTED.search(line):
                        article, version = int(listed[1]), int(listed[2])
                        self._newest[article] = max(int(self._newest[article]), version)
        shutil.rmtree(folder, ignore_errors=True)
        articles = np.flatnonzero(self._newest)
        packages = np.split(articles, np.flatnonzero(np.diff(articles // _PER_PACKAGE)) + 1)
        return {f"PMC{numbers[0] // _PER_PACKAGE}xxx.tar.gz": numbers for numbers in packages}

    def write_package(self, path: Path, articles: Iterable[int], groups: Collection[str]) -> dict[str, int]:
        """Fetches the articles of these licence groups into a .tar.gz, whose bytes depend on nothing but theirs.

        Returns: the number of articles, and of those left out, by reason.
        """
        counts: Counter[str] = Counter()
        with (
            atomic_file(path) as file,
            gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|") as tar,
            concurrent.futures.ThreadPoolExecutor(NUM_CONNECTIONS) as threads,
        ):
            for name, content in threads.map(lambda number: self._fetch(number, groups), articles):
                counts[name if content is None else "num_articles"] += 1
                if content is not None:
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return dict(sorted(counts.items()))

    def _fetch(self, number: int, groups: Collection[str]) -> tuple[str, bytes | None]:
        """An article's name in the package and its content; or the reason why it is left out, and None."""
        article = f"PMC{number}.{self._newest[number]}"
        try:
            metadata = self._json(f"metadata/{article}.json")
            group = license_group(metadata.get("license_code") or "")
            for reason, applies in (
                ("num_not_open_access", not metadata.get("is_pmc_openaccess")),
                ("num_retracted", metadata.get("is_retracted")),
                ("num_scanned", metadata.get("is_historical_ocr")),
                ("num_other_licenses", group not in groups),
            ):
                if applies:
                    return reason, None
            published = _MD5.search(metadata.get("xml_url") or "")
            checksum = f"md5:{published[1]}" if published else None
            xml = self._client.content(f"{self._url}{article}/{article}.xml", checksum)
        except NotThereError:  # removed since the list was made
            return "num_removed", None
        return f"{group}/{article}.xml", xml

    def _json(self, key: str) -> dict[str, Any]:
        try:
            return json.loads(self._client.content(self._url + key))
        except ValueError as error:
            raise UserError(f"{self._url}{key}: not valid JSON ({error}): start the same command again") from None
