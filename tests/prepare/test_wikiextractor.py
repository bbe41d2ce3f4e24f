"""The files of wikiextractor: text with tags left in it, and JSON lines (--json)."""

import json

import pytest

from bert_tf.prepare.corpora import wiki
from tests.preparation import write
from tests.prepare.reading import formatted
from tests.refusals import refused


def read(working_dir, *files: str) -> list[str]:
    for number, content in enumerate(files):
        write(working_dir / f"extracted/wikicorpus_en/AA/wiki_{number:02}", content)
    return formatted(working_dir, "wikicorpus_en", "--skip_wikiextractor")[0]


def test_json_lines_are_read_as_the_text_files_are(tmp_path):
    article = {"id": "1", "revid": "7", "url": "x", "title": "One", "text": "It is &lt;b&gt;one.\nHead line\nIt ends."}
    empty = {"id": "2", "title": "Two", "text": ""}
    lines = "".join(json.dumps(line) + "\n" for line in (article, empty))
    as_text = f'<doc id="1">\nTwo\n\n{article["text"].replace("one", "two")}\n\n</doc>\n'
    assert read(tmp_path, lines, as_text) == ["It is one.  It ends.", "It is two.  It ends."]


ARTICLES = """<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="One">
One

The one is large.
It ends.

</doc>
<doc id="13" url="x" title="Empty">
Empty

</doc>
"""


@pytest.mark.parametrize(
    "content,message",
    [
        ('{"title": "A", "text": "On', "line 1 is not valid JSON.*--max_bad_records"),
        ('{"title": "A", "text": null}', "line 1: no text in the field 'text'; run wikiextractor again.*--max_bad_re"),
        ("One.", "line 1: not what wikiextractor writes, <doc .*: run wikiextractor again"),
        (ARTICLES[:90], "line 1: not what"),
        (ARTICLES.replace("</doc>", "</dob>", 1), "line 1: not what"),
    ],
)
def test_what_wikiextractor_has_not_written_is_refused(tmp_path, content, message):
    refused(f"wiki_00(, |: ){message}", read, tmp_path, content)


def test_without_its_files_it_says_what_to_do(tmp_path):
    words = "holds no file of wikiextractor's, AA/wiki_00"
    refused(words, formatted, tmp_path, "wikicorpus_en", "--skip_wikiextractor")


@pytest.mark.parametrize(
    "text,shown",
    [
        ('Cold.&lt;ref name="x"&gt;A book.&lt;/ref&gt; It is.', "Cold. It is."),
        ("Long&lt;br /&gt;ago, H&lt;sub&gt;2&lt;/sub&gt;O.", "Long ago, H2O."),
        ('&lt;templatestyles src="a/b.css" /&gt;After it.', "After it."),
        ("Benzene, &lt;chem&gt;C6H6&lt;/chem&gt;, is there.", "Benzene, is there."),
        ("&lt;math display=block&gt;\na &lt; b\n&lt;/math&gt; One.", "One."),
        ("__NOTOC__ One. __KEIN_INHALTSVERZEICHNIS__", "One."),
        ('&lt;a href="Foo%20%28x%29"&gt;Foo&lt;/a&gt; and <a href="Bar">Bar</a> <abbr>x</abbr>.', "Foo and Bar x."),
        ("It says a &lt; b and &amp;amp; __init__.", "It says a < b and & __init__."),
        ("One.<ref>Lost. Here\nTwo is kept.", "One.  Two is kept."),  # it ends with its line
        ("A ( b ) c , d.  It is .", "A ( b ) c , d. It is ."),
    ],
)
def test_tags_are_taken_out_and_nothing_else(text, shown):
    assert wiki.clean_extracted(f"Title\n\n{text}").line == shown
