"""PubMed's files: title and abstract, the last version of each citation, deletions, damage."""

import functools
import gzip
import zlib

import pytest

from bert_tf.contrib.biomedical import pubmed
from bert_tf.prepare.corpora import documents
from bert_tf.prepare.corpora.documents import Document, Dropped
from tests import preparation
from tests.preparation import assert_left_out, assert_resumable, cleaned, sorted_out
from tests.refusals import refused


def article(pmid, title="A title.", abstract="An abstract. It ends.", version=1):
    parts = abstract if abstract.startswith("<") else f"<AbstractText>{abstract}</AbstractText>"
    return (
        f'<PubmedArticle><MedlineCitation Status="MEDLINE">\n<PMID Version="{version}">{pmid}</PMID>'
        f"<Article><ArticleTitle>{title}</ArticleTitle>"
        + (f"<Abstract>{parts}</Abstract>" if abstract else "")
        + '</Article><OtherAbstract Language="fre"><AbstractText>Autre.</AbstractText>'
        "</OtherAbstract><CommentsCorrectionsList><CommentsCorrections><PMID>999</PMID>"
        "</CommentsCorrections></CommentsCorrectionsList></MedlineCitation></PubmedArticle>\n"
    )


def deletion(*pmids):
    return "<DeleteCitation>" + "".join(f"<PMID>{pmid}</PMID>" for pmid in pmids) + "</DeleteCitation>"


def write(folder, name, *elements, end="</PubmedArticleSet>\n"):
    content = (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE PubmedArticleSet SYSTEM "x.dtd">\n'
        "<PubmedArticleSet>\n" + "".join(elements) + end
    ).encode()
    return preparation.write(folder / name, gzip.compress(content) if name.endswith("gz") else content)


def read(*paths):
    return sorted_out(cleaned(pubmed.read_batches(paths, {}), pubmed.clean))


def titles_and_dropped(*paths):
    lines, dropped, _, _ = read(*paths)
    return [line.split("  ")[0] for line in lines], dropped


@pytest.mark.parametrize("name", ["a.xml", "a.xml.gz"])
def test_title_and_parts_of_the_abstract_as_paragraphs(tmp_path, name):
    path = write(
        tmp_path,
        name,
        article(
            1,
            "On H<sub>2</sub>O &amp; <i>E. coli</i>.",
            '<AbstractText Label="BACKGROUND">Why &#946;\n\t\t\t<sub>2</sub>?</AbstractText>'
            '<AbstractText Label="RESULTS">Because x<sup>2</sup>.<mml:math '
            'xmlns:mml="m"><mml:mi>y</mml:mi></mml:math> End.</AbstractText><CopyrightInformation>'
            "Copyright.</CopyrightInformation>",
        ),
        article(2, "[Titre en <i>latin</i>].", "Text. (ABSTRACT TRUNCATED AT 250 WORDS)"),
        article(3, abstract=""),
        article(4, abstract="<AbstractText> </AbstractText>"),
        "<PubmedBookArticle><BookDocument><PMID>5</PMID><Book><BookTitle>The book</BookTitle></Book>"
        "<Abstract><AbstractText>Its text.</AbstractText></Abstract></BookDocument></PubmedBookArticle>",
    )
    lines = ["On H2O & E. coli.  Why β2?  Because x2. End.", "Titre en latin  Text.", "The book  Its text."]
    assert read(path) == (lines, {"without_abstract": 2}, [], [])


def test_newest_version_counts_and_deleted_ones_never(tmp_path):
    write(tmp_path, "baseline/pubmed25n0001.xml.gz", article(1, "Old 1."), article(2, "Old 2."))
    write(tmp_path, "baseline/pubmed25n0002.xml.gz", article(3, "Old 3."), article(4, "Old 4."))
    write(tmp_path, "daily_update/pubmed25n0003.xml.gz", article(1, "New 1."), article(5, "New 5."), deletion(3))
    # The last file deletes what the same and an earlier update have brought.
    write(tmp_path, "daily_update/pubmed25n0004.xml.gz", article(6, "New 6."), article(2, "New 2."), deletion(6, 5))
    paths = pubmed.find_files(tmp_path)
    assert [path.name[10:13] for path in paths] == ["004", "003", "002", "001"]
    assert titles_and_dropped(*paths) == (["New 2.", "New 1.", "Old 4."], {"superseded_or_deleted": 5})


def test_highest_version_of_a_citation_in_one_file(tmp_path):
    versions = [article(1, f"Version {version}.", version=version) for version in (1, 3, 2)]
    path = write(tmp_path, "a.xml", *versions, article(2, "Same."), article(2, "Same again."))
    assert titles_and_dropped(path) == (["Version 3.", "Same again."], {"superseded_or_deleted": 3})


def test_reading_goes_on_after_any_batch(tmp_path, monkeypatch):
    paths = [write(tmp_path, f"{n}.xml", *(article(n, f"T {n}.") for n in range(1, 30))) for n in range(2)]
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 200)
    assert_resumable(functools.partial(pubmed.read_batches, paths), paths, least=10)


def test_cut_file_keeps_its_articles_and_says_so(tmp_path):
    articles = (article(number, f"T {number}.", "Words. " * 50 + str(number**9)) for number in range(1, 400))
    path = write(tmp_path, "a.xml.gz", *articles)
    cut = path.read_bytes()[:-1000]
    path.write_bytes(cut)
    whole_articles = zlib.decompressobj(wbits=31).decompress(cut).count(b"</PubmedArticle>")
    lines, _, _, (damage,) = read(path)
    assert 100 < len(lines) == whole_articles < 399
    assert damage.startswith("a.xml.gz: cut off or damaged at byte")
    assert "the <PubmedArticle> elements up to there were kept" in damage
    plain = write(tmp_path, "b.xml", article(1), article(2)[:90], end="")
    lines, _, _, (damage,) = read(plain)
    assert len(lines) == 1 and "without its closing tag" in damage
    plain.write_bytes(b"no xml")
    refused("b.xml.*no <PubmedArticle> in it", read, plain)


def test_formulas_leave_no_empty_brackets_and_their_prefix_may_be_declared_outside(tmp_path):
    formula = "<mml:math><mml:mi>x</mml:mi></mml:math>"
    brackets = f"x (<i>{formula}</i>; {formula}) [{formula}] or ({formula}= 3)"
    path = write(tmp_path, "a.xml", article(1, "Title.", f"We saw {formula} <![CDATA[a < b & c]]>, {brackets}."))
    content = path.read_text().replace("<PubmedArticleSet>", '<PubmedArticleSet xmlns:mml="http://www.w3.org/x">')
    path.write_text(content)
    assert read(path)[0] == ["Title.  We saw a < b & c, x or (= 3)."]


# None would come to its end if its time grew with the square of the length.
@pytest.mark.parametrize("text", [" " * 1_000_000 + "x", "\n" * 1_000_000 + "<i>2</i>", "(ABSTRACT TRUNCATED" * 50_000])
def test_white_space_takes_linear_time(text):
    assert pubmed.clean(article(1, "Title.", f"It is{text}").encode()).line.startswith("Title.  It is")


def test_numbers_that_never_begin_take_linear_time():
    assert list(pubmed._numbers(b"<PMID " * 200_000 + b"<PMID>x</PMID><PMID>7</PMID>")) == [(7, 1)]


def test_files_of_two_years_say_what_to_do(tmp_path):
    for year in (25, 26):
        write(tmp_path, f"baseline/pubmed{year}n0001.xml.gz", article(1))
    refused("files of several years: pubmed25n0001.xml.gz, pubmed26.*: a year's", pubmed.find_files, tmp_path)


@pytest.mark.parametrize(
    "bad,message",
    [
        (f"<PubmedArticle><PMID Version='1'>{'1' * 5000}</PMID></PubmedArticle>", "element 2 has no PMID"),
        ("<QubmedArticle><PMID>12</PMID></PubmedArticle>", "PMID 12: XML: mismatched"),
    ],
)
def test_bad_citations_are_named_and_left_out_up_to_a_limit(tmp_path, bad, message):
    good = "<PubmedArticle><PMID>{}</PMID><Abstract><AbstractText>It is {}.</AbstractText></Abstract></PubmedArticle>"
    content = f"<PubmedArticleSet>{good.format(1, 1)}{bad}{good.format(3, 3)}</PubmedArticleSet>"
    preparation.write(tmp_path / "download/pubmed/baseline/a.xml", content)
    assert_left_out(tmp_path, "pubmed_baseline", f"a.xml, {message}", ["It is 1.", "It is 3."])


@pytest.mark.parametrize(
    "title,vernacular,shown",
    [
        ("[Not Available].", "Le fer chez quarante malades.", "Le fer chez quarante malades."),
        ("", "Kupfer bei zwanzig Kranken.", "Kupfer bei zwanzig Kranken."),
        ("[Not Available].", "[Not Available].", ""),
        ("[A study of lead].", "Blei.", "A study of lead"),
        ("Not available in stores: a survey.", "", "Not available in stores: a survey."),
        ("Uptake &lt;i&gt;in vitro&lt;/i&gt; (P &lt; 1).", "", "Uptake in vitro (P < 1)."),
    ],
)
def test_a_placeholder_is_no_title(title, vernacular, shown):
    xml = article(1, title)
    xml = xml.replace("</Article>", f"<VernacularTitle>{vernacular}</VernacularTitle></Article>") if vernacular else xml
    assert pubmed.clean(xml.encode()).line == "  ".join(filter(None, (shown, "An abstract. It ends.")))


@pytest.mark.parametrize(
    "abstract",
    ["[ABSTRACT NOT AVAILABLE]", "n/a.", "No abstract available.", "Abstract is not available", " [Not Available]. "],
)
def test_a_placeholder_is_no_abstract(abstract):
    assert pubmed.clean(article(1, abstract=abstract).encode()) == Dropped("without_abstract")
    parts = f"<AbstractText>{abstract}</AbstractText><AbstractText>No abstract art. It is known.</AbstractText>"
    assert pubmed.clean(article(1, abstract=parts).encode()) == Document("A title.  No abstract art. It is known.")
