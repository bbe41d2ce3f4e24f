"""Templates as a reader sees them: arguments as MediaWiki reads them, measures right or not at all."""

from __future__ import annotations

import pytest

from bert_tf.prepare.corpora.wiki_templates import read_arguments, render


@pytest.mark.parametrize(
    "parts,arguments",
    [
        (["a", " b "], {"1": "a", "2": " b "}),
        (["2= two ", "one"], {"2": "two", "1": "one"}),
        (["a", "1=b"], {"1": "b"}),
        (["1=b", "a"], {"1": "a"}),
        ([" Name \n= x=y ", ""], {"Name": "x=y", "1": ""}),
        (["x=1", "x=2"], {"x": "2"}),
    ],
)
def test_numbered_and_named_arguments(parts, arguments):
    assert read_arguments(parts) == arguments


@pytest.mark.parametrize(
    "content,shown",
    [
        ("lang|fr|loin", "loin"),
        ("langx|fr|Paris|lit=x", "Paris"),
        ("lang-fr|Paris", "Paris"),
        ("quote|text= A = b. |author=C", "A = b."),
        ("USS|Enterprise|CV-6", "USS Enterprise (CV-6)"),
        ("USS|Enterprise|CV-6|2", "Enterprise"),
        ("HMS|Victory", "HMS Victory"),
        ("ship|RMS|Titanic", "RMS Titanic"),
        ("ship||Titanic|1912", "Titanic (1912)"),
        ("ship|HMS|Hood|51|7", None),
        ("chem2|H2SO4", "H2SO4"),
        ("US$|1.5 million|link=yes", "US$1.5 million"),
        ("GBP|5", "£5"),
        ("formatnum:1234567.891", "1,234,567.891"),
        ("FORMATNUM:x", "x"),
        ("age|1950|3|2|2000|3|1", "49"),
        ("age|1950|3|2", None),
        ("frac|1|3|4", "1 3/4"),
        ("val|6.24|e=18|u=m", "6.24 ×10^18 m"),
        ("as of|2015|6|30", "As of 30 June 2015"),
        ("as of|2009|lc=y", "as of 2009"),
        ("nihongo||漢字|kanji", "kanji"),
        ("transl|ru|BGN|Moskva", "Moskva"),
        ("e|24", " ×10^24"),
        ("esp|3", "^3"),
        ("e|", None),
        ("music|flat", "♭"),
        ("RailGauge|1435mm", "1435 mm"),
        ("RailGauge|ussg", None),
        ("mdashb", " — "),
        ("' \"", '&#39;"'),
        ("ordered list|start=4| It is one. |It is two.", "\n* It is one.\n* It is two.\n"),
        ("val|1.234|(56)", None),
        ("Infobox person|name=x", None),
    ],
)
def test_what_stands_in_a_sentence(content, shown):
    assert render(content) == shown


@pytest.mark.parametrize(
    "arguments,shown",
    [
        ("10|km", "10 km"),
        ("10|-|20|km|mi", "10–20 km"),
        ("3|x|4|x|5|m", "3 by 4 by 5 m"),
        ("6|ft|2|in|m|abbr=on", "6 ft 2 in"),
        ("6|ft|2|in|to|6|ft|4|in|cm", "6 ft 2 in to 6 ft 4 in"),
        ("100|km|0", "100 km"),
        ("23|C|F", "23 °C"),
        ("22|e6acre|km2", "22 million acres"),
        ("1+1/2|in", "1 1/2 in"),
        (" 25 | acre |ha", "25 acres"),
        ("4.4|Moilbbl/d", "4.4 million barrels per day"),
        ("8|km|mi|disp=or", "8 km"),
        ("160|Tcuft", "160 trillion cu ft"),
        ("15700|ft3|disp=output number only", None),
        ("5|km|adj=pre|long", None),
        ("ten|km", None),
        ("5", None),
        ("", None),
        ("5|to|km", None),
    ],
)
def test_measures_are_right_or_left_out(arguments, shown):
    assert render(f"convert|{arguments}") == shown
