"""Files of the tasks as they are distributed, and of one's own: what they are called, what is read, what is refused."""

import csv
import dataclasses

import numpy as np
import pytest

from bert_tf.base.errors import UserError
from bert_tf.tasks.finetuning import EVAL, PREDICT, TRAIN
from bert_tf.tasks.glue.metrics import METRICS
from bert_tf.tasks.glue.read import check_variety, find_labels, read_examples, targets
from bert_tf.tasks.glue.tasks import TASKS, custom_task, find_files, find_task
from tests.glue_data import write_lines
from tests.refusals import refused

MRPC_HEADER = "#1 ID | #2 ID | #1 String | #2 String"
MNLI_HEADER = (
    "index | promptID | pairID | genre | sentence1_binary_parse | sentence2_binary_parse | sentence1_parse | "
    "sentence2_parse | sentence1 | sentence2 | "
)
MNLI_LINE = "7 | 1 | 1e | tv | ( a ) | ( b ) | (S a) | (S b) | a | b | "
MNLI_DEV = [
    f"{MNLI_HEADER}label1 | label2 | label3 | label4 | label5 | gold_label",
    f"{MNLI_LINE}neutral | neutral | entailment | entailment | entailment | entailment",
    f"{MNLI_LINE}neutral | neutral | entailment | entailment | contradiction | -",
]
STS_HEADER = "index | genre | filename | year | old_index | source1 | source2 | sentence1 | sentence2"
PAIR = (["a"], ["b"])


def read(tmp_path, task, *lines, name="train.tsv", **options):
    return read_file(write_lines(tmp_path / name, *lines), task, **options)


def read_file(path, task, **options):
    task = find_task(task) if isinstance(task, str) else task
    return read_examples(path, task, **{"wants_labels": True, **options})


def learned(examples, task):
    """The numbers that a training makes of the labels."""
    task = find_task(task) if isinstance(task, str) else task
    if not (task.labels or task.is_regression):
        task = dataclasses.replace(task, labels=find_labels(examples))
    numbers = targets(examples, task)
    check_variety(examples, numbers)
    return numbers


def notes(examples):
    return [*filter(None, examples.notes)]


# form: (task, lines, texts, labels)
FORMS = {
    "CoLA": ("CoLA", ["gj04 | 1 |  | Sam left.", "gj04 | 0 | * | Left Sam."], (["Sam left.", "Left Sam."],), [1, 0]),
    "CoLA, two columns": ("CoLA", ["it is 1 o'clock | 1", "0 | 0"], (["it is 1 o'clock", "0"],), [1, 0]),
    "CoLA, label first": ("CoLA", ["1 | left", "0 | right it"], (["left", "right it"],), [1, 0]),
    "CoLA, two columns with a header": ("CoLA", ["Sentence | Label", "left | 1"], (["left"],), [1]),
    "CoLA, header the other way": ("CoLA", ["label | sentence", "1 | left"], (["left"],), [1]),
    "ChemProt": ("ChemProt", ["index | sentence | label", '1.T1.T2 | "a" @GENE$ | false'], (['"a" @GENE$'],), [5]),
    "ChemProt, by CSV's rules": ("ChemProt", ["sentence | label", '"""a"" @GENE$" | CPR:9'], (['"a" @GENE$'],), [4]),
    "ChemProt, no header": ("ChemProt", ["1.T2 | @GENE$ | CPR:3", "1 | b | false"], (["@GENE$", "b"],), [0, 5]),
    "SST-2": ("SST-2", ["sentence | label", '"great " film  | 1'], (['"great " film '],), [1]),
    "MRPC": ("MRPC", [f"Quality | {MRPC_HEADER}", '0 | 12 | 13 | "a" said | b'], (['"a" said'], ["b"]), [0]),
    "STS-B": ("STS-B", [f"{STS_HEADER} | score", "3 | g | f | 2012 | 1 | n | n | a | b | 3.800"], PAIR, [3.8]),
    "QQP": ("QQP", ["id | qid1 | qid2 | question1 | question2 | is_duplicate", "8 | 1 | 2 | a | b | 1"], PAIR, [1]),
    "MNLI, train": ("MNLI", [f"{MNLI_HEADER}label1 | gold_label", f"{MNLI_LINE}neutral | neutral"], PAIR, [2]),
    "MNLI, dev": ("MNLI", MNLI_DEV, PAIR, [1]),
    "QNLI": ("QNLI", ["index | question | sentence | label", "0 | a | b | not_entailment"], PAIR, [1]),
    "RTE": ("RTE", ["index | sentence1 | sentence2 | label", "0 | a | b | entailment"], PAIR, [0]),
    "WNLI": ("WNLI", ["index | sentence1 | sentence2 | label", "0 | a | b | 1"], PAIR, [1]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end, begin", [("\n", ""), ("\r\n", "\ufeff")])
def test_files_as_they_are_distributed(tmp_path, form, end, begin):
    task, lines, texts, labels = FORMS[form]
    examples = read_file(write_lines(tmp_path / "train.tsv", *lines, end=end, begin=begin), task)
    assert examples.texts == texts
    assert targets(examples, find_task(task)).tolist() == pytest.approx(labels)


@pytest.mark.parametrize(
    "name, lines, texts, indices",
    [
        ("CoLA", ["index | sentence", "5 | it left"], (["it left"],), ["5"]),
        ("CoLA", ["0 | it left", "1 | he left"], (["it left", "he left"],), ["0", "1"]),
        ("SST-2", ["it left", "he left"], (["it left", "he left"],), ["0", "1"]),
        ("MRPC", [f"index | {MRPC_HEADER}", "0 | 12 | 13 | a | b"], PAIR, ["0"]),
        ("MRPC", [f"Quality | {MRPC_HEADER}", "1 | 12 | 13 | a | b"], PAIR, ["0"]),
        ("QQP", ["id | question1 | question2", "9 | a | b"], PAIR, ["9"]),
        ("MNLI", [MNLI_HEADER[:-3], MNLI_LINE[:-3]], PAIR, ["7"]),
        ("STS-B", [STS_HEADER, "3 | g | f | 2012 | 1 | n | n | a | b"], PAIR, ["3"]),
    ],
)
def test_files_to_predict(tmp_path, name, lines, texts, indices):
    examples = read(tmp_path, name, *lines, wants_labels=False)
    assert (examples.texts, examples.indices, examples.labels) == (texts, indices, None)


def test_a_header_with_other_names_is_no_sentence_to_predict(tmp_path):
    for lines in ["index | sentence1 | sentence2", "7 | a | b", "8 | c | d"], ["text | label", "a | 0"]:
        refused("line 1: no column 'sentence' in", read, tmp_path, "CoLA", *lines, wants_labels=False)


def test_broken_lines_are_skipped_up_to_a_limit(tmp_path):
    header, broken = "index | sentence1 | sentence2 | label", ("1 | a", "b | entailment")
    lines = [header, "0 | a | b | entailment", *broken, "2 | c | d | entailment"]
    refused("line 4: 2 columns instead of 4 .*--max_bad_records", read, tmp_path, "RTE", *lines, max_bad_records=1)
    examples = read(tmp_path, "RTE", *lines, max_bad_records=2)
    assert (examples.texts, examples.lines) == ((["a", "c"], ["b", "d"]), [2, 5])
    [note, _] = notes(examples)
    assert note.startswith("2 record(s) left out: line 3: 2 columns instead of 4") and "line 4: 2 columns" in note
    one = "line 3: 2 columns instead of 4 .*; correct it, since each record gets a prediction$"
    refused(one, read, tmp_path, "RTE", *lines, wants_labels=False, max_bad_records=2)
    swallowing = 'text,kind\na,b\n"c,b\nd",f,e\ng,b\n'  # counts as the two lines that it goes over
    refused("now .*line 4: 3 columns .* .--quoting", own, tmp_path, "own.csv", swallowing, max_bad_records=1)
    assert own(tmp_path, "own.csv", 'text,kind\n"a\nb",c\n\nd,e\n').lines == [2, 5]
    missing = '{"text": "a", "kind": "b"}\n{"text": "c"}\n'
    assert own(tmp_path, "own.jsonl", missing, max_bad_records=1).texts == (["a"],)
    # The published file of QQP has some.
    header = "id | qid1 | qid2 | question1 | question2 | is_duplicate"
    assert read(tmp_path, "QQP", header, "8 | 1 | 2 | a", "b | 1", "8 | 1 | 2 | a | b | 1").texts == PAIR


@pytest.mark.parametrize("name", ["texts.tsv", "texts.csv"])
def test_each_line_of_a_single_column_gets_a_prediction(tmp_path, name):
    """So that predictions stand beside the lines of the file, also where a text is empty."""
    examples = own(tmp_path, name, "text\n\na\n\nb\n   \nc\n\n", wants_labels=False)
    assert [text.strip() for text in examples.texts[0]] == ["", "a", "", "b", "", "c"]
    assert examples.lines == [2, 3, 4, 5, 6, 7]


# --- Files of one's own --------------------------------------------------------------------------

OWN = custom_task("text", "kind", False)
OWN_PAIR, OWN_NUMBER = custom_task("question,answer", "kind", True), custom_task("text", "kind", True)
NAMED = custom_task("Title,text", "kind", False, columns="kind,Title,text")
STS_ROWS = 'news\tafp\t2013\t0001\t2.5\t"a" b\tc\r\nnews\tafp\t2013\t0001\t5\td\te\tsource\thttp://x\r\n'
OF_TWO, OF_MANY = (dataclasses.replace(OWN, labels=each) for each in (("x", "y"), [f"l{n}" for n in range(21)]))


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8"))
    return path


def own(tmp_path, name, content, task=OWN, **options):
    return read_file(write(tmp_path, name, content), task, **options)


@pytest.mark.parametrize(
    "name, content",
    [
        ("own.csv", 'kind,n,text\r\nbad,1,"so ""so"", he said"\r\ngood,2,"two\r\nlines"\r\n'),
        ("own.tsv", '\ufeffn\tText\tKind\n1\t"so ""so"", he said"\tbad\n\n2\t"two\nlines"\tgood\n'),
        ("own.jsonl", '{"text": "so \\"so\\", he said", "kind": "bad"}\n\n{"kind": "good", "text": "two\\nlines"}\n'),
    ],
)
def test_own_files(tmp_path, name, content):
    examples = own(tmp_path, name, content)
    assert examples.labels == ["bad", "good"] and examples.indices == ["0", "1"]
    assert [text.replace("\r", "") for text in examples.texts[0]] == ['so "so", he said', "two\nlines"]
    assert find_labels(examples) == ("bad", "good")


def test_files_without_a_header(tmp_path):
    """One's own, and those of the STS benchmark."""
    examples = own(tmp_path, "own.csv", '"3","so ""so""","he, she"\r\n"4","a","b"\r\n', NAMED)
    assert examples.texts == (['so "so"', "a"], ["he, she", "b"]) and examples.labels == ["3", "4"]
    examples = own(tmp_path, "sts-train.csv", STS_ROWS, "STS-B")
    assert examples.texts == (['"a" b', "d"], ["c", "e"]) and examples.indices == ["0", "1"]
    assert learned(examples, "STS-B").tolist() == [2.5, 5.0]


def test_pairs_and_numbers_of_ones_own(tmp_path):
    """As labels they are sorted by value, of whatever length."""
    rows = '{"question": "a", "answer": "b", "kind": 10}\n{"question": "\\ud83d\\ude00", "answer": 2, "kind": "9"}'
    examples = own(tmp_path, "own.jsonl", rows, OWN_PAIR)
    assert examples.texts == (["a", "\U0001f600"], ["b", "2"]) and find_labels(examples) == ("9", "10")
    numbers = targets(examples, OWN_PAIR)
    assert numbers.dtype == np.float32 and numbers.tolist() == [10.0, 9.0]
    assert find_labels(examples._replace(labels=["9" * 5000, "1e39", "7"])) == ("7", "9" * 5000, "1e39")
    assert examples.indices == ["0", "1"]
    rows = '{"id": "q 7", "text": "a", "kind": "b"}\n{"id": null, "text": "a", "kind": "b"}\n'
    rows += '{"index": 9, "text": "a", "kind": "c"}\n{"idx": 8, "text": "a", "kind": "c"}'
    assert own(tmp_path, "own.jsonl", rows).indices == ["q 7", "1", "9", "8"]
    half = own(tmp_path, "own.jsonl", '{"text": "\\ud83d", "kind": "b"}')
    assert half.texts == (["\ufffd"],), "half a character of UTF-16 is none"


# --- Refusals ------------------------------------------------------------------------------------

STS, RTE = "sentence1 | sentence2 | score\n", "index | sentence1 | sentence2 | label\n"
NUMBER = r"must be a number from -3.40282e\+38 to 3.40282e\+38, with a decimal point"
STS_ROW = "news | afp | 2013 | 1"
# task, name, content with | for tabs, words
REFUSED = [
    ("RTE", "x.tsv", "", "is empty"),
    ("RTE", "x.tsv", RTE, "holds no record"),
    ("MNLI", "x.tsv", f"{MNLI_HEADER}gold_label\n{MNLI_LINE}-\n", "holds no record .*; 1 .* labelled '-', left out"),
    ("RTE", "x.tsv", "index | sentence1\n1 | a\n", "line 1: no column 'sentence2' in 'index . sentence1'; RTE reads"),
    ("CoLA", "x.tsv", "index | sentence\n1 | a\n", "line 1: no column 'label' .* other names use --task_name=custom"),
    ("RTE", "x.tsv", RTE + "0 | a | b | entailment\n1 | a | b\n", "line 3: 3 columns .* of 4 .--quoting .*; correct"),
    ("RTE", "x.tsv", RTE + "0 | a | b | yes\n", "line 2: the label is 'yes': must be one of entailment, not_ent"),
    ("RTE", "x.tsv", "sentence1 | sentence2 | label | label\na | b | 0 | 0\n", "the column 'label' occurs twice"),
    ("CoLA", "x.tsv", "a | 1\nb | 0\nc | 2\n", "line 3: the label is '2': must be one of 0, 1"),
    ("CoLA", "x.tsv", "a\na | 1\nb | 0\n", "line 1: 1 columns instead of 2.*correct it, or leave"),
    ("CoLA", "x.tsv", "a | b\nc | d\n", "has no header, and 0 of its 2 columns hold 0 or 1"),
    ("CoLA", "x.tsv", "a | 1 | 0\nc | 1 | 1\n", "has no header, and 2 of its 3 columns hold 0 or 1"),
    # Without labels each line of these would be predicted as a sentence.
    ("CoLA", "x.jsonl", '{"sentence": "a", "label": 1}\n', "files have tabs between .* read .jsonl with .*=custom"),
    ("SST-2", "x.csv", "sentence,label\na,1\nb,0\n", "files have tabs between .* read .csv with --task_name=custom"),
    ("STS-B", "x.tsv", STS + "a | b | 5.5\n", "line 2: the label is '5.5': must be a number from 0 to 5"),
    ("STS-B", "x.tsv", STS + "a | b | nan\n", "line 2: the label is 'nan': must be a number from 0"),
    ("STS-B", "x.tsv", f"{STS_ROW} | 2.5 | a\n", "line 1: 6 columns instead of 7"),
    ("STS-B", "x.tsv", f"{STS_ROW} | 5.5 | a | b\n", "line 1: no column 'sentence1'"),
    ("STS-B", "x.tsv", f"{STS_ROWS}{STS_ROW} | 5 | a\n", "line 3: 6 columns instead of 7"),
    (NAMED, "x.csv", "3,a\n", "line 1: 2 columns instead of 3"),
    (NAMED, "x.csv", "3,a,b\n4,c\n", "line 2: 2 columns instead of 3"),
    (NAMED, "x.csv", "Kind,Title,Text\n3,a,b\n", "line 1 names the columns itself; leave --columns out"),
    (NAMED, "x.jsonl", '{"kind": "3"}\n', "holds JSON, .* leave --quoting and --columns out"),
    (OWN_NUMBER, "x.csv", "text,kind\na,7\na,1e39\n", f"line 3: the label is '1e39': {NUMBER}"),
    (OWN_NUMBER, "x.csv", f"text,kind\na,{'9' * 5000}\na,1\n", f"line 2: the label is '99.*: {NUMBER}"),
    (OWN_NUMBER, "x.csv", "text,kind\na,1\na,3;5\n", f"line 3: the label is '3;5': {NUMBER}"),
    (OWN_NUMBER, "x.csv", "text,kind\na,2\na,2.0\n", "all labels are '2': nothing to learn"),
    (OF_TWO, "x.csv", "text,kind\na,x\na,x\n", "all labels are 'x'"),
    (OF_TWO, "x.csv", "text,kind\na,x\na,z\n", "line 3: the label is 'z': must be one of x, y$"),
    (OF_MANY, "x.csv", "text,kind\na,l0\na,z\n", "must be one of l0, .*, l19, ...$"),
    (OWN, "x.txt", "text | kind", "the name must say its format: .tsv .*, .csv .*, or .jsonl.*rename it"),
    (OWN, "x.csv.gz", "text,kind", "the name must say its format.*or unpack"),
    (OWN, "x.csv", "\ufefftext;kind\r\na, b;c\r\n", "no column .* in 'text;kind'; .* a .csv has commas"),
    (OWN, "x.tsv", "Text,Kind\na,c\n", "no column .* in 'text,kind'; .* a .tsv tabs"),
    (OWN, "x.csv", '"3","a b."\n"1","b"\n', "no column 'text' .* without a header, --columns"),
    (OWN, "x.csv", "texts,kind\na,b\n", "line 1: no column 'text' .*; custom reads text, kind; .* --text_columns"),
    (OWN, "x.tsv", '"text" | "kind"\n"a | b\nc" | "d"\n', "no column .* --quoting=csv takes quotation marks off"),
    (OWN, "x.json", '[{"text": "a", "kind": 1}]', r"line 1 holds no JSON object.*jq -c '.\[\]' .* lines of a list"),
    (OWN, "x.json", '{\n "text": "a"\n}', "line 1 is not valid JSON.*jq -c . of objects that go over several lines"),
    (OWN, "x.csv", 'text,kind\na,b\n"c" d,b\n', "line 3: .*; quotation marks must enclose .*--quoting=none"),
    (OWN, "x.csv", 'text,kind\na,b\n"c,b\nd,e\n', "line 3: .*; quotation marks must enclose"),
    (OWN, "x.csv", "text,kind\na,b\nc,\n", "line 3: kind is '': a label must not be empty"),
    (OWN, "x.jsonl", '{"text": "a", "kind": "b"}\n{"text": "a"}\n', "line 2: kind is null, or missing"),
    (OWN, "x.jsonl", '{"text": ["a"], "kind": "b"}\n', "line 1: text is .*; it must be a text"),
    (OWN, "x.jsonl", '{"text": "a", "kind": "\\ud83d"}\n', "line 1: kind is .*half of a UTF-16 pair"),
    (OWN, "x.tsv", "text | kind\na | b\0\n", "line 2: kind is .*a control character"),
    (OWN, "x.tsv", "text | kind\na | \u200fb\n", "line 2: kind is .*U.200F in a label .* cannot be seen; take it out"),
    (OWN, "x.jsonl", '{"text": "a", "kind": 0, "kind": 1}\n', "line 1: the field 'kind' occurs twice"),
    (OWN, "x.jsonl", "", "holds no record"),
    (OWN, "x.jsonl", '{"text": "a", "kind": NaN}\n', "line 1: kind is NaN, .* it must be"),
]


@pytest.mark.parametrize("task, name, content, message", REFUSED, ids=[message for *_, message in REFUSED])
def test_what_cannot_be_trained_on_is_refused(tmp_path, task, name, content, message):
    path = write(tmp_path, name, content.replace(" | ", "\t"))
    refused(f"{name}.*{message}", lambda: learned(read_file(path, task), task))


def test_of_many_labels_the_commonest_are_counted(tmp_path):
    labels = [f"l{number % 9}" for number in range(10)]
    rows = "".join(f"{row}\n" for row in ("text,kind", *(f"a,{each}" for each in labels)))
    assert "10 rows (l0: 2, l1: 1, l2: 1, l3: 1, l4: 1, l5: 1, l6: 1, l7: 1, ...)" in own(tmp_path, "a.csv", rows).notes


# --- Quoting -------------------------------------------------------------------------------------

# What stands in the lines 3 and 5 of a file with six records -> the texts there without quoting.
PLAIN = {
    "inside": ('" Ronaz " is old .', "b"),
    "open": ('" Ronaz is old', "b"),
    "closed two lines below": ('" Ronaz is old', 'Ronaz is old "'),
    "around the whole": ('" Ronaz is old ."', "b"),
    "doubled, but not alone": ('"He said ""so"""', 'and "so"'),
}


def rows_of(texts, reverse):
    """With a header, and the labels 0 and 1 by turns; `reverse`: before the texts."""
    rows = [("text", "kind"), *((text, str(number % 2)) for number, text in enumerate(texts))]
    return [row[::-1] if reverse else row for row in rows]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", PLAIN)
def test_plain_quotation_marks_swallow_no_record(tmp_path, form, reverse):
    texts = ["a", PLAIN[form][0], "b", PLAIN[form][1], "c", "d"]
    content = "".join("\t".join(row) + "\n" for row in rows_of(texts, reverse))
    for quoting in (None, "none"):
        assert own(tmp_path, "own.tsv", content, quoting=quoting).texts == (texts,)
    doubtful = form in ("closed two lines below", "around the whole")
    note = "its quotation marks are taken as text; --quoting=csv reads them by CSV's rules"
    assert notes(own(tmp_path, "own.tsv", content))[:-1] == [note] * doubtful


def test_one_column_of_plain_text(tmp_path):
    task = custom_task("text", None, False)
    for quoting, texts in ((None, ['" a', "b", 'c "']), ("csv", [" a\nb\nc "])):
        examples = own(tmp_path, "new.tsv", 'text\n" a\nb\nc "\n', task, wants_labels=False, quoting=quoting)
        assert examples.texts == (texts,)


WRITTEN = (["a", 'he said "so"', "b"], ["a", "two\nlines", "b"], ["a", "a\ttab", "b"], ['"', '""', "a\n\n"])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("style", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("texts", WRITTEN)
def test_what_the_csv_module_and_pandas_write_is_known_by_its_content(tmp_path, texts, style, reverse):
    with open(tmp_path / "own.tsv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t", quoting=style, lineterminator="\n").writerows(rows_of(texts, reverse))
    examples = read_file(tmp_path / "own.tsv", OWN)
    assert (examples.texts[0], examples.labels) == (texts, ["0", "1", "0"])
    num_broken = sum("\n" in text for text in texts)
    assert notes(examples)[:-1] == [
        "its quotation marks follow CSV's rules; --quoting=none takes them as text",
        *["1 record(s) with line breaks between quotation marks, kept"] * num_broken,
    ]


def test_quoting_of_glues_files_and_of_json(tmp_path):
    lines = ("sentence | label", '"he said ""so""" | 1')
    assert read(tmp_path, "SST-2", *lines).texts == (['"he said ""so"""'],)
    assert read(tmp_path, "SST-2", *lines, quoting="csv").texts == (['he said "so"'],)
    refused("own.jsonl holds JSON", own, tmp_path, "own.jsonl", "{}", quoting="csv")


LONG = 'so "long"\n' * 20_000  # more than the csv module's limit


@pytest.mark.parametrize(
    "content, texts",
    [
        ('text,kind\n"{}",0\nb,1\n'.format(LONG.replace('"', '""')), [LONG, "b"]),
        ("text,kind\ra,0\rb,1\r", ["a", "b"]),
        ("text,kind\r\na\rline,0\r\nb,1\r\n", ["a line", "b"]),
        ("text,kind\na\0,0\nb,1\n", ["a", "b"]),
        ('text,kind\r\n"a\r\nline",0\r\nb,1', ["a\nline", "b"]),
    ],
)
def test_fields_of_any_length_and_carriage_returns(tmp_path, content, texts):
    examples = own(tmp_path, "own.csv", content)
    assert (examples.texts, examples.labels) == ((texts,), ["0", "1"])


def test_empty_texts_are_kept_and_counted(tmp_path):
    for wants_labels in (True, False):
        examples = own(tmp_path, "own.tsv", "text\tkind\na\t0\n\t1\n \t0\n\n", wants_labels=wants_labels)
        assert examples.texts == (["a", "", " "],)
        assert notes(examples)[0] == "2 record(s) with an empty text, kept"


# --- Anything else -------------------------------------------------------------------------------

JUNK = (*b'\n \t \t\t\n " { [] null\n \xff\xfe \x00 \xef\xbb\xbf 1\t0\n \r'.split(b" "), b"")


@pytest.mark.parametrize(
    "task, name, good",
    [
        ("CoLA", "x.tsv", "a\t1\tx\tthe cat\nb\t0\t*\tcat the\n"),
        ("RTE", "x.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n"),
        (OWN, "x.csv", 'kind,text\ngood,"a ""b"", c"\nbad,d\n'),
        (OWN, "x.tsv", 'kind\ttext\ngood\t"a ""b"", c"\nbad\td\n'),
        (OWN, "x.jsonl", '{"text": "a", "kind": "good"}\n{"text": "b", "kind": "bad"}\n'),
    ],
)
def test_damaged_files_are_refused_or_read(tmp_path, task, name, good):
    """With a piece of junk in place of a few bytes."""
    whole, path, num_refused = good.encode(), tmp_path / name, 0
    cases = [whole[:place] + junk + whole[place + place % 9 :] for place in range(0, len(whole), 5) for junk in JUNK]
    for content in cases:
        path.write_bytes(content)
        try:
            read_file(path, task, wants_labels=False)
            learned(read_file(path, task), task)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            num_refused += 1
    assert 0.1 < num_refused / len(cases) < 1


def test_fields_of_json_that_are_not_read_are_named(tmp_path):
    examples = own(tmp_path, "own.jsonl", '{"text": "a", "body": "More text.", "n": 7}', wants_labels=False)
    assert notes(examples)[0] == "fields with text that are not read: 'body' (1)"


# --- Tasks and their files ------------------------------------------------------------------------


def test_names_in_any_case_and_the_nearest_for_others():
    assert [find_task(name).name for name in ("cola", "MRPC", "Sst-2", "stsb")] == ["CoLA", "MRPC", "SST-2", "STS-B"]
    refused("--task_name=MRCP: must be one of CoLA, .*, custom; did you mean MRPC?", find_task, "MRCP")
    refused("WNLI, ChemProt, custom$", find_task, "xyz")
    assert {name for task in TASKS for name in find_task(task).metrics} <= METRICS.keys()


def test_files_of_a_folder_or_as_given(tmp_path):
    mrpc, mnli, cola = map(find_task, ("MRPC", "MNLI", "CoLA"))
    raw = write_lines(tmp_path / "msr_paraphrase_train.txt", "x")
    assert find_files(mrpc, TRAIN, str(tmp_path), None) == {TRAIN: [raw]}
    processed = write_lines(tmp_path / "train.tsv", "x")
    assert find_files(mrpc, TRAIN, str(tmp_path), None) == {TRAIN: [processed]}
    assert find_files(cola, TRAIN, None, str(raw)) == {TRAIN: [raw]}
    parts = {f"eval_{part}": [write_lines(tmp_path / f"dev_{part}.tsv", "x")] for part in ("matched", "mismatched")}
    assert find_files(mnli, EVAL, str(tmp_path), None) == parts
    sts = write_lines(tmp_path / "sts/sts-train.csv", "x")
    assert find_files(find_task("STS-B"), TRAIN, str(sts.parent), None) == {TRAIN: [sts]}
    folder, absent = str(tmp_path / "sub"), str(tmp_path / "absent.tsv")
    for message, *arguments in (
        ("has no test_matched.tsv; name a file with --predict_file, .* MNLI", mnli, PREDICT, str(tmp_path), None),
        ("has no dev.tsv; .* --action text_formatting --dataset ChemProt", find_task("chemprot"), EVAL, folder, None),
        ("--data_dir, or --eval_file, is required", cola, EVAL, None, None),
        ("absent.tsv does not exist; name a file with --train_file", cola, TRAIN, None, absent),
        ("is not a file", cola, TRAIN, None, str(tmp_path)),
        ("has no train.tsv or train.csv or train.jsonl; .*another folder$", OWN, TRAIN, folder, None),
    ):
        refused(message, find_files, *arguments)


@pytest.mark.parametrize("columns", [None, "", "a,", "a,b,d", "a,a", "a,label"])
def test_columns_of_ones_own_must_be_named(columns):
    refused("needs the name of one column, or of two", custom_task, columns, "label", False)


def test_labels_without_a_score_are_some_of_the_labels():
    task = dataclasses.replace(custom_task("a", "b", False, "none,other"), labels=("none", "other", "yes"))
    task.check_unscored()
    assert task.no_score_for == ("none", "other") and find_task("ChemProt").no_score_for == ("false",)
    for labels in (("none", "other"), ("none", "yes")):
        other = dataclasses.replace(task, labels=labels)
        refused(f"=none,other: must be some labels, not all: {', '.join(labels)}$", other.check_unscored)
    refused("--no_score_for=none is for labels, not for --regression", custom_task, "a", "b", True, "none")
