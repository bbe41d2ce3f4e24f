"""Makes seqeval.json: the entities and scores that the package seqeval finds in random labels.

Origin of the numbers: seqeval 1.2.2, which the tests do not need, only this program, in an environment of its own:

    python3 -m venv golden-venv
    golden-venv/bin/pip install seqeval==1.2.2
    golden-venv/bin/python tests/golden/make_seqeval_golden.py

Its default mode does not know BILOU's L and U: there the labels are given to it as IOBES, which has E and S for them.
"""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path

from seqeval import scheme
from seqeval.metrics import accuracy_score, classification_report
from seqeval.metrics.sequence_labeling import get_entities

LETTERS = {"IOB1": "BI", "IOB2": "BI", "IOBES": "BIES", "BILOU": "BILU"}
TYPES = (["X"], ["X", "Y"], ["X-a", "Y"], [""])  # "": labels without a type, which it calls _


def as_iobes(labels):
    return [label[0].translate(str.maketrans("LU", "ES")) + label[1:] for label in labels]


def report(true, predicted, **options):
    """Precision, recall and F1, of all types as _ and by type."""
    measured = classification_report(true, predicted, output_dict=True, zero_division=0, **options)
    kept = {kind.replace("micro avg", "_"): row for kind, row in measured.items() if "macro" not in kind}
    kept.pop("weighted avg")
    return {kind: [row[name] for name in ("precision", "recall", "f1-score")] for kind, row in kept.items()}


def make_case(name, types, chooser):
    rules, letters = getattr(scheme, name), LETTERS[name]
    labels = ["O", "O", *(f"{letter}-{kind}" if kind else letter for letter in letters for kind in types)]
    true = [[chooser.choice(labels) for _ in range(chooser.randint(1, 9))] for _ in range(4)]
    predicted = [[label if chooser.random() < 0.7 else chooser.choice(labels) for label in row] for row in true]
    plain = [[as_iobes(row) for row in rows] if name == "BILOU" else rows for rows in (true, predicted)]
    return {
        "scheme": name,
        "true": true,
        "predicted": predicted,
        "entities": [[[kind, start, last + 1] for kind, start, last in get_entities(row)] for row in plain[0]],
        "strict_entities": [
            [[entity.tag, entity.start, entity.end] for entity in scheme.Tokens(row, rules).entities] for row in true
        ],
        "accuracy": accuracy_score(true, predicted),
        "scores": report(*plain),
        "strict_scores": report(true, predicted, mode="strict", scheme=rules),
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    cases = [make_case(name, types, random.Random(f"{name}{types}")) for name in LETTERS for types in TYPES]
    Path(__file__).with_name("seqeval.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
