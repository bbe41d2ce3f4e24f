"""For tables that name what is imported only when it is used."""

from __future__ import annotations

import importlib
from typing import Any, Callable


def load(name: str) -> Any:
    """What is called ``module:name``."""
    module, _, name_in_module = name.partition(":")
    return getattr(importlib.import_module(module), name_in_module)


def deferred(name: str) -> Callable[..., Any]:
    """A function that imports and calls the one called ``module:name``."""
    return lambda *arguments: load(name)(*arguments)
