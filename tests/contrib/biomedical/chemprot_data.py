"""Made-up articles in the form of ChemProt's own files: "|" stands for a tab."""

# 103 has blanks that would part paragraphs of formatted text, and are within a sentence here; in 104 two overlap.
FILES = {
    "abstracts": """\
101|Aspirin and "the" COX|Both aspirin and (S. R)-x. Tol inhibit COX-2. It β-binds TNF-α. Only zinc was left.
102|Of acetyl-CoA nothing.|A CoA ligase takes CoA.
103|A title.|We saw  that zinc \u00a0 binds  COX-2.  Then  all was well.
104||An insulin receptor binds.
""",
    "entities": """\
101|T1|CHEMICAL|0|7|Aspirin
101|T2|GENE-N|18|21|COX
101|T3|CHEMICAL|27|34|aspirin
101|T4|CHEMICAL|39|52|(S. R)-x. Tol
101|T5|GENE-Y|61|66|COX-2
101|T6|GENE-Y|79|84|TNF-α
101|T7|CHEMICAL|91|95|zinc
102|T1|GENE-N|3|13|acetyl-CoA
102|T9|GENE-Y|25|35|CoA ligase
102|T2|CHEMICAL|42|45|CoA
103|T1|CHEMICAL|22|26|zinc
103|T2|GENE-Y|36|41|COX-2
104|T1|CHEMICAL|4|20|insulin receptor
104|T2|GENE-Y|4|11|insulin
""",
    "relations": """\
101|CPR:4|Y |INHIBITOR|Arg1:T3|Arg2:T5
101|CPR:4|Y |DOWNREGULATOR|Arg1:T3|Arg2:T5
101|CPR:3|Y |ACTIVATOR|Arg1:T3|Arg2:T5
101|CPR:9|Y |SUBSTRATE|Arg1:T7|Arg2:T6
101|CPR:10|N |NOT|Arg1:T4|Arg2:T5
102|CPR:9|Y |SUBSTRATE|Arg1:T2|Arg2:T9
103|CPR:3|Y |ACTIVATOR|Arg1:T1|Arg2:T2
104|CPR:3|Y |ACTIVATOR|Arg1:T1|Arg2:T2
""",
    "gold_standard": """\
101|CPR:4|Arg1:T3|Arg2:T5
101|CPR:4|Arg1:T3|Arg2:T5
101|CPR:3|Arg1:T3|Arg2:T5
101|CPR:9|Arg1:T7|Arg2:T6
102|CPR:9|Arg1:T2|Arg2:T9
103|CPR:3|Arg1:T1|Arg2:T2
104|CPR:3|Arg1:T1|Arg2:T2
""",
}


def files_of(part, end="\n"):
    """The names and bytes of a part's four files."""
    suffixes = {kind: "_gs" if part == "test" and kind != "gold_standard" else "" for kind in FILES}
    return {
        f"chemprot_{part}_{kind}{suffixes[kind]}.tsv": text.replace("|", "\t").replace("\n", end).encode()
        for kind, text in FILES.items()
    }


def write_files(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
