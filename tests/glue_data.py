"""Small files of each GLUE task in the forms in which they are distributed, for the tests of fine-tuning on them."""

from __future__ import annotations

from tests.small_models import write_small_model

GOOD = ("the cat sat", "a dog ran home", "she reads books", "they went there")
BAD = ("cat the sat", "dog a home ran", "reads she books", "there they went")
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word for text in GOOD for word in text.split()})]


def write_model(folder, **options):
    return write_small_model(folder, VOCAB, **options)


def write_lines(path, *lines, end="\n", begin=""):
    """A line per argument; its columns are separated by " | " there, by tabs in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((begin + "".join(line.replace(" | ", "\t") + end for line in lines)).encode("utf-8"))
    return path


def write_cola(folder):
    """train.tsv, dev.tsv (without headers) and test.tsv (with one) of CoLA: is the sentence in order?"""
    labelled = [f"x01 | 1 |  | {text}" for text in GOOD] + [f"x01 | 0 | * | {text}" for text in BAD]
    unlabelled = [f"{number} | {text}" for number, text in enumerate(GOOD + BAD)]
    write_lines(folder / "train.tsv", *labelled * 2)
    write_lines(folder / "dev.tsv", *labelled)
    write_lines(folder / "test.tsv", "index | sentence", *unlabelled)
    return folder
