"""The heads that tasks put on the encoder: what they compute, and how they are stored here and at Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Head(NamedTuple):
    """A linear layer, which a model that was fine-tuned on a task has, and one that was only pre-trained lacks."""

    name: str  # as messages call it, and with a hyphen Hugging Face
    scope: str  # what our names of its variables begin with
    outputs: Sequence[str]  # what the model computes, by its names in exports
    architecture: str = ""  # the class of transformers that computes the same; "": there is none
    prefix: str = "classifier"  # what Hugging Face's names begin with, where the class tells which head is meant
    uses_pooler: bool = True  # reads the pooled first position; else it gives a value for each position
    has_labels: bool = False  # whether the classes of its outputs have names

    @property
    def variable(self) -> str:
        """The name of its matrix."""
        return f"{self.scope}output_weights"

    @property
    def names(self) -> dict[str, str]:
        """Our names of its variables, by Hugging Face's."""
        return {f"{self.prefix}.weight": self.variable, f"{self.prefix}.bias": f"{self.scope}output_bias"}


_SPANS = ("start_logits", "end_logits")
TEXTS = Head("text classification", "", ["logits"], "BertForSequenceClassification", has_labels=True)
TOKENS = Head(
    "token classification", "cls/token/", ["logits"], "BertForTokenClassification", uses_pooler=False, has_labels=True
)
SPANS = Head("question answering", "cls/squad/", _SPANS, "BertForQuestionAnswering", "qa_outputs", uses_pooler=False)
CHOICES = Head("multiple choice", "cls/choice/", ["score"], "BertForMultipleChoice")
HEADS = (TEXTS, TOKENS, SPANS, CHOICES)
