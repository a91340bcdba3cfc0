"""Exception classes by the names that users and tracebacks give them.

Only the standard library and the libraries that the table of verdicts knows are imported for it: a name in a traceback
must not execute a module of the user.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from types import ModuleType

from redrive.classify.tables.types import TYPES
from redrive.classify.type_names import type_names

# Where libraries keep their exceptions, if not at the top.
_PLACES = (
    *("", "exceptions", "errors", "error", "exc", "err", "client", "futures", "decoder"),
    *("etree.ElementTree", "connector.errors"),
)


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a class: `httpx.ReadTimeout`, `jobs.make.<locals>.Broken`."""
    parts = text.replace(".<locals>.", ".").split(".")
    return all(part.isidentifier() for part in parts)


def builtin(name: str) -> type[BaseException] | None:
    """Return the built-in exception of that name."""
    return _as_exception(getattr(builtins, name, None))


def known_as(name: str) -> list[str]:
    """Return the names of the table, `library.Class`, that a name can mean."""
    library, _, rest = name.partition(".")
    bare = rest.rpartition(".")[2] or library
    if rest and name in TYPES:  # also a class inside a class: imaplib.IMAP4.abort
        return [name]
    if rest:
        return [one] if (one := f"{library}.{bare}") in TYPES else []
    return sorted(one for one in TYPES if one.rpartition(".")[2] == bare)


def find_class(name: str) -> type[BaseException] | None:
    """Return the class with a dotted name, such as `json.decoder.JSONDecodeError`; None where it is not installed."""
    if found := builtin(name.removeprefix("builtins.")):
        return found
    module, _, bare = name.rpartition(".")
    if found := _as_exception(getattr(sys.modules.get(module), bare, None)):
        return found
    library = type_names(type(bare, (), {"__module__": module}))[0].partition(".")[0]
    if library not in _libraries() and library not in sys.stdlib_module_names:
        return None
    for place in (module, *_places_of(library)):
        if found := _as_exception(getattr(_imported(place), bare, None)):
            return found
    owner: object = _imported(library)
    for part in name.split(".")[1:]:
        owner = getattr(owner, part, None)
    return _as_exception(owner)


def path_of(cls: type[BaseException]) -> str:
    """Return the shortest dotted name by which a program can import the class."""
    home = cls.__module__.removeprefix("redrive_target_")  # how the command line loads a file
    if home in ("builtins", "__main__"):
        return cls.__qualname__
    for module in (type_names(cls)[0].rpartition(".")[0], home):
        if module and getattr(sys.modules.get(module), cls.__qualname__, None) is cls:
            return f"{module}.{cls.__qualname__}"
    return f"{home}.{cls.__qualname__}"


def is_installed(name: str) -> bool:
    """Return whether the library of a dotted name can be imported."""
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def find_everywhere(bare: str) -> list[str]:
    """Return the full names of a class that the table lacks, in its libraries: `psycopg.errors.UniqueViolation`."""
    found: dict[type, str] = {}
    for library in sorted(_libraries()):
        for place in _places_of(library) if is_installed(library) else ():
            cls = _as_exception(getattr(_imported(place), bare, None))
            if cls is not None and type_names(cls)[0].partition(".")[0] == library:
                found.setdefault(cls, f"{place}.{bare}")
    return list(found.values())


def near(text: str) -> list[str]:
    """Return names with a similar spelling."""
    names = {*TYPES, *_builtins()}
    bare = {name.rpartition(".")[2]: name for name in sorted(names, reverse=True)}
    library = text.partition(".")[0] if "." in text else None
    if library is not None and not any(name.startswith(f"{library}.") for name in names):
        return []  # a class of the same name in another library is classified differently
    close = get_close_matches(text, names, n=3, cutoff=0.75) or get_close_matches(text, bare, n=3, cutoff=0.75)
    return [bare.get(one, one) for one in close]


def _builtins() -> Iterator[str]:
    return (name for name, value in vars(builtins).items() if _as_exception(value))


@cache
def _libraries() -> frozenset[str]:
    return frozenset({*(name.partition(".")[0] for name in TYPES if "." in name), "redrive"})


def _places_of(library: str) -> list[str]:
    return [f"{library}.{place}".rstrip(".") for place in _PLACES]


@cache
def _imported(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(module)
    except Exception:  # not installed, or broken: then its classes are known by their names
        return None


def _as_exception(value: object) -> type[BaseException] | None:
    return value if isinstance(value, type) and issubclass(value, BaseException) else None
