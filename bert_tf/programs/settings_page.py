"""``python -m bert_tf.programs.settings_page``: prints docs/settings.md, the tables of all settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bert_tf.settings.declaration import Setting, settings_of
from bert_tf.settings.preparation import PreparationOptions
from bert_tf.settings.programs import LaunchVariables
from bert_tf.tasks.task import TASKS, settings_classes

_PRETRAINING = "pretraining"
TABLES: dict[str, tuple[type, ...]] = {
    "Pre-training: `run_pretraining.py`": settings_classes(_PRETRAINING),
    **{f"Fine-tuning: {name}": settings_classes(name) for name in TASKS if name != _PRETRAINING},
    "Preparation: `data/bertPrep.py`": (PreparationOptions,),
    "Variables of the launchers": (LaunchVariables,),
}
_HEAD = """# All settings

Written by `python -m bert_tf.programs.settings_page` from the declarations in `bert_tf/settings/` and
the `settings.py` of each task. "Fixed" settings must not change within a run, nor may what follows from others: its
data and their masks, the sequences of an update, the learning rate of all ranks, the weights it starts from. A setting
with a variable can be given to the launchers by it: `PACKING=1 bash scripts/run_pretraining_lamb.sh ...`; those of the
preparation to `data/create_datasets_from_start.sh`.
"""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', ' or ') for cell in cells)} |"


def _cells(each: Setting) -> tuple[str, ...]:
    default = "" if each.default is None or each.is_required else f"{each.default}"
    return each.help, default, "" if each.kind in ("str", "bool") and not each.choices else each.rule


def render(tables: Mapping[str, tuple[type, ...]]) -> Iterator[str]:
    """The lines of the page."""
    yield _HEAD
    of_training = {each.variable for each in settings_of(*settings_classes(_PRETRAINING))}
    for title, classes in tables.items():
        unread = of_training if classes == (PreparationOptions,) else {""}
        yield f"## {title}\n"
        if classes == (LaunchVariables,):
            yield "| variable | what it does | default | must be |\n|---|---|---|---|"
            for each in settings_of(*classes):
                yield _row(f"`{each.variable}`", *_cells(each))
        else:
            yield "| option | what it does | default | must be |  | variable |\n|---|---|---|---|---|---|"
            for each in settings_of(*classes):
                if each.is_flag:
                    fixed = "fixed" if each.is_fixed else ""
                    variable = "" if each.variable in unread else f"`{each.variable}`"
                    yield _row(f"`--{each.name}`", *_cells(each), fixed, variable)
        yield ""


if __name__ == "__main__":
    print("\n".join(render(TABLES)).rstrip())
