"""PubMed's full text: packages and single files, the newest version of each article, licence groups, damage."""

import functools
import gzip
import io
import tarfile

import pytest

from bert_tf.contrib.biomedical import pubmed_fulltext
from bert_tf.prepare.corpora import documents
from bert_tf.settings.preparation import LICENSE_GROUPS
from tests import preparation
from tests.contrib.biomedical.test_jats import made
from tests.preparation import assert_left_out, assert_resumable, cleaned, sorted_out
from tests.refusals import refused

CC_BY = '<permissions><license xlink:href="http://creativecommons.org/licenses/by/4.0/"/></permissions>'


def article(title, **options):
    return made(f"<p>The text of {title} is here.</p>", title=title, **options).encode()


def package(path, members):
    """A .tar.gz of `members`, contents by name; a text is the title of an article."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        folder = tarfile.TarInfo("PMC000xxxxxx")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in members.items():
            content = article(content) if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return preparation.write(path, gzip.compress(raw.getvalue(), mtime=0))


def read(folder, groups=LICENSE_GROUPS):
    """(titles, counts of what was dropped, faults of bad records, damages)"""
    paths = pubmed_fulltext.find_files(folder)
    clean = functools.partial(pubmed_fulltext.clean, groups=groups, captions=False)
    lines, *others = sorted_out(cleaned(pubmed_fulltext.read_batches(paths, folder, {}), clean))
    return ([line.split("  ")[0] for line in lines], *others)


def test_packages_and_single_files_at_any_depth(tmp_path):
    package(tmp_path / "a/b.tar.gz", {"PMC1/one.nxml": "One", "PMC1/film.avi": b"x", "x/two.xml": "Two"})
    package(tmp_path / "c.tgz", {"PMC3.xml": "Three"})
    (tmp_path / "four.nxml").write_bytes(article("Four"))
    preparation.write(tmp_path / "d/.hidden/six.xml", b"")
    (tmp_path / "d/five.xml").write_bytes(article("Five"))
    assert read(tmp_path) == (["Four", "Five", "Three", "One", "Two"], {}, [], [])


def test_newest_of_an_articles_versions_counts(tmp_path):
    one, two, three = (f"PMC000xxxxxx/PMC{number}.xml" for number in (1, 2, 3))
    baseline = tmp_path / "oa_comm_xml.PMC000xxxxxx.baseline.2024-12-18.tar.gz"
    package(baseline, {one: "Old 1", two: "Old 2", three: "Old 3"})
    package(tmp_path / "oa_comm_xml.incr.2025-01-02.tar.gz", {two: "Newest 2"})
    package(tmp_path / "oa_comm_xml.incr.2025-01-01.tar.gz", {two: "New 2", three: "New 3"})
    (tmp_path / "PMC4.1.xml").write_bytes(article("First 4"))
    (tmp_path / "PMC4.2.xml").write_bytes(article("Second 4"))
    assert read(tmp_path) == (["Second 4", "Newest 2", "New 3", "Old 1"], {"superseded": 4}, [], [])


@pytest.mark.parametrize(
    "name,group",
    [
        ("oa_comm_xml.PMC001xxxxxx.baseline.2025-06-26.tar.gz", "oa_comm"),
        ("oa_noncomm/PMC1.xml", "oa_noncomm"),
        ("PMC1xxx.tar.gz/oa_other/PMC1.1.xml", "oa_other"),
        ("comm_use.A-B.xml.tar.gz", "oa_comm"),
        ("non_comm_use.A-B.xml.tar.gz", "oa_noncomm"),
        ("commuters/oa_commerce.tar.gz", ""),
    ],
)
def test_group_that_a_name_tells(name, group):
    assert pubmed_fulltext.find_license_group(name) == group


def test_group_is_the_names_or_else_the_articles_own(tmp_path):
    package(tmp_path / "oa_noncomm_xml.tar.gz", {"PMC1.xml": article("By its package", meta=CC_BY)})
    by_licence = article("By licence", meta=CC_BY)
    package(tmp_path / "mixed.tar.gz", {"oa_comm/PMC2.xml": "By its folder", "PMC3.xml": by_licence, "4.xml": "4"})
    titles, dropped, _, _ = read(tmp_path, groups=("oa_comm",))
    assert (titles, dropped) == (["By its folder", "By licence"], {"other_licenses": 2})


def test_reading_resumes_after_any_batch(tmp_path, monkeypatch):
    for part in range(2):
        members = {f"PMC{part}{number}.xml": article(f"T {part} {number}") for number in range(10, 30)}
        package(tmp_path / f"incr.2025-01-0{part + 1}.tar.gz", {**members, "PMC99.xml": article(f"Part {part}")})
    titles, dropped, _, _ = read(tmp_path)
    assert dropped == {"superseded": 1} and "Part 1" in titles
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 1000)
    paths = pubmed_fulltext.find_files(tmp_path)
    assert_resumable(functools.partial(pubmed_fulltext.read_batches, paths, tmp_path), paths, least=6)


def cut(path):
    path.write_bytes(path.read_bytes()[:-900])


@pytest.mark.parametrize(
    "damage,num_kept,said",
    [(cut, (100, 298), "cut off or damaged"), (lambda path: preparation.flip(path, -8), (300, 300), "CRC check")],
)
def test_damaged_package_keeps_the_articles_before_and_is_named(tmp_path, damage, num_kept, said):
    path = package(tmp_path / "a.tar.gz", {f"PMC{n}.xml": article(f"{n} {n**40}") for n in range(300)})
    damage(path)
    titles, _, bad, (sentence,) = read(tmp_path)
    assert num_kept[0] <= len(titles) <= num_kept[1] and not bad
    assert sentence.startswith("a.tar.gz: ") and said in sentence
    assert "the <article> elements up to there were kept; fetch the file again" in sentence


def test_older_package_stands_in_for_what_was_cut_off(tmp_path):
    new = package(tmp_path / "incr.2025-01-02.tar.gz", {f"PMC{n}.xml": article(f"New {n} {n**40}") for n in range(300)})
    package(tmp_path / "incr.2025-01-01.tar.gz", {f"PMC{n}.xml": article(f"Old {n}") for n in range(300)})
    cut(new)
    titles, dropped, _, _ = read(tmp_path)
    assert len(titles) == 300 and dropped["superseded"] == sum(title.startswith("New") for title in titles) < 300


def test_package_without_an_article_is_refused_and_an_empty_one_is_none(tmp_path):
    path = package(tmp_path / "a.tar.gz", {"a.pdf": b"x"})
    refused("a.tar.gz: no <article> in it: another kind of file", read, tmp_path)
    path.write_bytes(b"<html>")
    refused("a.tar.gz: no <article> in it, cut off or damaged at byte .* fetch it again", read, tmp_path)
    with tarfile.open(path, "w:gz"):
        pass
    assert read(tmp_path) == ([], {}, [], [])


def test_article_too_large_for_memory_is_a_bad_record(tmp_path, monkeypatch):
    monkeypatch.setattr(pubmed_fulltext, "LARGEST_DOCUMENT_BYTES", 1000)
    package(tmp_path / "a.tar.gz", {"PMC1.xml": article("x" * 1000), "PMC2.xml": article("Two")})
    titles, _, bad, _ = read(tmp_path)
    assert titles == ["Two"] and bad[0].startswith("PMC1.xml: 2,")


def damaged_header(content, place):
    return content[: place + 150] + b"?" + content[place + 151 :]


@pytest.mark.parametrize(
    "damage", [damaged_header, lambda content, place: content[:place], lambda content, place: content[: place + 99]]
)
def test_damage_from_before_the_package_was_compressed_is_named(tmp_path, damage):
    """Of which gzip's checksum says nothing, and at which `tarfile` ends as at the end of a package."""
    path = package(tmp_path / "a.tar.gz", {f"PMC{n}.xml": f"{n}" for n in range(9)})
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(damage(content, content.index(b"PMC5.xml"))))
    titles, _, bad, (sentence,) = read(tmp_path)
    assert titles == [f"{n}" for n in range(5)] and not bad and "no end of the package follows" in sentence


def test_a_name_of_gigabytes_is_damage(tmp_path):
    """`tarfile` would read it into memory: it comes as the content of a member before the file itself."""
    path = package(tmp_path / "a.tar.gz", {"PMC1.xml": "One"})
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    article_alone = gzip.decompress(path.read_bytes()).rstrip(b"\0")
    padding = bytes(-len(article_alone) % 512)
    path.write_bytes(gzip.compress(article_alone + padding + name.tobuf(tarfile.GNU_FORMAT) + bytes(40 << 20), 1))
    titles, _, bad, (damage,) = read(tmp_path)
    assert titles == ["One"] and not bad and "more than 33,554,432 bytes between two files" in damage


def test_text_by_the_command_line_and_again_after_damage(tmp_path):
    members = {"x/PMC1.xml": article("One", meta=CC_BY), "x/PMC2.xml": b"<article>", "x/PMC3.xml": article("Three")}
    package(tmp_path / "download/pubmed/fulltext/a.tar.gz", members)
    lines = ["One  The text of One is here.", "Three  The text of Three is here."]
    options = ("--captions", "--license_groups", "oa_comm,oa_other")
    fault = "a.tar.gz, x/PMC2.xml: XML: no element found"
    assert_left_out(tmp_path, "pubmed_fulltext", fault, lines, *options)
    (text,) = (tmp_path / "formatted_one_article_per_line").glob("*.txt")
    content = text.read_bytes()
    text.write_bytes(content[:-1] + b"!")
    preparation.run(tmp_path, "verify", "--repair", dataset="pubmed_fulltext")
    assert text.read_bytes() == content
