"""The heads of fine-tuned models: what they compute, and how our files and Hugging Face's name their variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Head(NamedTuple):
    """A linear layer on the encoder, which fine-tuned models have and models that were only pre-trained lack."""

    name: str  # in messages
    scope: str  # the prefix of our names of its variables
    outputs: Sequence[str]  # the names of the model's outputs in exports
    architecture: str = ""  # the class of transformers that computes the same; "": there is none
    prefix: str = "classifier"  # of Hugging Face's names of its variables; several classes have the same
    uses_pooler: bool = True  # reads the pooled first position; else it computes a value for each position
    has_labels: bool = False  # whether its outputs are classes with names

    @property
    def pipeline(self) -> str:
        """Hugging Face's name of the pipeline."""
        return self.name.replace(" ", "-")

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
