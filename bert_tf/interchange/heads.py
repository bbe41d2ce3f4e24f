"""The heads that tasks put on the encoder: what they compute, and how they are stored here and at Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Head(NamedTuple):
    """A linear layer, which a model that was fine-tuned on a task has, and one that was only pre-trained lacks."""

    name: str  # as messages call it
    scope: str  # what our names of its variables begin with
    outputs: Sequence[str]  # what the model computes, by its names in exports
    uses_pooler: bool = True  # reads the pooled first position; else it gives a value for each position
    has_labels: bool = False  # whether the classes of its outputs have names
    prefix: str = ""  # Hugging Face's names begin with this, where the class tells which head is meant
    architecture: str = ""  # the class of transformers that computes the same; "": there is none
    pipeline: str = ""  # what Hugging Face calls the task

    @property
    def variable(self) -> str:
        """The name of its matrix."""
        return f"{self.scope}output_weights"

    @property
    def names(self) -> dict[str, str]:
        """Our names of its variables, by Hugging Face's."""
        return {f"{self.prefix}.weight": self.variable, f"{self.prefix}.bias": f"{self.scope}output_bias"}


TEXTS = Head(
    "classification",
    "",
    outputs=("logits",),
    has_labels=True,
    prefix="classifier",
    architecture="BertForSequenceClassification",
    pipeline="text-classification",
)
TOKENS = Head(
    "token classification",
    "cls/token/",
    outputs=("logits",),
    uses_pooler=False,
    has_labels=True,
    prefix="classifier",
    architecture="BertForTokenClassification",
    pipeline="token-classification",
)
SPANS = Head(
    "question answering",
    "cls/squad/",
    outputs=("start_logits", "end_logits"),
    uses_pooler=False,
    prefix="qa_outputs",
    architecture="BertForQuestionAnswering",
    pipeline="question-answering",
)
CHOICES = Head(
    "multiple choice",
    "cls/choice/",
    outputs=("score",),
    prefix="classifier",
    architecture="BertForMultipleChoice",
    pipeline="multiple-choice",
)
# Parameters of a file that does not say its class are those of the first head with such names.
HEADS = (TEXTS, TOKENS, SPANS, CHOICES)
