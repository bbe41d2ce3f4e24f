"""ChemProt as a task of `bert_tf.tasks.glue`: relations of chemicals and proteins, as in BLUE (arXiv 1906.05474)."""

from __future__ import annotations

from bert_tf.tasks.glue.tasks import TextTask

CHEMPROT = TextTask(
    "ChemProt",
    text_columns=("sentence",),
    label_column="label",
    labels=("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9", "false"),
    metrics=("accuracy",),
    no_score_for=("false",),
    may_be_quoted=True,
    preparing_action="text_formatting",
)
