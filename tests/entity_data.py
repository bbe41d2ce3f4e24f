"""Sentences with entities in the forms in which people have them, and a small model, for the tests of run_ner.py."""

from tests.small_models import write_small_model

# Names are those of things where a name of a thing stands after "the", and of people elsewhere.
WORDS = "the a red lamp chair anna bob sees likes buys and . ,".split()
SENTENCES = [
    ("anna sees the red lamp .", "B-P O O B-T I-T O"),
    ("bob likes anna and the chair .", "B-P O B-P O O B-T O"),
    ("the lamp , the chair .", "O B-T O O B-T O"),
    ("anna bob buys a lamp .", "B-P I-P O O B-T O"),
]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"##{letter}" for letter in "abcst")]
LABELS = ["B-P", "B-T", "I-P", "I-T", "O"]


def write_model(folder, **options):
    return write_small_model(folder, VOCAB, **options)


def columns(sentences=SENTENCES, end="\n", between="\t"):
    """The text of a file with a token and its label in each line."""
    blocks = []
    for words, labels in sentences:
        blocks.append("".join(f"{pair[0]}{between}{pair[1]}{end}" for pair in zip(words.split(), labels.split())))
    return end.join(blocks)
