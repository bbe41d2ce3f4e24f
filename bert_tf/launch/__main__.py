"""``python -m bert_tf.launch <recipe> [value ...]``: called by the shell launchers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bert_tf.base.errors import exit_on_user_error, require_modules

require_modules("tqdm")
from bert_tf.launch.environment import LaunchEnvironment, show  # noqa: E402
from bert_tf.launch.recipes import find_recipe, find_recipes  # noqa: E402

_USAGE = "usage: python -m bert_tf.launch LAUNCHER [value ...], where LAUNCHER is one of"


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    name, *texts = argv[1:] or [""]
    if name in ("-h", "--help"):
        show(_USAGE, *(f"  {recipe}" for recipe in find_recipes()), "LAUNCHER --help lists the values that it takes.")
        return 0
    recipe = find_recipe(name)
    if texts[:1] in (["-h"], ["--help"]):
        show(f"values of {name}, by position (its variables: docs/settings.md):")
        for number, argument in enumerate(recipe.arguments, 1):
            default = f"; default {argument.default}" if argument.default else ""
            show(f"  {number:2} {argument.name}: {argument.rule}{default}")
        return 0
    return recipe.launch(texts, LaunchEnvironment(os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
