"""Datasets from a server on loopback, or as they were placed by hand."""

import gzip
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path

import pytest

from bert_tf.prepare.fetching import download as module
from bert_tf.prepare.fetching import sources
from bert_tf.prepare.fetching.download import download, unpack
from bert_tf.prepare.fetching.fetch import Client
from bert_tf.prepare.running.stage import read_stage
from tests.preparation import contents, write
from tests.refusals import refused

CLIENT = Client(num_attempts=2, pause_secs=0.0)


def zipped(files):
    """The bytes of a .zip."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return packed.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def served(server, tmp_path, dataset, source):
    """Downloads one dataset into tmp_path."""
    download(dataset, tmp_path, {dataset: source}, CLIENT)


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def squad(server, contents):
    remotes = []
    for name, content in contents.items():
        server.add(f"/{name}", content)
        remotes.append(sources.RemoteFile(server.url(f"/{name}"), name, f"sha256:{sha256(content)}"))
    return sources.Source("files", "squad", tuple(remotes))


def test_files_of_a_dataset_and_nothing_to_do_then(server, tmp_path, capsys):
    """What is missing is fetched, what was placed is taken."""
    source = squad(server, {"v1.1/train-v1.1.json": b"{1}", "v2.0/dev-v2.0.json": b"{2}", "a.json": b"published"})
    folder = tmp_path / "squad"
    write(folder / "a.json", "my own")
    served(server, tmp_path, "squad", source)
    assert contents(folder).keys() == {"v1.1/train-v1.1.json", "v2.0/dev-v2.0.json", "a.json", "manifest.json"}
    manifest = manifest_of(folder)
    assert manifest["counts"] == {"num_files": 3, "num_bytes": 12}
    placed, first, _ = manifest["shards"]["files"]
    url = server.url("/v1.1/train-v1.1.json")
    assert first == {"file": "v1.1/train-v1.1.json", "url": url, "bytes": 3, "sha256": sha256(b"{1}")}
    assert (folder / "a.json").read_bytes() == b"my own" and "url" not in placed
    assert f"taking {folder}/a.json as placed there" in capsys.readouterr().out
    server.pages.clear()
    served(server, tmp_path, "squad", source)
    assert "nothing to do" in capsys.readouterr().out


def test_what_verify_has_found_broken_is_fetched_again(server, tmp_path, capsys):
    """As published, even where the user had placed it."""
    source = squad(server, {"a.json": b"published", "b.json": b"b"})
    write(tmp_path / "squad/a.json", "published")
    served(server, tmp_path, "squad", source)
    before = manifest_of(tmp_path / "squad")
    path = tmp_path / "squad/a.json"
    path.write_bytes(b"publisheD")
    read_stage(tmp_path / "squad/manifest.json", "download").note_damaged(["a.json"])
    served(server, tmp_path, "squad", source)
    assert (tmp_path / "squad/a.json").read_bytes() == b"published"
    after = manifest_of(tmp_path / "squad")
    assert after["shards"]["files"][0].pop("url") and after == before
    assert len(server.pages["/b.json"].requests) == 1


def test_bc5cdr_goes_where_biobert_looks(server, tmp_path):
    """BLUE's archive, of which only these files are taken; into no folder below that of the downloads."""
    names = [f"{kind}/{part}.tsv" for kind in ("chem", "disease") for part in ("train", "devel", "test")]
    inside = ("ChemProt/train.tsv", *(f"BC5CDR/{name}" for name in names))
    server.add("/bert_data.zip", zipped({f"bert_data/{name}": b"x" for name in inside}))
    source = sources.SOURCES["bc5cdr"]
    archive = source.archives[0]._replace(url=server.url("/bert_data.zip"))
    root = tmp_path / "work/download"
    download("bc5cdr", root, {"bc5cdr": source._replace(archives=(archive,))}, CLIENT)
    assert contents(tmp_path / "work").keys() == {f"biobert/BC5CDR/{name}" for name in ("manifest.json", *names)}


WEIGHTS = {"bert_config.json": b"{}", "vocab.txt": b"[PAD]", "bert_model.ckpt.index": b"i" * 9000}


def weights(server, checksums=None):
    server.add("/uncased.zip", zipped({f"uncased/{name}": content for name, content in WEIGHTS.items()}))
    files = checksums or {name: f"sha256:{sha256(content)}" for name, content in WEIGHTS.items()}
    files = {f"uncased/{name}": checksum for name, checksum in files.items()}
    archive = sources.Archive(server.url("/uncased.zip"), files)
    return sources.Source("files", "google", archives=(archive,))


@pytest.mark.parametrize("is_placed", [False, True])
def test_archive_becomes_a_folder_but_for_what_is_there(server, tmp_path, capsys, is_placed):
    source, folder = weights(server), tmp_path / "google"
    write(folder / "uncased/vocab.txt", "mine!")
    if is_placed:
        write(folder / "uncased.zip", server.pages.pop("/uncased.zip").content)
    served(server, tmp_path, "google", source)
    made = contents(folder / "uncased")
    assert made == {**WEIGHTS, "vocab.txt": b"mine!"} and (folder / "uncased.zip").exists() == is_placed
    assert manifest_of(folder)["counts"]["num_bytes"] == sum(map(len, made.values()))
    assert ("unpacking" in capsys.readouterr().out) == is_placed


def test_an_archive_that_was_fetched_before_a_kill_is_unpacked_and_removed(server, tmp_path, monkeypatch):
    source = weights(server)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "unpack", killed)
        served(server, tmp_path, "google", source)
    del server.pages["/uncased.zip"]
    served(server, tmp_path, "google", source)
    assert contents(tmp_path / "google").keys() == {"manifest.json", *(f"uncased/{name}" for name in WEIGHTS)}
    assert not [*tmp_path.rglob("*.zip")]


NOT_PUBLISHED = "delete .*uncased.zip, which is not the published"


@pytest.mark.parametrize(
    "files,change,message",
    [
        ({"vocab.txt": "sha256:0"}, bytes, f"vocab.txt has the sha256 .*{NOT_PUBLISHED}"),
        ({"merges.txt": None}, bytes, "uncased.zip: damaged, .*no item named 'uncased/merges.txt'.*delete .*"),
        (None, lambda whole: whole.replace(b"iiii", b"iIii", 1), "uncased.zip: damaged, or not what its name says"),
        (None, lambda _: b"<html>not found</html>", "uncased.zip: damaged, or not what its name says"),
        # The list of files would begin before the archive.
        (None, lambda whole: whole[:-6] + b"\xff\xff\xff\0\0\0", "uncased.zip: damaged, or not what its name says"),
    ],
)
def test_archive_that_is_not_the_published_one(server, tmp_path, files, change, message):
    source = weights(server, files)
    server.pages["/uncased.zip"].content = change(server.pages["/uncased.zip"].content)
    refused(message, served, server, tmp_path, "google", source)
    assert not (tmp_path / "google/uncased").exists()


def test_nothing_is_unpacked_outside(tmp_path):
    packed = tmp_path / "a.zip"
    names = ["../evil", "top/../../evil", "/evil", "C:\\evil", "a\\..\\b"]
    packed.write_bytes(zipped({"good.txt": b"good", **dict.fromkeys(names, b"evil")}))
    unpack(packed, tmp_path / "in/out")
    outside = [path for path in tmp_path.rglob("*") if tmp_path / "in/out" not in (path, *path.parents)]
    assert sorted(outside) == [packed, tmp_path / "in"] and not Path("/evil").exists()


@pytest.mark.parametrize("name, damaged", [("name", b"\0ame"), ("é", b"\xff\xff")])
def test_a_damaged_name_in_an_archive(tmp_path, name, damaged):
    packed = tmp_path / "a.zip"
    packed.write_bytes(zipped({name: b"good"}).replace(name.encode(), damaged))
    refused("a.zip: damaged, or not what its name says .*delete .*a.zip", unpack, packed, tmp_path / "out")


def test_mrpc_is_split_as_glue_does(server, tmp_path):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    server.add("/train.txt", (header + '1\t10\t11\tHe said "yes.\tHe did.\n0\t20\t21\tA.\tB.\n').encode())
    server.add("/test.txt", (header + "1\t30\t31\tC.\tD.").encode())
    server.add("/ids.tsv", b"20\t21\n")
    names = ("train.txt", "test.txt", "ids.tsv")
    files = tuple(sources.RemoteFile(server.url(f"/{name}"), name) for name in names)
    served(server, tmp_path, "mrpc", sources.Source("paraphrases", "glue/MRPC", files))
    folder, header = tmp_path / "glue/MRPC", header.removeprefix("\ufeff")
    assert (folder / "train.tsv").read_text() == header + '1\t10\t11\tHe said "yes.\tHe did.\n'
    assert (folder / "dev.tsv").read_text() == header + "0\t20\t21\tA.\tB.\n"
    assert (folder / "test.tsv").read_text() == header.replace("Quality", "index") + "0\t30\t31\tC.\tD.\n"


def wiki(server, dates=("20240101", "20240120")):
    links = "".join(f'<a href="{date}/">{date}/</a>' for date in dates) + '<a href="latest/">l</a>'
    server.add("/enwiki/", links.encode())
    return sources.Source("dump", "wikicorpus_en", url=server.url("/enwiki/"))


def add_dump(server, date, content, sums=None):
    articles = f"enwiki-{date}-pages-articles-multistream.xml.bz2"
    digest = hashlib.sha1(content).hexdigest()
    text = sums if sums is not None else f"{'0' * 40}  enwiki-{date}-stub.gz\n{digest}  {articles}\n"
    server.add(f"/enwiki/{date}/enwiki-{date}-sha1sums.txt", text.encode())
    server.add(f"/enwiki/{date}/{articles}", content)


def test_newest_complete_dump_is_fetched(server, tmp_path, capsys):
    source = wiki(server, ("20240101", "20231220", "20240120", "20240201"))
    add_dump(server, "20240101", b"older")
    add_dump(server, "20231220", b"oldest")
    # Of the newest there is no list yet, the next one is still being made.
    add_dump(server, "20240120", b"new", sums="0000  enwiki-20240120-stub.gz\n")
    served(server, tmp_path, "wikicorpus_en", source)
    assert (tmp_path / "wikicorpus_en/wikicorpus_en.xml.bz2").read_bytes() == b"older"
    assert "of 20240101" in capsys.readouterr().out


@pytest.mark.parametrize(
    "dataset,name",
    [
        ("wikicorpus_en", "wikicorpus_en/my own dump.xml"),
        ("bookscorpus", "bookscorpus/mine/a.txt"),
        ("pubmed_fulltext", "pubmed/fulltext/oa_comm_xml.PMC000xxxxxx.baseline.2025-06-26.tar.gz"),
    ],
)
def test_what_is_placed_is_taken_without_a_network(tmp_path, capsys, dataset, name):
    path = write(tmp_path / name, "placed")
    download(dataset, tmp_path, client=object())
    assert f"taking {path} as placed there" in capsys.readouterr().out
    assert contents(tmp_path).keys() == {name}


def pubmed(server, names, *, grows=False):
    server.add("/pubmed/", "".join(f'<a href="{name}">{name}</a> <a href="{name}.md5">' for name in names).encode())
    for name in names:
        content = gzip.compress(name.encode(), mtime=0)
        server.add(f"/pubmed/{name}", content)
        server.add(f"/pubmed/{name}.md5", f"MD5({name})= {hashlib.md5(content).hexdigest()}\n".encode())
    return sources.Source("pubmed", "pubmed/baseline", url=server.url("/pubmed/"), grows=grows)


def test_all_files_of_a_list_which_may_grow(server, tmp_path, capsys):
    names = ["pubmed25n0003.xml.gz", "pubmed25n0004.xml.gz"]
    source, folder = pubmed(server, names, grows=True), tmp_path / "pubmed/baseline"
    served(server, tmp_path, "pubmed_daily_update", source)
    assert contents(folder).keys() == {*names, "manifest.json"}
    served(server, tmp_path, "pubmed_daily_update", source)
    assert len(server.pages["/pubmed/pubmed25n0004.xml.gz"].requests) == 1
    pubmed(server, [*names, "pubmed25n0005.xml.gz"], grows=True)
    served(server, tmp_path, "pubmed_daily_update", source)
    assert not server.pages["/pubmed/pubmed25n0004.xml.gz"].requests
    assert manifest_of(folder)["counts"]["num_files"] == 3


def test_pubmed_files_placed_by_hand_are_taken_where_there_is_no_network(server, tmp_path, capsys):
    path = write(tmp_path / "pubmed/baseline/pubmed25n0001.xml.gz", "placed")
    source = sources.Source("pubmed", "pubmed/baseline", url=server.url("/nowhere/"))
    served(server, tmp_path, "pubmed_baseline", source)
    said = capsys.readouterr().out
    assert "/nowhere/" in said and "taking" in said and "pubmed25n0001.xml.gz" in said
    assert list(path.parent.iterdir()) == [path]


def test_a_part_of_pubmed_that_was_fetched_is_not_taken_for_all_of_it(server, tmp_path):
    source = pubmed(server, ["pubmed25n0001.xml.gz", "pubmed25n0002.xml.gz"])
    del server.pages["/pubmed/pubmed25n0002.xml.gz"]
    refused("pubmed25n0002.xml.gz: 404", served, server, tmp_path, "pubmed_baseline", source)
    server.pages.clear()  # now there is no network
    refused("/pubmed/: 404", served, server, tmp_path, "pubmed_baseline", source)


def test_wrong_md5_of_one_file_is_named(server, tmp_path):
    source = pubmed(server, ["pubmed25n0001.xml.gz", "pubmed25n0002.xml.gz"])
    server.pages["/pubmed/pubmed25n0002.xml.gz"].content = b"other"
    refused("pubmed25n0002.xml.gz: .* has the md5", served, server, tmp_path, "pubmed_baseline", source)
    assert contents(tmp_path / "pubmed/baseline").keys() == {"pubmed25n0001.xml.gz"}
    server.pages["/pubmed/pubmed25n0002.xml.gz.md5"].content = b"<html>"
    refused("pubmed25n0002.xml.gz.md5 holds no checksum", served, server, tmp_path, "pubmed_baseline", source)


def test_nvidia_weights_are_recognised_where_they_are_placed(tmp_path, capsys):
    folder = tmp_path / "nvidia_pretrained_weights"
    write(folder / "bert_tf_large.zip", zipped({"model.ckpt-5.index": b"i", "model.ckpt-5.meta": b"m"}))
    for _ in range(2):
        download("nvidia_pretrained_weights", tmp_path)
        assert f"checkpoint {folder}/bert_tf_large/model.ckpt-5\n" in capsys.readouterr().out
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_all_goes_on_past_what_cannot_be_had(server, tmp_path, capsys):
    table = {
        "squad": squad(server, {"a.json": b"a"}),
        "bookscorpus": sources.Source("books", "bookscorpus"),
        "wikicorpus_en": wiki(server),
    }
    refused("1 of 3 datasets could not be downloaded: wikicorpus_en", download, "all", tmp_path, table, CLIENT)
    output = capsys.readouterr().out
    assert "left out: BookCorpus is no longer distributed" in output
    assert re.search("failed: .*no complete dump.*put it there as .*wikicorpus_en.xml.bz2", output)
    add_dump(server, "20240120", b"dump")
    download("all", tmp_path, table, CLIENT)
    assert (tmp_path / "squad/a.json").exists()


def test_every_source_has_its_checksums_and_places():
    folders = [source.folder for source in sources.SOURCES.values()]
    assert len(set(folders)) == len(folders)
    for source in sources.SOURCES.values():
        assert all(remote.checksum for remote in source.files)
        for archive in source.archives:
            # None are published for those that are fetched by name only.
            assert archive.checksum or all(archive.files.values()) or source.by_name_only, archive.url
