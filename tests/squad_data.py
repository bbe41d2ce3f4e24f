"""A small model's files and a few questions, for the tests of fine-tuning and prediction."""

import json
from pathlib import Path

from bert_tf.tasks.squad.examples import read_examples
from bert_tf.text.wordpiece import FullTokenizer
from tests.small_models import write_small_model

GOLDEN = json.loads((Path(__file__).parent / "golden" / "squad.json").read_text(encoding="utf-8"))


def write_squad(folder, *, version_2=True, **model):
    """Writes vocab.txt, bert_config.json and squad.json into `folder` and returns it."""
    squad = json.loads(json.dumps(GOLDEN["squad"]))
    if not version_2:
        for paragraph in squad["data"][0]["paragraphs"]:
            paragraph["qas"] = [qa for qa in paragraph["qas"] if qa["answers"]]
    (folder / "squad.json").write_text(json.dumps(squad), encoding="utf-8")
    return write_small_model(folder, GOLDEN["vocab"], positions=128, **model)


def read_golden(folder):
    """The golden file's questions, and its tokenizer."""
    (folder / "vocab.txt").write_text("\n".join(GOLDEN["vocab"]) + "\n", encoding="utf-8")
    (folder / "squad.json").write_text(json.dumps(GOLDEN["squad"]), encoding="utf-8")
    return read_examples(folder / "squad.json", version_2_with_negative=True), FullTokenizer(folder / "vocab.txt", True)
