"""What each script does: the one table of all recipes. ``bert_tf.launch`` runs any of them."""

from __future__ import annotations

from functools import partial

from bert_tf.base.errors import UserError
from bert_tf.base.files import checkout
from bert_tf.base.registration import load
from bert_tf.launch import run_sub
from bert_tf.launch.budget import BUDGET, make_budget
from bert_tf.launch.call import Recipe
from bert_tf.launch.finetuning import GLUE, GLUE_INFERENCE, SQUAD, SQUAD_INFERENCE, GlueCall, SquadCall
from bert_tf.launch.pretraining import ADAM, LAMB, make_adam, make_lamb

_BENCHMARKS = "benchmarks.finetuning_sweeps:RECIPES"
_BIOBERT = "bert_tf.contrib.biomedical.biobert:RECIPES"
# By the scripts' names; or the tables in which they stand.
RECIPES: dict[str, Recipe | str] = {
    "pretraining_lamb": Recipe(LAMB, make_lamb),
    "pretraining_lamb_phase1": Recipe(LAMB, partial(make_lamb, only="phase_1")),
    "pretraining_lamb_phase2": Recipe(LAMB, partial(make_lamb, only="phase_2")),
    "pretraining_adam": Recipe(ADAM, make_adam),
    "pretraining_budget": Recipe(BUDGET, make_budget),
    "run_sub": Recipe((), run_sub.RunSub),
    "squad": Recipe(SQUAD, partial(SquadCall.of, "finetuning_squad")),
    "squad_inference": Recipe(SQUAD_INFERENCE, partial(SquadCall.of, "squad_inference")),
    "glue": Recipe(GLUE, partial(GlueCall.of, "finetuning_glue")),
    "glue_inference": Recipe(GLUE_INFERENCE, partial(GlueCall.of, "glue_inference")),
    "biobert/ner_bc5cdr-chem": _BIOBERT,
    "biobert/ner_bc5cdr-disease": _BIOBERT,
    "biobert/rel_chemprot": _BIOBERT,
    "biobert/run_pretraining-pubmed_base_phase_1": _BIOBERT,
    "biobert/run_pretraining-pubmed_base_phase_2": _BIOBERT,
    "finetune_train_benchmark": _BENCHMARKS,
    "finetune_inference_benchmark": _BENCHMARKS,
    "biobert/biobert_finetune_train_benchmark": _BENCHMARKS,
    "biobert/biobert_finetune_inference_benchmark": _BENCHMARKS,
}


def find_recipe(name: str) -> Recipe:
    """The recipe with this name, one of `RECIPES`. Raises `UserError` if it is one of benchmarks that are not here."""
    found = RECIPES[name]
    if found == _BENCHMARKS and checkout() is None:
        raise UserError("the benchmarks are in the checkout, which was not installed: type this there")
    return load(found)[name] if isinstance(found, str) else found
