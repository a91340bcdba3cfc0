"""Names of exception classes: foreign classes are recognized by name, so that no library has to be imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

_LIBRARY_OF_MODULE: dict[str, str] = {
    "_csv": "csv",
    "_duckdb": "duckdb",
    "_internal": "deltalake",
    "_lzma": "lzma",
    "_pickle": "pickle",
    "_queue": "queue",
    "_struct": "struct",
    "cimpl": "confluent_kafka",
}
"""Extension modules whose classes users import from a module of another name."""


def _type_names(cls: type) -> tuple[str, ...]:
    """Return `library.Class` for the class and its ancestors, nearest first; a builtin is its bare name.

    The library is the first part of the module: `httpx._exceptions.ReadTimeout` is `httpx.ReadTimeout`.
    """
    return tuple(_name(ancestor) for ancestor in cls.__mro__)


def _libraries(cls: type) -> frozenset[str]:
    """Return the libraries that the class and its ancestors come from; builtins come from none."""
    return frozenset(name.partition(".")[0] for name in type_names(cls) if "." in name)


def _name(cls: type) -> str:
    # The __module__ of a class may be any object.
    module = str(cls.__module__).partition(".")[0]
    if module == "builtins":
        return cls.__qualname__
    return f"{_LIBRARY_OF_MODULE.get(module, module)}.{cls.__qualname__}"


# A program raises few classes; the bound is for a program that creates classes without end.
type_names: Callable[[type], tuple[str, ...]] = lru_cache(maxsize=2_000)(_type_names)
libraries: Callable[[type], frozenset[str]] = lru_cache(maxsize=2_000)(_libraries)
