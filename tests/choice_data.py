"""Questions with choices in the forms in which people have them, and a small model, for the tests of run_swag.py."""

import csv
import io
import json
import random

from tests.small_models import write_small_model

# The right choice is a thing, the others are people.
THINGS, PEOPLE = "lamp chair table".split(), "anna bob carl dora".split()
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"who sees likes the red .".split(), *THINGS, *PEOPLE]
HEADER = [*" video-id fold-ind startphrase sent1 sent2 gold-source".split(" "), *(f"ending{n}" for n in range(4))]


def write_model(folder, **options):
    return write_small_model(folder, VOCAB, **options)


def make_questions(seed, number, num_choices=4):
    """(context, start, choices, label) of so many questions."""
    chooser = random.Random(seed)
    for _ in range(number):
        label = chooser.randrange(num_choices)
        choices = [" ".join([chooser.choice(PEOPLE), *["likes"] * chooser.randrange(4)]) for _ in range(num_choices)]
        choices[label] = chooser.choice(THINGS)
        yield f"{chooser.choice(PEOPLE)} sees the {chooser.choice(THINGS)} .", "who likes", choices, label


def swag(questions, with_labels=True):
    """The text of a file of SWAG's."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HEADER + ["label"] * with_labels)
    for number, (context, start, choices, label) in enumerate(questions):
        row = [number, "video", 1, f"{context} {start}", context, start, "gold", *choices]
        writer.writerow(row + [label] * with_labels)
    return text.getvalue()


def json_lines(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)
