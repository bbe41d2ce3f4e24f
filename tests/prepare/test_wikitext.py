"""Markup to text passages: what goes, what stays, in linear time; templates as a reader sees them."""

import pytest

from bert_tf.prepare.corpora import wikitext
from bert_tf.prepare.corpora.wiki_templates import render


def paragraphs_of(markup: str) -> list[str]:
    return wikitext.paragraphs_of(markup, wikitext.Removed())


@pytest.mark.parametrize(
    "markup,text",
    [
        ("{{Infobox|a={{b|{{c}}}}|d=[[e]]}}'''Bold''' and ''italic'' text.", "Bold and italic text."),
        ("A [[link]], a [[target|shown]] one, [[rfc:1]], [[zh-yue :A]] too.", "A link, a shown one, rfc:1, too."),
        ("See [[Paris (Texas)|]] and [[Rome|{{flagicon|IT}}]].", "See Paris and Rome."),
        ('Seen.<ref name=x>Not {{this}}.</ref> Also.<ref name="x" /> End.', "Seen. Also. End."),
        ("{| class=x\n| cell. {{t}}\n{| \n| inner.\n|}\n|}\nAfter it.", "After it."),
        ("[[File:a.jpg|thumb|A [[caption]] here.]]The text.", "The text."),
        ("It ends.[[File:a.jpg|thumb|A caption.]]Another begins.", "It ends. Another begins."),
        ("== Heading ==\nThe text.\n=== See also ===\n* A list.\n# Another.", "The text."),
        ("It is {{convert|10|-|20|km|mi}} or {{lang|fr|loin}} {{circa|1900}}.", "It is 10–20 km or loin c. 1900."),
        ("The name ({{IPA|x}}; {{lang-fr|Paris}}) stays ({{IPA|y}}) here.", "The name (Paris) stays here."),
        ("See [http://x.org the site] and [http://y.org] or http://z.org/a now.", "See the site and or now."),
        ("A<!-- hidden. --> B&nbsp;C &ndash; D&amp;E.<br/>F. __NOTOC__", "A B C – D&E. F."),
        ("Use <nowiki>[[brackets]] and ''quotes''</nowiki> so.", "Use [[brackets]] and ''quotes'' so."),
        ("A<!--<nowiki>--> is written <nowiki><!--</nowiki> so. It stays.", "A is written <!-- so. It stays."),
        ("{{unclosed The text stays. [[Also this. ", "unclosed The text stays. Also this."),
        ("The end }} of ]] it |} all.", "The end of it |} all."),
        ("{{{param|{{t}}}}} {{{{{nested}}}}}Text.", "Text."),
        ("[[Category:A]][[fr:B]]Text of [[:Category:A]] and [[wikt:word|words]].", "Text of Category:A and words."),
        ("If <math>x + 1</math> is <math>\\frac{a}{b}</math> then.", "If x + 1 is then."),
        ("First line\nsame paragraph.", "First line same paragraph."),
        ("这是-{zh-hans:计算机; zh-hant:電腦}-。", "这是计算机。"),
        ("-{zh-hans:{{lang|en|A}}-1; zh-hant:甲}-好。-{sr-el: beše; sr-ec: беше}-", "A-1好。beše"),
        ("-{T|標題}-他叫-{于}-。-{H|zh-cn:甲}-", "他叫于。"),
        ("[[文件:a.jpg|thumb|图]]北京。[[分类:城市]]", "北京。"),
        # Links, brackets and signs inside of templates.
        ("See http://x.org/a_(b). Or (http://y.org), or https://z.org!", "See. Or, or!"),
        ("Write to [mailto:a@b.org the author] or [//x.org here].", "Write to the author or here."),
        ("call[] on him (a [] b) [ ] end.", "call on him (a b) end."),
        ('"We [...] go (...)" to (-)-menthol ({{x}} – {{y}}).', '"We [...] go (...)" to (-)-menthol.'),
        ("{{lang|fr|[[a|x=y]]}} and {{nowrap|<nowiki>a=b</nowiki>}} stay.", "x=y and a=b stay."),
        ("[[Target{{!}}shown]] {{nowrap|a{{!}}b}} {{nowrap|{{nowrap|1=c=d}}}}.", "shown a|b c=d."),
        ("''Eagle''{{'s}} wings.", "Eagle's wings."),
        ("北京市（{{lang|x|}}；{{pinyin}}），简称京（Beijing；{{IPA}}）。", "北京市，简称京（Beijing）。"),
        ("القاهرة ({{x}}، {{y}}) هي المدينة.", "القاهرة هي المدينة."),
        ("Metin budur.\n== Kaynakça ==\n* kitap (1990). bir şehrin uzun tarihi. Ankara: yayın evi.", "Metin budur."),
        ("A &#99999999999999999999; B.", "A \ufffd B."),
    ],
)
def test_markup_goes_and_text_stays(markup, text):
    assert " ".join(paragraphs_of(markup)) == text


@pytest.mark.parametrize(
    "markup,paragraphs",
    [
        ("!Kung is spoken in Angola.", ["!Kung is spoken in Angola."]),
        ("{| class=x\n! Head one. !! Head two.\n| Cell.\nA line.", ["A line."]),
        ("The planets are:\n* [[Mars]]\n* Venus", ["The planets are:"]),
        ("It is a line of prose without a stop", ["It is a line of prose without a stop"]),
        ("A caption without one", []),
        (
            "* Paris is the capital of [[France]].\n* Berlin\n** Rome, founded early, lies on the Tiber: it is old",
            ["Paris is the capital of France."],
        ),
        ("# First, one goes there. Then one comes back\n", ["First, one goes there. Then one comes back"]),
        ("* Smith, J. ''The Art of War''. Oxford University Press.", []),
        ("; Term: it is a word that is explained here.", ["Term: it is a word that is explained here."]),
        ("It is.\n:* It is said in a reply.\n:* Not this\n:So.", ["It is.", "It is said in a reply.", "So."]),
        (
            "== References ==\n* It is in a list of books.\n=== More ===\n* It is in the same list.\n"
            "== Life ==\n* It was a long and happy life.",
            ["It was a long and happy life."],
        ),
        ("One. Two.\n\nNo stop here\n\nThree.", ["One. Two.", "Three."]),
        # Elements end where they are closed, references with their paragraph.
        ("One.<ref>Never closed\n\nTwo.<ref>Closed.</ref> Three.", ["One.", "Two. Three."]),
        ("One.<ref>Open. <ref>Closed.</ref> Lost.\n== H ==\nTwo.", ["One.", "Two."]),
        ("One.<ref>Two\n\nparagraphs.</ref> Rest.", ["One. Rest."]),
        ("One.<ref name=a/> Two.<REF name='b'>Gone.</ref > Three.<references/>", ["One. Two. Three."]),
        ("One.<ref>Gone</ref name=x> also.</ref> Two.", ["One. Two."]),
        ("One.<gallery>\nA.jpg|A <ref>x</ref> picture.\n</gallery> Two.", ["One. Two."]),
    ],
)
def test_prose_stays_whatever_it_looks_like(markup, paragraphs):
    assert paragraphs_of(markup) == paragraphs


def test_what_is_removed_is_counted_by_reason():
    markup = (
        "{{Infobox|a={{b}}{{small|[[x=y]]}}}}Text.<ref>Book.</ref>\n== Heading ==\n* item\n[[File:a.jpg|x]]\n"
        "{|\n| cell\n|}\nfragment\n<gallery>g</gallery>\n{|\n| row\n"
    )
    removed = wikitext.Removed()
    wikitext.paragraphs_of(markup, removed)
    ones = dict.fromkeys("references elements hidden_links tables headings list_items fragments".split(), 1)
    assert removed == {**ones, "templates": 2, "table_rows": 2}


# None would come to its end if its time grew with the square of the length.
@pytest.mark.parametrize(
    "before,token,after",
    [
        ("", ".", "x"),
        ("", "<ref>", ""),
        ("", "<nowiki>", ""),
        ("<nowiki>", "<!--", "</nowiki>"),
        ("", "[//a b ", ""),
        ("[//a", " ", "x"),
        ("{{t|", " ", "x}}"),
        ("[[a", " (b)", "x|]]"),
        ("a", ", ", "(x ,)"),
        ("&#", "9", ";"),
        ("", "[[a|b ", ""),
        ("", "{{[[{|", ""),
        ("", "*", ""),
        ("http://", "http://.", ""),
        ("", "-{", ""),
        ("", "{{", "]]" * 200_000),
        ("", "[[a ", "]]" * 200_000),
        ("", "{{a|", "}}" * 250_000),
    ],
)
def test_any_text_takes_linear_time(before, token, after):
    number = 1_000_000 // len(token)
    markup = f"{before}{token * number}{after}\n\nThe end."
    assert paragraphs_of(markup)[-1].endswith("The end.")


@pytest.mark.parametrize("end", ["", "; and", "; or", ",", " ;"])
def test_a_list_that_is_one_sentence_is_kept_whole_or_not_at_all(end):
    items = [f"the {what} of the water{end or ';'}" for what in ("keeping", "selling")]
    tidied = [item.replace(" ;", ";") for item in items]
    whole = "\n".join(f"* {item}" for item in items)
    assert paragraphs_of(f"{whole}\n\n* the drinking of the water.\n* It is another one, by itself.") == [
        f"{' '.join(tidied)} the drinking of the water.",
        "It is another one, by itself.",
    ]
    assert paragraphs_of(f"{whole}\n* the drinking\n\nText ends it.") == ["Text ends it."]


@pytest.mark.parametrize(
    "content,shown",
    [
        ("lang|fr|loin", "loin"),
        ("lang-fr|Paris", "Paris"),
        ("lang|2= two |one", "two"),
        ("lang|a|b|2=c", "c"),
        ("lang|2=a|fr|c", "c"),
        (" Lang \n|x=1|text=x=y|text=z", "z"),
        ("quote|text= A = b. |author=C", "A = b."),
        ("chem2|H2SO4", "H2SO4"),
        ("US$|1.5 million|link=yes", "US$1.5 million"),
        ("GBP|5", "£5"),
        ("formatnum:1234567.891", "1,234,567.891"),
        ("FORMATNUM:x", "x"),
        ("frac|1|3|4", "1 3/4"),
        ("val|6.24|e=18|u=m", "6.24 ×10^18 m"),
        ("as of|2015|6|30", "As of 30 June 2015"),
        ("as of|2009|lc=y", "as of 2009"),
        ("nihongo||漢字|kanji", "kanji"),
        ("e|24", " ×10^24"),
        ("e|", None),
        ("music|flat", "♭"),
        ("' \"", '&#39;"'),
        ("ordered list|start=4| It is one. |It is two.", "\n* It is one.\n* It is two.\n"),
        ("val|1.234|(56)", None),
        ("Infobox person|name=x", None),
        ("USS|Enterprise|CV-6", None),
        ("convert|10|km", "10 km"),
        ("convert|10|-|20|km|mi", "10–20 km"),
        ("convert|3|x|4|x|5|m", "3 by 4 by 5 m"),
        ("convert|6|ft|2|in|to|6|ft|4|in|cm", "6 ft 2 in to 6 ft 4 in"),
        ("convert|100|km|0", "100 km"),
        ("convert| 25 | acre |ha", "25 acres"),
        ("convert|4.4|Moilbbl/d", "4.4 million barrels per day"),
        ("convert|15700|ft3|disp=output number only", None),
        ("convert|5|km|adj=pre|long", None),
        ("convert|ten|km", None),
        ("convert|1+1/2|in", None),
        ("convert|5", None),
        ("convert|", None),
    ],
)
def test_what_stands_in_a_sentence_is_shown_and_measures_are_right_or_left_out(content, shown):
    assert render(content) == shown
