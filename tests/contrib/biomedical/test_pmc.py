"""Articles of PubMed Central from a server on loopback that answers as its Cloud Service does."""

import gzip
import hashlib
import json
import tarfile

import pytest

from bert_tf.prepare.fetching import sources
from bert_tf.prepare.fetching.download import download
from bert_tf.prepare.fetching.fetch import Client
from tests import preparation
from tests.contrib.biomedical.test_jats import made
from tests.refusals import refused

LIST = "inventory-reports/pmc-oa-opendata/metadata/"


FOLDERS = ("2026-09-20T01-00Z", "2026-09-21T01-00Z", "data", "hive")
LIST_OF_LISTS, NEWEST = f"?list-type=2&delimiter=/&prefix={LIST}", f"{LIST}{FOLDERS[1]}/manifest.json"


def md5(content):
    return hashlib.md5(content).hexdigest()


def article(version):
    return made(f"<p>This is {version}.</p>", title=version).encode()


class Bucket:
    """The service, with the articles that were added to it."""

    def __init__(self, server):
        self._server, self._rows = server, []
        prefixes = "".join(f"<CommonPrefixes><Prefix>{LIST}{name}/</Prefix></CommonPrefixes>" for name in FOLDERS)
        self._add(LIST_OF_LISTS, f"<ListBucketResult>{prefixes}</ListBucketResult>".encode())

    def _add(self, key, content):
        self._server.add(f"/bucket/{key}", content)

    def page(self, key):
        return self._server.pages[f"/bucket/{key}"]

    def add(self, version, license_code="CC BY", **about):
        content = article(version)
        url = f"s3://pmc-oa-opendata/{version}/{version}.xml?md5={md5(content)}"
        flags = {"is_pmc_openaccess": True, "is_retracted": False, "is_historical_ocr": False, **about}
        metadata = {"license_code": license_code, "xml_url": url, **flags}
        self._add(f"metadata/{version}.json", json.dumps(metadata).encode())
        self._add(f"{version}/{version}.xml", content)
        self._rows.append(f'"pmc-oa-opendata","metadata/{version}.json","2026-09-01T01:02:03.000Z","etag"\n')
        rows = [gzip.compress("".join(half).encode()) for half in (self._rows[::2], self._rows[1::2])]
        files = [{"key": f"{LIST}data/{md5(part)}.csv.gz", "MD5checksum": md5(part)} for part in rows]
        for file, part in zip(files, rows):
            self._add(file["key"], part)
        self._add(NEWEST, json.dumps({"files": files}).encode())

    def fetch(self, root, groups=("oa_comm",)):
        source = sources.Source("articles", "pubmed/fulltext", url=self._server.url("/bucket/"))
        client = Client(num_attempts=2, pause_secs=0.0)
        download("pubmed_fulltext", root / "download", {"pubmed_fulltext": source}, client, groups)
        return root / "download/pubmed/fulltext"


@pytest.fixture
def bucket(server):
    return Bucket(server)


def members(path):
    with tarfile.open(path) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}


def test_newest_versions_of_the_wanted_licences_in_packages_that_formatting_reads(bucket, tmp_path, capsys):
    for version in ("PMC7.1", "PMC999.1", "PMC999.2", "PMC1000.1", "PMC12345678.1"):
        bucket.add(version)
    bucket.add("PMC8.1", "CC BY-NC")
    bucket.add("PMC9.1", "TDM", is_pmc_openaccess=False)
    bucket.add("PMC10.1", is_retracted=True)
    bucket.add("PMC11.1", is_historical_ocr=True)
    bucket.add("PMC2001.1", None)
    folder = bucket.fetch(tmp_path)
    assert {path.name: members(path) for path in folder.glob("*.tar.gz")} == {
        "PMC0xxx.tar.gz": {f"oa_comm/{name}.xml": article(name) for name in ("PMC7.1", "PMC999.2")},
        "PMC1xxx.tar.gz": {"oa_comm/PMC1000.1.xml": article("PMC1000.1")},
        "PMC2xxx.tar.gz": {},
        "PMC12345xxx.tar.gz": {"oa_comm/PMC12345678.1.xml": article("PMC12345678.1")},
    }
    counts = json.loads((folder / "manifest.json").read_text())["counts"]
    ones = dict.fromkeys(("num_not_open_access", "num_retracted", "num_scanned"), 1)
    expected = {"num_files": 4, "num_articles": 4, "num_other_licenses": 2, **ones}
    assert {name: count for name, count in counts.items() if name != "num_bytes"} == expected
    # Not asked for: what is not wanted, or superseded.
    assert not any(bucket.page(f"{name}/{name}.xml").requests for name in ("PMC8.1", "PMC9.1", "PMC10.1", "PMC999.1"))
    preparation.run(tmp_path, "text_formatting", dataset="pubmed_fulltext")
    (text,) = (tmp_path / "formatted_one_article_per_line").glob("*.txt")
    titles = [line.split("  ")[0] for line in text.read_text().splitlines()]
    assert titles == ["PMC1000.1", "PMC12345678.1", "PMC7.1", "PMC999.2"]
    preparation.run(tmp_path, "verify", dataset="pubmed_fulltext")
    assert not (folder / ".list").exists()
    bucket.fetch(tmp_path)
    assert "nothing to do" in capsys.readouterr().out
    refused("made differently: license_groups", bucket.fetch, tmp_path, ("oa_noncomm",))


def test_stopped_download_goes_on_with_the_next_package_and_gives_the_same_bytes(bucket, tmp_path):
    for number in (1, 2, 1001, 1002, 2001):
        bucket.add(f"PMC{number}.1")
    bucket.page("PMC1002.1/PMC1002.1.xml").content = b"changed on the way"
    message = "PMC1002.1.xml has the md5 .* start the same command again, .*pubmed/fulltext"
    refused(message, bucket.fetch, tmp_path / "a")
    assert [path.name for path in (tmp_path / "a/download/pubmed/fulltext").glob("[!.m]*")] == ["PMC0xxx.tar.gz"]
    bucket.page("PMC1002.1/PMC1002.1.xml").content = article("PMC1002.1")
    bucket.page("metadata/PMC1.1.json").requests.clear()
    (tmp_path / "a/download/pubmed/fulltext/PMC1xxx.tar.gz").write_bytes(b"finished, but not noted before a kill")
    first, second = bucket.fetch(tmp_path / "a"), bucket.fetch(tmp_path / "b")
    assert len(bucket.page("metadata/PMC1.1.json").requests) == 1  # for b
    for path in second.glob("*.tar.gz"):
        assert (first / path.name).read_bytes() == path.read_bytes()
    assert (first / "manifest.json").read_text() == (second / "manifest.json").read_text()


def test_busy_server_and_articles_removed_since(bucket, tmp_path):
    bucket.add("PMC1.1")
    bucket.add("PMC2.1")
    bucket.page("PMC1.1/PMC1.1.xml").statuses = [(503, {})]
    bucket.page("PMC2.1/PMC2.1.xml").statuses = [(404, {})]
    folder = bucket.fetch(tmp_path)
    assert list(members(folder / "PMC0xxx.tar.gz")) == ["oa_comm/PMC1.1.xml"]
    assert json.loads((folder / "manifest.json").read_text())["counts"]["num_removed"] == 1
    # A package that was deleted is made anew by the newest list, as are packages of new numbers.
    for version in ("PMC3.1", "PMC1002.1"):
        bucket.add(version)
    (folder / "PMC0xxx.tar.gz").unlink()
    bucket.fetch(tmp_path)
    packed = [name for number in (0, 1) for name in members(folder / f"PMC{number}xxx.tar.gz")]
    assert packed == [f"oa_comm/PMC{number}.1.xml" for number in (1, 2, 3, 1002)]


@pytest.mark.parametrize("key,message", [(LIST_OF_LISTS, "lists no articles"), (NEWEST, "not valid JSON")])
def test_answers_of_another_server_are_named(bucket, tmp_path, key, message):
    bucket.add("PMC1.1")
    bucket.page(key).content = b"<html>"
    refused(f"{message}.*put packages or single files of articles into", bucket.fetch, tmp_path)
