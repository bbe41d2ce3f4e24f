"""The model card of an exported model: what it is and how to use it; its author adds what no file knows."""

from __future__ import annotations

from pathlib import Path

import jinja2

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import HEADS
from bert_tf.run.run_folder import read_config
from bert_tf.text.basic_tokenizer import Casing

CARD = "README.md"
_TEMPLATE = "model_card.md"
_PIPELINES = {
    "BertForPreTraining": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    **{head.architecture: head.pipeline for head in HEADS},
}


def data_of(checkpoint: Path) -> str:
    """What the run of a checkpoint folder was trained on, without the path; "" if that is not known.

    Raises:
      UserError: the run's ``config.json`` is missing or damaged.
    """
    config = read_config(checkpoint.parent.parent) if checkpoint.parent.name == "checkpoints" else None
    data = (config or {}).get("data")
    data = data if isinstance(data, dict) else {}
    return str(data.get("dataset") or Path(str(data.get("first_file", ""))).name)


def write_card(name: str, architecture: str, config: BertConfig, *, casing: Casing, num_weights: int, data: str) -> str:
    """The text of ``README.md`` in Markdown; `data`: from `data_of`."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(Path(__file__).with_name(_TEMPLATE).read_text(encoding="utf-8"))
    return template.render(
        name=name,
        architecture=architecture,
        pipeline=_PIPELINES.get(architecture, "feature-extraction"),
        config=config,
        casing=casing,
        num_weights=num_weights,
        data=data,
    )
