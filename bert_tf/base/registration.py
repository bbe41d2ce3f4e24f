"""References by name, for tables whose entries are imported only when they are used."""

from __future__ import annotations

import importlib
from typing import Any, Callable


def load(name: str) -> Any:
    """Imports the object called ``module:name``."""
    module, _, name_in_module = name.partition(":")
    return getattr(importlib.import_module(module), name_in_module)


def deferred_function(name: str) -> Callable[..., Any]:
    """A function that, when called, imports the function ``module:name`` and calls it."""
    return lambda *arguments: load(name)(*arguments)
