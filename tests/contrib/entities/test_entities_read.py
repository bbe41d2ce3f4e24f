"""Files of tokens and labels: formats, what is left out, and what is refused with its line."""

import functools
import json
import tracemalloc

import pytest

from bert_tf.contrib.entities.labels import KINDS, read_entities, read_strictly
from bert_tf.contrib.entities.read import read_sentences
from tests.entity_data import SENTENCES, columns
from tests.preparation import write
from tests.refusals import refused

EXPECTED = [(words.split(), labels.split()) for words, labels in SENTENCES]


def read(tmp_path, text, name="train.tsv", kind="ner", **options):
    options = {"allowed_labels": None, "needs_labels": True, **options}
    return read_sentences(write(tmp_path / name, text), KINDS[kind], **options)


def content(sentences):
    return list(zip(sentences.tokens, sentences.labels))


def four_columns(between):
    return columns(between=between.join(("", "NN", "I-NP", ""))) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        columns(),
        columns(end="\r\n"),
        "\ufeff" + columns(),
        columns(between="  \t"),
        four_columns("\t"),
        four_columns(" "),
        "-DOCSTART- -X- -X- O\n\n" + four_columns(" "),
        "-DOCSTART-\tO\n" + columns().replace("\n\n", "\n-DOCSTART-\tO\n"),
        "# id: 1\n# text = anna sees\n" + columns(),
        "\n\n \n" + columns() + "\n\t\n\n",
        columns().removesuffix("\n"),
    ],
)
def test_forms_of_columns(tmp_path, text):
    assert content(read(tmp_path, text)) == EXPECTED


def test_a_number_sign_with_a_label_is_a_token(tmp_path):
    for between in ("\t", " "):
        text = f"#{between}O\na{between}B-X\n# a comment of more columns\n"
        assert content(read(tmp_path, text)) == [(["#", "a"], ["O", "B-X"])]


@pytest.mark.parametrize(
    "between, comment",
    [
        ("\t", "# text\tdomain=en"),
        (" ", "# 0000-1111"),
        ("\t", "# id = 7\tO"),
        (" _ _ ", "# id 0000-1111\tdomain=en"),  # MultiCoNER
        (" _ _ ", "# text = B"),
    ],
)
def test_a_comment_with_as_many_columns_as_a_token_is_none(tmp_path, between, comment):
    text = f"{comment}\n" + columns(between=between).replace("\n\n", f"\n\n{comment}\n")
    sentences = read(tmp_path, text)
    assert content(sentences) == EXPECTED
    assert f": {len(EXPECTED)} line(s) that begin with # are comments, the first is 1\n" in sentences.notes


def test_bmes_is_iobes_with_another_letter(tmp_path):
    text = "a\tB-X\nb\tM-X\nc\tE-X\nd\tS-Y\ne\tO\n"
    bmes, iobes = (read(tmp_path, lines) for lines in (text, text.replace("M-", "I-")))
    assert bmes.labels == [["B-X", "M-X", "E-X", "S-Y", "O"]]
    assert bmes.scheme == iobes.scheme and str(bmes.scheme) == "IOBES (2 entities)"
    for reader in (read_entities, functools.partial(read_strictly, scheme="IOBES")):
        assert reader(bmes.labels[0]) == reader(iobes.labels[0])


def test_unusual_spaces_are_tokens(tmp_path):
    assert read(tmp_path, "\u00a0\tO\na b\tB-X\n").tokens == [["\u00a0", "a b"]]
    assert read(tmp_path, "\u00a0 O\na\u00a0b B-X\n").tokens == [["\u00a0", "a\u00a0b"]]


NAMES = ["O", "B-P", "I-P", "B-T", "I-T"]


@pytest.mark.parametrize("field, tags_of", [("ner_tags", list), ("tags", lambda tags: list(map(NAMES.index, tags)))])
def test_json_lines(tmp_path, field, tags_of):
    rows = (json.dumps({"id": "0", "tokens": words, field: tags_of(tags)}) + "\n" for words, tags in EXPECTED)
    assert content(read(tmp_path, "".join(rows), "train.jsonl", label_names=NAMES)) == EXPECTED


TREEBANK = """# newdoc
# text = Vamonos al 10 000
1-2\tVamonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tv\t_\t0\troot\t_\t_
2\tnos\tnos\tPRON\tp\t_\t1\tobj\t_\t_
3\t10 000\t10 000\tNUM\tm\t_\t1\tobl\t_\tSpaceAfter=No
3.1\tva\tir\tVERB\tv\t_\t_\t_\t1:conj\t_

1\t#\t#\tSYM\tm\t_\t0\troot\t_\t_
"""


def test_parts_of_speech(tmp_path):
    expected = [(["Vamos", "nos", "10 000"], ["VERB", "PRON", "NUM"]), (["#"], ["SYM"])]
    found = read(tmp_path, TREEBANK, "a.conllu", "pos")
    assert content(found) == expected and found.notes.endswith("2 sentences, 4 tokens") and found.scheme is None
    assert content(read(tmp_path, "Vamos\tVERB\nnos\tPRON\n10 000\tNUM\n\n#\tSYM\n", kind="pos")) == expected
    rows = [{"tokens": tokens, "pos_tags": tags, "ner_tags": ["O"] * len(tags)} for tokens, tags in expected]
    assert content(read(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl", "pos")) == expected
    without = "\n".join(
        "\t".join([*line.split("\t")[:2], *"________"]) for line in TREEBANK.split("\n") if line[:1] == "1"
    )
    assert read(tmp_path, without, "b.conllu", "pos", needs_labels=False).labels is None
    refused("line 4: the label is 'VERB': must be O, .*parts of speech .*--task_name=pos", read, tmp_path, TREEBANK)
    refused("a.tsv: each word is _: the treebank leaves", read, tmp_path, "_\tVERB\n_\tNOUN\n", "a.tsv", "pos")
    message = "line 1: 4 columns, of which each but the first may be the label: keep two, such as by cut -f1,2"
    refused(message, read, tmp_path, four_columns("\t"), kind="pos")


def test_fields_with_text_that_are_not_read_are_named(tmp_path):
    text = '{"tokens": ["a"], "tags": ["O"], "tag": ["B-X"]}\n{"tokens": ["b"], "tags": ["B-X"], "id": "7"}'
    about = read(tmp_path, text, "train.jsonl").notes
    assert about.startswith(f"{tmp_path / 'train.jsonl'}: fields with text that are not read: 'tag' (1)\n")


def test_tokens_without_labels_can_be_labelled_and_nothing_else(tmp_path):
    as_json = '{"tokens": ["anna", "sees"]}\n{"tokens": ["bob"]}'
    for name, text in (("a.txt", "anna\nsees\n\nbob\n"), ("a.jsonl", as_json)):
        assert read(tmp_path, text, name, needs_labels=False)[1:4] == ([["anna", "sees"], ["bob"]], None, None)
        refused(f"{name} has tokens without labels; training and --mode=eval need", read, tmp_path, text, name)


@pytest.mark.parametrize("mark", ",;")
def test_a_table_with_commas_is_not_taken_for_tokens(tmp_path, mark):
    message = f"a.csv: each line has a '{mark}', and no tab or blank, .*write it with tabs"
    for needs_labels in (True, False):
        refused(message, read, tmp_path, columns(between=mark), "a.csv", needs_labels=needs_labels)
    assert read(tmp_path, f"a\n{mark}\n", needs_labels=False).tokens == [["a", mark]]


FAULTS = [
    ("a.tsv", "a\tI-X\n#b\tB_X\n", "line 2: the label is 'B_X'"),
    ("a.tsv", "x\tO\ny\n", "line 2: 1 column.s., unlike line 1 with 2"),
    ("a.tsv", "x\tO-X\n", "line 1: the label is 'O-X': O has no type"),
    ("a.tsv", "x\tO\n\ny\tB_X\n", "line 3: the label is 'B_X': must be O, or B-TYPE"),
    ("a.tsv", "x\tORG\n", "line 1: the label is 'ORG': must be O, or .*before a type alone write I-"),
    ("a.tsv", "x\t\n", "line 1: the label is '': must be"),
    ("a.tsv", "\tO\n", "line 1: the token is empty"),
    ("a.tsv", "x\tI-Z\n", "line 1: the label is 'I-Z', the model's are O, I-X: for more, train with --label_names"),
    ("a.jsonl", '{"tokens": []}', "line 1: the field 'tokens' must be a list of texts, at least one"),
    ("a.jsonl", '{"text": "x"}', "line 1: the field 'tokens' must be a list of texts"),
    ("a.jsonl", '{"tokens": ["x"], "tags": ["O", "O"]}', "line 1: the tags are .'O', 'O'.: must be a list of 1"),
    ("a.jsonl", '{"tokens": ["x"], "tags": "O"}', "line 1: the tags are 'O': must be a list of 1"),
    ("a.jsonl", '{"tokens": ["x"], "tags": [1]}', "line 1: the tag is 1, but --label_names has labels for 1 num"),
    ("a.jsonl", '{"tokens": ["x"], "tags": [-1]}', "line 1: the tag is -1, but --label_names"),
    ("a.jsonl", '{"tokens": ["x"], "tags": ["O"], "ner_tags": ["B"]}', "line 1: 'ner_tags' is .* and 'tags' is .*one"),
    ("a.jsonl", '{"tokens": ["x"], "tags": ["B-\\ud800"]}', "line 1: the label is .* half of a UTF-16 pair"),
    ("a.tsv", "longer\tB-\0\n", "line 1: the label is .*: U\\+0000 in a label is a control character"),
    ("a.jsonl", '{"tokens": ["x"], "tags": ["O"]}\n{"tokens": ["y"]}', "line 2: the label is None: .* one, or none"),
    ("a.jsonl", '{"tokens": ["x"]}\n{"tokens": ["y"], "tags": ["O"]}', "line 2: the label is 'O': all .*, or none"),
]


@pytest.mark.parametrize("name, text, message", FAULTS)
def test_a_fault_is_refused_with_its_line_or_left_out_and_named(tmp_path, name, text, message):
    path, options = tmp_path / name, dict(allowed_labels=["O", "I-X"], needs_labels=False, label_names=["O"])
    whole = f"^{path}, {message}.*; correct it, or leave .* out with --max_bad_records=N"
    refused(whole, read, tmp_path, text, name, **options)
    labels = ', "tags": ["I-X"]' * ("is 'O': all" not in message)
    sentence = f'\n{{"tokens": ["z"]{labels}}}' if name == "a.jsonl" else "\nz\tI-X\n"
    kept = read(tmp_path, text + sentence, name, max_bad_records=1, **options)
    assert kept.tokens[-1] == ["z"]
    assert kept.notes.startswith(f"{path}: 1 sentence(s) left out: line ")


# The outer labels and, last, those within them.
GERMEVAL = "# web\n1\tFC\tB-ORG\tO\n2\tAarau\tI-ORG\tB-LOC\n\n1\tso\tO\tO\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("\n\n-DOCSTART-\tO\n", "a.tsv holds no sentence that can be used"),
        (GERMEVAL, "a.tsv: the first column numbers the tokens, .*for GermEval's files: cut -f2,3 a.tsv > OUT"),
        ("0\tFC\tB-ORG\n1\tAarau\tO\n\n2\tso\tO\n", "a.tsv: the first column numbers the tokens"),
        ("1\tIm\tO\n1-2\tIm\tO\n2\tHof\tO\n", "a.tsv: the first column numbers the tokens"),
        ("a\tS-X\n\nb\tO\nc\tU-Y\n", r"a.tsv mixes IOBES and BILOU .'S-X' in line 1, 'U-Y' in line 4."),
        ("a\tB-X\nb\tM-X\nc\tL-X\n", "a.tsv mixes IOBES and BILOU .'M-X' in line 2, 'L-X' in line 3."),
    ],
)
def test_what_no_line_can_mend(tmp_path, text, message):
    refused(message, read, tmp_path, text, "a.tsv", max_bad_records=9)


def test_a_line_says_what_was_found(tmp_path):
    broken = "IOB2 (10 entities, 1 of them not by its rules, read as conlleval does)"
    about = read(tmp_path, columns() + "\na\tO\nb\tI-T\n").notes
    assert about == f"{tmp_path / 'train.tsv'}: 5 sentences, 27 tokens, labels by {broken}"


def test_a_long_file_takes_few_bytes_a_token(tmp_path):
    """Two references, to a token and its label; a text of its own for each would take 50 bytes more."""
    text = "and\tO\nso\tO\non\tO\n\n" * 5000
    tracemalloc.start()
    try:
        sentences = read(tmp_path, text)
        assert tracemalloc.get_traced_memory()[1] < 120 * 15000
    finally:
        tracemalloc.stop()
    assert sentences.notes.startswith(f"{tmp_path / 'train.tsv'}: 5,000 sentences, 15,000 tokens")
