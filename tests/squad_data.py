"""A small model's files and a few questions, for the tests of fine-tuning and prediction."""

import json
from pathlib import Path

from bert_tf.bert_config import BertConfig
from bert_tf.tasks.squad.examples import read_examples
from bert_tf.text.wordpiece import FullTokenizer

GOLDEN = json.loads((Path(__file__).parent / "golden" / "squad.json").read_text(encoding="utf-8"))


def write_squad(folder, *, version_2=True, hidden_size=16, num_hidden_layers=1, dropout=0.1):
    """Writes vocab.txt, bert_config.json and squad.json into `folder` and returns it."""
    config = BertConfig(
        vocab_size=len(GOLDEN["vocab"]),
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=2,
        intermediate_size=2 * hidden_size,
        max_position_embeddings=128,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    squad = json.loads(json.dumps(GOLDEN["squad"]))
    if not version_2:
        for paragraph in squad["data"][0]["paragraphs"]:
            paragraph["qas"] = [qa for qa in paragraph["qas"] if qa["answers"]]
    (folder / "vocab.txt").write_text("\n".join(GOLDEN["vocab"]) + "\n", encoding="utf-8")
    (folder / "bert_config.json").write_text(config.to_json(), encoding="utf-8")
    (folder / "squad.json").write_text(json.dumps(squad), encoding="utf-8")
    return folder


def read_golden(folder):
    """The golden file's questions, and its tokenizer."""
    (folder / "vocab.txt").write_text("\n".join(GOLDEN["vocab"]) + "\n", encoding="utf-8")
    (folder / "squad.json").write_text(json.dumps(GOLDEN["squad"]), encoding="utf-8")
    return read_examples(folder / "squad.json", version_2_with_negative=True), FullTokenizer(folder / "vocab.txt", True)
