"""Made-up articles in the form of ChemProt's own files, from text with its entities marked in it."""

import re

_MARK = re.compile(r"\[(\w+) (CHEMICAL|GENE-Y|GENE-N) ([^\]]+)\]")
KINDS = ("abstracts", "entities", "relations", "gold_standard")

# Number, title, abstract, with "[T1 CHEMICAL aspirin]" for an entity; and relations as in the file of that name.
ARTICLES = [
    (
        "101",
        "[T1 CHEMICAL Aspirin] and \"the\" [T2 GENE-N COX]",
        "Both [T3 CHEMICAL aspirin] and [T4 CHEMICAL (S. R)-x. Tol] inhibit [T5 GENE-Y COX-2]. "
        "It β-binds [T6 GENE-Y TNF-α]. Only [T7 CHEMICAL zinc] was left.",
        [
            ("CPR:4", "Y", "INHIBITOR", "T3", "T5"),
            ("CPR:4", "Y", "DOWNREGULATOR", "T3", "T5"),
            ("CPR:3", "Y", "ACTIVATOR", "T3", "T5"),
            ("CPR:9", "Y", "SUBSTRATE", "T7", "T6"),
            ("CPR:10", "N", "NOT", "T4", "T5"),
        ],
    ),
    (
        "102",
        "Of [T1 GENE-N acetyl-CoA] nothing.",
        "A [T9 GENE-Y CoA ligase] takes [T2 CHEMICAL CoA].",
        [("CPR:9", "Y", "SUBSTRATE", "T2", "T9")],
    ),
    # Blanks that would part paragraphs of formatted text, and are within a sentence here.
    (
        "103",
        "A title.",
        "We saw  that [T1 CHEMICAL zinc] \u00a0 binds  [T2 GENE-Y COX-2].  Then  all was well.",
        [("CPR:3", "Y", "ACTIVATOR", "T1", "T2")],
    ),
]  # fmt: skip


def files_of(part, articles=ARTICLES, end="\n"):
    """The names and bytes of a part's four files."""
    lines = {kind: [] for kind in KINDS}
    for number, title, abstract, relations in articles:
        text, entities = "", []
        for piece in (title, " ", abstract):
            place = 0
            for match in _MARK.finditer(piece):
                text += piece[place : match.start()]
                entities.append((match[1], match[2], len(text), len(text) + len(match[3]), match[3]))
                text, place = text + match[3], match.end()
            text += piece[place:]
        length = len(_MARK.sub(r"\3", title))
        lines["abstracts"].append((number, text[:length], text[length + 1 :]))
        lines["entities"] += [(number, *entity) for entity in entities]
        for group, evaluated, kind, first, second in relations:
            ends = f"Arg1:{first}", f"Arg2:{second}"
            lines["relations"].append((number, group, f"{evaluated} ", kind, *ends))
            lines["gold_standard"] += [(number, group, *ends)] if evaluated == "Y" else []
    suffix = {kind: "_gs" if part == "test" and kind != "gold_standard" else "" for kind in KINDS}
    return {
        f"chemprot_{part}_{kind}{suffix[kind]}.tsv": "".join("\t".join(map(str, line)) + end for line in rows).encode()
        for kind, rows in lines.items()
    }


def write_files(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
