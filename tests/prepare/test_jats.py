"""Articles in JATS: which of their elements are prose, which citations are words, and under which licence they are."""

from __future__ import annotations

import pytest

from bert_tf.base.errors import UserError
from bert_tf.prepare.corpora import jats
from bert_tf.prepare.corpora.documents import BadRecord, Document, Dropped

# Every element that such articles have in their text.
ARTICLE = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE article PUBLIC "-//NLM//DTD JATS (Z39.96) Journal Archiving and Interchange DTD v1.2 20190208//EN"
 "http://127.0.0.1:9/JATS-archivearticle1.dtd" [<!ENTITY lab "Lab of X">]>
<?pubmed-properties open_access?>
<article xmlns:mml="http://www.w3.org/1998/Math/MathML" xmlns:xlink="http://www.w3.org/1999/xlink" xml:lang="en"
 article-type="research-article"><?properties open_access?><!-- A comment. -->
<front><journal-meta><journal-title>Journal of Tests</journal-title></journal-meta><article-meta>
<article-id pub-id-type="pmid">1</article-id>
<title-group><article-title>On <italic>E. coli</italic> &amp; H<sub>2</sub>O<xref ref-type="fn" rid="f1">*</xref></article-title>
<subtitle>a trial</subtitle><alt-title>Short title</alt-title>
<trans-title-group xml:lang="de"><trans-title>Titel</trans-title></trans-title-group></title-group>
<contrib-group><contrib><name><surname>Doe</surname></name><bio><p>She works.</p></bio></contrib></contrib-group>
<permissions><license xlink:href="http://creativecommons.org/licenses/by/4.0/"><license-p>Free.</license-p></license></permissions>
<abstract><sec><title>Background</title><p>Why &alpha;<sub>2</sub>?</p></sec><sec><title>Results</title><p>Because.</p></sec></abstract>
<abstract abstract-type="graphical"><p>A picture.</p></abstract>
<abstract abstract-type="teaser"><p>Read this!</p></abstract>
<abstract abstract-type="plain-language-summary"><title>Summary</title><p>In plain words.</p></abstract>
<trans-abstract xml:lang="de"><p>Auf Deutsch.</p></trans-abstract>
<kwd-group><kwd>testing</kwd></kwd-group></article-meta></front>
<body><p>Text before sections &lab;.</p>
<sec sec-type="intro" id="s1"><sec-meta><kwd-group><kwd>x</kwd></kwd-group></sec-meta><label>1.</label><title>Introduction</title>
<p>Found<sup><xref ref-type="bibr" rid="r1">1</xref>,<xref ref-type="bibr" rid="r2">2</xref></sup> in mice [<xref ref-type="bibr" rid="r3">3</xref>\
&#x2013;<xref ref-type="bibr" rid="r5">5</xref>]. It grew 10<sup>6</sup>-fold (<xref ref-type="bibr" rid="r6">Smith et al., 2010</xref>), \
as Smith (<xref ref-type="bibr" rid="r6">2010</xref>) said<xref ref-type="table-fn" rid="t">&#x2020;</xref>; \
see <xref ref-type="fig" rid="f">Figure 1</xref>.</p>
<sec><title>Deeper</title><p>We list: <list list-type="order"><list-item><label>1.</label><p>first of all;</p></list-item>
<list-item><p>second.</p><list><list-item><p>Nested item.</p></list-item></list></list-item></list> and we go on.</p></sec></sec>
<sec><title>Methods</title>
<p>The mass (<inline-formula><mml:math><mml:mi>m</mml:mi></mml:math></inline-formula>) is <disp-formula id="e1"><label>(1)</label>\
<tex-math>E = mc^2</tex-math></disp-formula> where all is <named-content content-type="x">named</named-content>, \
<styled-content>styled</styled-content>, <abbrev>abbr.</abbrev>, <bold>bold</bold><break/>broken, <monospace>mono</monospace>, \
<ext-link xlink:href="http://x.org">linked</ext-link>, <uri>http://y.org</uri><fn id="fn2"><p>A footnote.</p></fn>.\
<fig id="f"><label>Figure 1</label><caption><title>A caption's title.</title><p>A caption<xref ref-type="bibr" rid="r1">1</xref>.</p></caption>\
<graphic xlink:href="a.jpg"><alt-text>alt</alt-text></graphic></fig> More after the figure.</p>
<table-wrap id="t1"><label>Table 1</label><caption><p>A table's caption.</p></caption><table><tbody><tr><td>9</td></tr></tbody></table>
<table-wrap-foot><fn><p>Foot.</p></fn></table-wrap-foot></table-wrap>
<fig-group><caption><p>Group caption.</p></caption><fig><caption><p>Part caption.</p></caption></fig></fig-group>
<boxed-text><label>Box 1</label><caption><title>Key points</title></caption><p>It is boxed.</p></boxed-text>
<disp-quote><p>It is quoted.</p><attrib>Said by her.</attrib></disp-quote>
<statement><label>Theorem</label><p>It is stated.</p></statement>
<def-list><title>Words</title><def-item><term>ALT</term>
<def><p>alanine aminotransferase.</p></def></def-item></def-list>
<verse-group><verse-line>A line of verse,</verse-line><verse-line>and another.</verse-line></verse-group>
<speech><speaker>He</speaker><p>I speak.</p></speech>
<preformat>pre formatted</preformat><code>x = 1</code><media><caption><p>A film.</p></caption></media>
<p><![CDATA[a < b & c.]]></p>
<supplementary-material><label>S1</label><caption><p>Supplement.</p></caption></supplementary-material></sec>
<sig-block><sig>Signed.</sig></sig-block></body>
<back><ack><p>Thanks.</p></ack><app-group><app><p>Appendix.</p></app></app-group><fn-group><fn><p>Note.</p></fn></fn-group>
<glossary><def-list><def-item><term>G</term><def><p>glossary</p></def></def-item></def-list></glossary>
<ref-list><ref id="r1"><mixed-citation>Doe, J. A book.</mixed-citation></ref></ref-list></back>
<floats-group><fig><caption><p>A floating caption.</p></caption></fig></floats-group>
<sub-article><front-stub/><body><p>A review.</p></body></sub-article><response><body><p>An answer.</p></body></response>
</article>"""

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

CAPTIONS = {
    "More after the figure.": ["A caption's title.", "A caption.", "A table's caption.", "Group caption.", "Part caption."],
    "Signed.": ["A floating caption."],
}


def cleaned(xml, *, groups=jats.LICENSE_GROUPS, captions=False, group=""):
    return jats.clean(xml if isinstance(xml, bytes) else xml.encode(), group=group, groups=groups, captions=captions)


def made(body="<p>It is so.</p>", meta="", attributes="", title="A title"):
    return (
        f'<article xmlns:xlink="x" {attributes}><front><article-meta><title-group><article-title>{title}</article-title>'
        f"</title-group>{meta}</article-meta></front><body>{body}</body></article>"
    )


def text_of(body):
    (document,) = cleaned(made(body))
    return document.line.removeprefix("A title").removeprefix("  ")


def test_title_abstracts_and_prose_in_order():
    (document,) = cleaned(ARTICLE)
    assert document.line.split("  ") == PARAGRAPHS
    assert document.num_removed == {
        "headings": 8,
        "citations": 6,
        "formulas": 2,
        "figures": 3,
        "tables": 1,
        "footnotes": 1,
        "code": 2,
        "supplements": 1,
    }


def test_captions_follow_the_paragraph_that_they_stand_in():
    (document,) = cleaned(ARTICLE, captions=True)
    wanted = [
        text
        for paragraph in PARAGRAPHS
        for text in (paragraph, *next((each for end, each in CAPTIONS.items() if paragraph.endswith(end)), ()))
    ]
    assert document.line.split("  ") == wanted


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
    ],
)
def test_marks_of_citations_are_left_out_and_names_and_years_kept(written, read):
    xml = written.replace("{", '<xref ref-type="bibr" rid="x">').replace("}", "</xref>")
    assert text_of(f"<p>It is {xml}</p>") == f"It is {read}"


def test_brackets_around_formulas_go_with_them():
    assert text_of("<p>It (<tex-math>x</tex-math>, <inline-formula/>) is (x <tex-math>y</tex-math>).</p>") == "It is (x )."


@pytest.mark.parametrize(
    "attributes,meta,reason",
    [
        ('xml:lang="fr"', "", "other_languages"),
        ('xml:lang="EN-us"', "", None),
        ('article-type="retraction"', "", "notices"),
        ('article-type="correction"', "", "notices"),
        ('article-type="case-report"', "", None),
    ],
)
def test_other_languages_and_notices_are_dropped_and_counted(attributes, meta, reason):
    (found,) = cleaned(made(attributes=attributes, meta=meta))
    assert found == (Dropped(reason) if reason else Document("A title  It is so.", {}))


def test_article_without_text_is_dropped():
    assert cleaned(made("<sec><title>Results</title><fig/></sec>")) == [Dropped("without_text")]


@pytest.mark.parametrize(
    "text,group",
    [
        ("CC0", "oa_comm"),
        ("CC BY", "oa_comm"),
        ("CC BY-ND", "oa_comm"),
        ("CC BY-NC-SA", "oa_noncomm"),
        ("TDM", "oa_other"),
        ("", "oa_other"),
        ("https://creativecommons.org/publicdomain/zero/1.0/", "oa_comm"),
        ("http://creativecommons.org/licenses/by/2.0", "oa_comm"),
        ("http://creativecommons.org/licenses/by-nd-nc/1.0/", "oa_noncomm"),
        ("http://creativecommons.org/licenses/by/4.0/ http://creativecommons.org/licenses/by-nc/4.0/", "oa_noncomm"),
        ("All rights reserved. ACC BYPASS", "oa_other"),
    ],
)
def test_licence_group_by_code_or_address(text, group):
    assert jats.license_group(text) == group


@pytest.mark.parametrize(
    "meta,group",
    [
        ('<permissions><license xlink:href="http://creativecommons.org/licenses/by-nc/3.0"/></permissions>', "oa_noncomm"),
        (
            "<permissions><license><license_ref>https://creativecommons.org/licenses/by/4.0/</license_ref></license>"
            "</permissions>",
            "oa_comm",
        ),
        ("<permissions><license><p>A Creative Commons Licence.</p></license></permissions>", "oa_other"),
        (
            "<permissions><license xlink:href='http://creativecommons.org/licenses/by/3.0'/></permissions>"
            "<custom-meta-group><custom-meta><meta-name>pmc-license-ref</meta-name><meta-value>CC BY-NC</meta-value>"
            "</custom-meta></custom-meta-group>",
            "oa_noncomm",
        ),
        (
            "<custom-meta-group><custom-meta meta-name='pmc-license-ref' meta-value='CC0'/></custom-meta-group>",
            "oa_comm",
        ),
    ],
)
def test_articles_of_other_groups_are_dropped(meta, group):
    assert isinstance(cleaned(made(meta=meta), groups=(group,))[0], Document)
    others = [other for other in jats.LICENSE_GROUPS if other != group]
    assert cleaned(made(meta=meta), groups=others) == [Dropped("other_licenses")]


def test_named_group_comes_before_the_licence():
    assert isinstance(cleaned(made(), groups=("oa_comm",), group="oa_comm")[0], Document)


def test_groups_are_named_in_any_order_and_others_refused():
    assert jats.parse_license_groups("oa_other, oa_comm") == ("oa_comm", "oa_other")
    with pytest.raises(UserError, match="license_groups=oa_comm,all: 'all' must be one of oa_comm, oa_noncomm, oa_other"):
        jats.parse_license_groups("oa_comm,all")


def test_lists_of_servers_and_their_namespaces():
    oai = (
        '<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><GetRecord><record><metadata>{}</metadata></record>'
        "</GetRecord></OAI-PMH>"
    )
    article = made(attributes='xmlns="https://jats.nlm.nih.gov/ns/archiving/1.4/"')
    assert cleaned(oai.format(article)) == [Document("A title  It is so.", {})]
    both = f"<pmc-articleset>{made(title='One')}{made(title='Two')}</pmc-articleset>"
    assert [document.line[:3] for document in cleaned(both)] == ["One", "Two"]


@pytest.mark.parametrize(
    "xml,fault",
    [
        (made("<p>It is so.</i>"), "XML: mismatched tag"),
        (made("<p>It is &nothing;.</p>"), "XML: undefined entity"),
        (made("<p>It is so.</p>")[:-30], "XML: unclosed token|XML: no element found"),
        ("", "XML: no element found"),
        ("<html/>", "no <article> in it"),
        (made("<italic>" * 5000 + "</italic>" * 5000), "XML: maximum recursion"),
        ('<?xml version="1.0" encoding="klingon"?><article/>', "XML: unknown encoding"),
    ],
)
def test_broken_articles_are_bad_records(xml, fault):
    (found,) = cleaned(xml)
    assert isinstance(found, BadRecord)
    assert any(found.fault.startswith(each) for each in fault.split("|"))


def test_other_encodings_are_read():
    xml = '<?xml version="1.0" encoding="ISO-8859-1"?>' + made("<p>Größe ist so.</p>")
    assert cleaned(xml.encode("latin-1"))[0].line == "A title  Größe ist so."


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
