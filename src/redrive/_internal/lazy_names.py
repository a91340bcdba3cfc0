"""Names of a module that are imported from other modules when they are first used."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def exported(module: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `module`: each name comes from the module that lists it."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return get


def renamed(module: str, home: str, instead: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module whose names have moved to `home`; each use is a deprecation warning."""

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(home), name)
        except AttributeError:
            raise AttributeError(f"module {module!r} has no attribute {name!r}") from None
        warnings.warn(f"{module}.{name} has moved: import it from {instead}", DeprecationWarning, stacklevel=2)
        return value

    return get
