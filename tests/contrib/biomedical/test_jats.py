"""Articles in JATS: which of their elements are prose, which citations are words, and under which licence they are."""

from pathlib import Path

import pytest

from bert_tf.contrib.biomedical import jats
from bert_tf.prepare.corpora.documents import BadRecord, Document, Dropped
from bert_tf.settings.preparation import LICENSE_GROUPS, PreparationOptions
from tests.refusals import refused

# Every element that such articles have in their text.
ARTICLE = Path(__file__).with_name("article.nxml").read_text()

PARAGRAPHS = """On E. coli & H2O: a trial
Why α2?
Because.
In plain words.
Text before sections Lab of X.
Found in mice. It grew 106-fold (Smith et al., 2010), as Smith (2010) said; see Figure 1.
We list:
first of all;
second.
Nested item.
and we go on.
The mass is where all is named, styled, abbr., bold broken, mono, linked, http://y.org. More after the figure.
It is boxed.
It is quoted.
Said by her.
It is stated.
ALT: alanine aminotransferase.
A line of verse,
and another.
He
I speak.
a < b & c.
Signed.""".split("\n")

CAPTIONS = ("A caption's title.", "A caption.", "A table's caption.", "Group caption.", "Part caption.")


def cleaned(xml, *, groups=LICENSE_GROUPS, captions=False, group=""):
    xml = xml if isinstance(xml, bytes) else xml.encode()
    return jats.clean("it", xml, group=group, groups=groups, captions=captions)


def made(body="<p>It is so.</p>", meta="", attributes="", title="A title"):
    return (
        f'<article xmlns:xlink="x" {attributes}><front><article-meta><title-group><article-title>{title}'
        f"</article-title></title-group>{meta}</article-meta></front><body>{body}</body></article>"
    )


def text_of(body):
    (document,) = cleaned(made(body))
    return document.line.removeprefix("A title").removeprefix("  ")


def test_title_abstracts_and_prose_in_order():
    (document,) = cleaned(ARTICLE)
    assert document.line.split("  ") == PARAGRAPHS
    counts = dict(headings=8, citations=6, formulas=2, figures=3, tables=1, footnotes=1, code=2, supplements=1)
    assert document.num_removed == counts


def test_captions_follow_the_paragraph_that_they_stand_in():
    (document,) = cleaned(ARTICLE, captions=True)
    assert document.line.split("  ") == [*PARAGRAPHS[:12], *CAPTIONS, *PARAGRAPHS[12:], "A floating caption."]


@pytest.mark.parametrize(
    "written,read",
    [
        ("as seen [{1}].", "as seen."),
        ("as seen [{1}, {2}; {3}] and", "as seen and"),
        ("as seen ({1}-{3}, 7 and {2}).", "as seen."),
        ("as seen {[1]}, {[2]}.", "as seen."),
        ("as seen.<sup>{1}&#8211;{2}</sup> Then", "as seen. Then"),
        ("as seen <sup>[{1},{2}]</sup>.", "as seen."),
        ("as Doe {(1999)} saw, {Doe 1999}.", "as Doe (1999) saw, Doe 1999."),
        ("as seen [see {12} for more].", "as seen [see for more]."),
        ("as [PI: Doe] saw in [{1}] and [2].", "as [PI: Doe] saw in and [2]."),
        ("so (<tex-math>x</tex-math>, <inline-formula/>) and (x <tex-math>y</tex-math>).", "so and (x )."),
    ],
)
def test_marks_of_citations_and_formulas_are_left_out_and_names_and_years_kept(written, read):
    xml = written.replace("{", '<xref ref-type="bibr" rid="x">').replace("}", "</xref>")
    assert text_of(f"<p>It is {xml}</p>") == f"It is {read}"


@pytest.mark.parametrize(
    "attributes,reason",
    [
        ('xml:lang="fr"', "other_languages"),
        ('xml:lang="EN-us"', None),
        ('article-type="correction"', "notices"),
        ('article-type="case-report"', None),
    ],
)
def test_other_languages_and_notices_are_dropped_and_counted(attributes, reason):
    (found,) = cleaned(made(attributes=attributes))
    assert found == (Dropped(reason) if reason else Document("A title  It is so.", {}))
    assert cleaned(made("<sec><title>Results</title><fig/></sec>")) == [Dropped("without_text")]


BY, NC = "http://creativecommons.org/licenses/by/2.0", "http://creativecommons.org/licenses/by-nd-nc/1.0/"


@pytest.mark.parametrize(
    "license,custom,group",
    [
        ("<license><p>CC0</p></license>", "", "oa_comm"),
        ("CC BY-ND", "", "oa_comm"),
        ("CC BY-NC-SA", "", "oa_noncomm"),
        ("", "", "oa_other"),
        ("<p>https://creativecommons.org/publicdomain/zero/1.0/</p>", "", "oa_comm"),
        (f"{BY} {NC}", "", "oa_noncomm"),
        ("All rights reserved. ACC BYPASS. A Creative Commons Licence.", "", "oa_other"),
        (f'<license xlink:href="{NC}"/>', "", "oa_noncomm"),
        (f"<license><license_ref>{BY}</license_ref></license>", "", "oa_comm"),
        (f'<license xlink:href="{BY}"/>', "<custom-meta><meta-value>CC BY-NC</meta-value></custom-meta>", "oa_noncomm"),
    ],
)
def test_articles_of_other_groups_are_dropped(license, custom, group):
    xml = made(meta=f"<permissions>{license}</permissions><custom-meta-group>{custom}</custom-meta-group>")
    assert isinstance(cleaned(xml, groups=(group,))[0], Document)
    left = [other for other in LICENSE_GROUPS if other != group]
    assert cleaned(xml, groups=left) == [Dropped("other_licenses")]


def test_groups_are_named_in_any_order_and_others_refused():
    assert PreparationOptions(license_groups="oa_other, oa_comm").chosen_license_groups == ("oa_comm", "oa_other")
    message = "license_groups=oa_comm,all: 'all' must be one of oa_comm, oa_noncomm, oa_other"
    refused(message, lambda: PreparationOptions(license_groups="oa_comm,all").chosen_license_groups)


def test_lists_of_servers_their_namespaces_and_other_encodings():
    oai = (
        '<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><GetRecord><record><metadata>{}</metadata></record>'
        "</GetRecord></OAI-PMH>"
    )
    article = made(attributes='xmlns="https://jats.nlm.nih.gov/ns/archiving/1.4/"')
    assert cleaned(oai.format(article)) == [Document("A title  It is so.", {})]
    latin = '<?xml version="1.0" encoding="ISO-8859-1"?>' + made("<p>Größe ist so.</p>")
    assert cleaned(latin.encode("latin-1")) == [Document("A title  Größe ist so.", {})]
    both = f"<pmc-articleset>{made(title='One')}{made(title='Two')}</pmc-articleset>"
    assert [document.line[:3] for document in cleaned(both)] == ["One", "Two"]


@pytest.mark.parametrize(
    "xml,fault",
    [
        (made("<p>It is so.</i>"), "XML: mismatched tag"),
        ("<html/>", "no <article> in it"),
        (made("<italic>" * 5000 + "</italic>" * 5000), "XML: maximum recursion"),
        ('<?xml version="1.0" encoding="klingon"?><article/>', "XML: unknown encoding"),
    ],
)
def test_broken_articles_are_bad_records(xml, fault):
    (found,) = cleaned(xml)
    assert isinstance(found, BadRecord) and found.fault.startswith(f"it: {fault}")


# None would come to its end if its time grew with the square of the length.
@pytest.mark.parametrize(
    "body",
    [
        "<p>" + "[" + '<xref ref-type="bibr"/> , ' * 50_000 + "</p>",
        "<p>" + "(" + "<tex-math/> " * 100_000 + "x</p>",
        "<p>" + "[ " * 500_000 + '<xref ref-type="bibr"/>' + " " * 500_000 + "x</p>",
    ],
)
def test_long_rows_of_marks_take_linear_time(body):
    assert text_of(body)[:1] in "[(x"
