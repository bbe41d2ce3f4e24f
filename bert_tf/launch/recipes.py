"""What each script does: the one table of all recipes. ``bert_tf.launch`` runs any of them."""

from __future__ import annotations

from functools import partial

from bert_tf.base.command_line import suggestion
from bert_tf.base.errors import UserError
from bert_tf.base.files import checkout
from bert_tf.base.registration import load
from bert_tf.launch import run_sub
from bert_tf.launch.call import Recipe
from bert_tf.launch.finetuning import GLUE, GLUE_INFERENCE, SQUAD, SQUAD_INFERENCE, GlueCall, SquadCall
from bert_tf.launch.pretraining import ADAM, LAMB, make_adam, make_lamb

# Tables of recipes in other packages; the benchmarks' is in the checkout only.
_BUDGET, _BIOBERT = "bert_tf.contrib.budget.budget:RECIPES", "bert_tf.contrib.biomedical.biobert:RECIPES"
_BENCHMARKS = "benchmarks.finetuning_sweeps:RECIPES"
_RECIPES = {
    "pretraining_lamb": Recipe(LAMB, make_lamb),
    "pretraining_lamb_phase1": Recipe(LAMB, partial(make_lamb, only_phase="phase_1")),
    "pretraining_lamb_phase2": Recipe(LAMB, partial(make_lamb, only_phase="phase_2")),
    "pretraining_adam": Recipe(ADAM, make_adam),
    "run_sub": Recipe((), run_sub.RunSub),
    "squad": Recipe(SQUAD, partial(SquadCall.from_positionals, "finetuning_squad")),
    "squad_inference": Recipe(SQUAD_INFERENCE, partial(SquadCall.from_positionals, "squad_inference")),
    "glue": Recipe(GLUE, partial(GlueCall.from_positionals, "finetuning_glue")),
    "glue_inference": Recipe(GLUE_INFERENCE, partial(GlueCall.from_positionals, "glue_inference")),
}


def find_recipes() -> dict[str, Recipe]:
    """All recipes, by the names of their scripts."""
    return {**_RECIPES, **load(_BUDGET), **load(_BIOBERT), **(load(_BENCHMARKS) if checkout() else {})}


def find_recipe(name: str) -> Recipe:
    """The recipe with this name. Raises `UserError` if there is none."""
    recipes = find_recipes()
    if name not in recipes:
        raise UserError(f"there is no launcher {name!r}; there are {', '.join(recipes)}{suggestion(name, recipes)}")
    return recipes[name]
