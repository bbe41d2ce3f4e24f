"""The heads that tasks put on the encoder: their names in our files and in Hugging Face's, an entry for each."""

from __future__ import annotations

from typing import NamedTuple


class StoredHead(NamedTuple):
    """A linear layer on the encoder, as it is stored."""

    scope: str  # what our names of its variables begin with
    prefix: str  # Hugging Face's names begin with this, where the class tells which head is meant
    architecture: str  # the class of transformers that computes the same
    pipeline: str  # what Hugging Face calls the task
    uses_pooler: bool = True  # False: the class has no pooler, and a training leaves ours as it is
    has_labels: bool = False  # whether the classes of its outputs have names

    @property
    def variable(self) -> str:
        """The name of its matrix."""
        return f"{self.scope}output_weights"

    @property
    def names(self) -> dict[str, str]:
        """Our names of its variables, by Hugging Face's."""
        return {f"{self.prefix}.weight": self.variable, f"{self.prefix}.bias": f"{self.scope}output_bias"}


TEXTS = StoredHead("", "classifier", "BertForSequenceClassification", "text-classification", has_labels=True)
TOKENS = StoredHead(
    "cls/token/", "classifier", "BertForTokenClassification", "token-classification", uses_pooler=False, has_labels=True
)
SPANS = StoredHead("cls/squad/", "qa_outputs", "BertForQuestionAnswering", "question-answering", uses_pooler=False)
CHOICES = StoredHead("cls/choice/", "classifier", "BertForMultipleChoice", "multiple-choice")
# Parameters of a file that does not say its class are those of the first head with such names.
HEADS = (TEXTS, TOKENS, SPANS, CHOICES)
