"""Finds what `FILE_OR_MODULE:NAME` means: `vendor.py:pipeline`, `jobs.vendor:pipeline`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections import Counter
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from redrive.cli.exit_codes import BrokenModule, TargetNotFound
from redrive.cli.format import counted

_FORMS = "write FILE:NAME or MODULE:NAME, such as vendor.py:pipeline or jobs.vendor:pipeline"

# What redrive itself imports beside the standard library: a file of such a name must not take its place.
_IMPORTED = frozenset(
    {
        *("alembic", "apprise", "dataframely", "duckdb", "holidays", "httpx", "matplotlib", "numpy", "opentelemetry"),
        *("orjson", "polars", "prometheus_client", "psycopg", "pyarrow", "pydantic", "pydantic_core", "redrive"),
        *("requests", "rich", "sqlalchemy", "typer", "typing_extensions", "urllib3"),
    }
)


def load_target(wanted: str) -> Any:
    """Return the object of a target; without a name, the only pipeline or flow in it."""
    return load(wanted) if ":" in wanted else _only_one(wanted, loaded_module(wanted))


def target_of(wanted: str, found: Any) -> str:
    """Return how to find the loaded object again from any directory: a file by its whole path, and always the name.

    The path has `/./` behind the working directory: relative paths in the file are resolved from that directory.
    """
    where, _, name = wanted.rpartition(":") if ":" in wanted else (wanted, "", "")
    if not name:
        name = next(name for name, value in vars(loaded_module(where)).items() if value is found)
    if not _is_file(where):
        return f"{where}:{name}"
    here = os.path.realpath(os.getcwd())
    return f"{os.path.join(here, '.', os.path.relpath(os.path.realpath(where), here))}:{name}"


def directory_of(target: str) -> str | None:
    """Return the working directory of a stored target; None for a module."""
    directory, dot, _ = target.partition(f"{os.sep}.{os.sep}")
    return (directory or os.sep) if dot else None


def load(wanted: str) -> Any:
    """Return the object of a target. Its module is imported as `python` would from this directory."""
    where, colon, name = wanted.rpartition(":")
    if not (colon and where and all(part.isidentifier() for part in name.split("."))):
        raise TargetNotFound(f"{wanted!r} is not a target: {_FORMS}")
    found: Any = loaded_module(where)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise TargetNotFound(f"{where} has no name {part!r}{_suggestion(found, part)}") from None
    return found


def loaded_module(where: str) -> ModuleType:
    """Return the module of a file or of a module's name, imported as `python` would from this directory."""
    if not where:
        raise TargetNotFound(f"'' does not name what to load; {_FORMS}")
    if where in (os.curdir, os.pardir) or Path(where).is_dir():
        raise TargetNotFound(f"{where!r} is a directory; {_FORMS}")
    _import_from(os.getcwd())
    return _file(Path(where)) if _is_file(where) else _module(where)


def _import_from(directory: str) -> None:
    """Import from a directory first, but not modules that redrive itself imports."""
    if directory in sys.path:
        return
    library = os.path.dirname(os.__file__)
    behind = set()
    for name in _names_in(directory):
        if name in sys.stdlib_module_names:
            behind |= {library, os.path.join(library, "lib-dynload")}
        elif name in _IMPORTED:
            behind |= _homes_of(name)
    sys.path.insert(max((place for place, path in enumerate(sys.path, 1) if path in behind), default=0), directory)


def _homes_of(package: str) -> set[str]:
    """Return the directories of the path that have this package; none if it is not installed."""
    spec = PathFinder.find_spec(package, sys.path)
    if spec is None:
        return set()
    places = spec.submodule_search_locations or [spec.origin or ""]
    return {os.path.dirname(place) for place in places}


def _names_in(directory: str) -> set[str]:
    """Return the names that can be imported from this directory."""
    try:
        return {name.partition(".")[0] for name in os.listdir(directory)}
    except OSError:
        return set()


def _is_file(where: str) -> bool:
    path = Path(where)
    return path.suffix == ".py" or os.sep in where or path.is_file()


def _only_one(where: str, module: ModuleType) -> Any:
    found = {id(value): (name, value) for name, value in reversed(vars(module).items()) if can_run(value)}
    if not found:
        raise TargetNotFound(
            f"there is no pipeline or flow in {where}. Create one with redrive.Pipeline(…) or redrive.Flow(…), or name "
            f"another object: {where}:NAME"
        )
    if len(found) > 1:
        kinds = Counter("flow" if is_flow(value) else "pipeline" for _, value in reversed(found.values()))
        several = " and ".join(counted(number, kind) for kind, number in kinds.items())
        listed = ", ".join(f"{where}:{name}" for name, _ in reversed(found.values()))
        raise TargetNotFound(f"there are {several} in {where}. Name one of them: {listed}")
    ((_, only),) = found.values()
    return only


def can_run(value: Any) -> bool:
    """Return whether the object is one of redrive's with a method `run`; a module or a process may have one, too."""
    ours = any(cls.__module__.split(".")[0] == "redrive" for cls in type(value).__mro__)
    return ours and callable(getattr(value, "run", None))


def is_flow(value: Any) -> bool:
    """Return whether the object is a flow."""
    return _is_a(value, "redrive.tasks.flow", "Flow")


def is_pipeline(value: Any) -> bool:
    """Return whether the object is a pipeline."""
    return _is_a(value, "redrive.rows.pipeline", "Pipeline")


def _is_a(value: Any, module: str, name: str) -> bool:
    """Return whether it is of this class. A class that was not imported has no instances, and importing takes time."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(value, getattr(imported, name))


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetNotFound(f"there is no file {path}{_from_here(path)}")
    root, name = _place(path.resolve())
    _import_from(str(root))
    package, _, module_name = name.rpartition(".")
    own = f"{package}{'.' if package else ''}redrive_target_{module_name}"  # a user's json.py must not be everybody's
    for known in (sys.modules.get(name), sys.modules.get(own)):
        if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
            return known
    if name in sys.modules or name in sys.stdlib_module_names or name in _IMPORTED or "." in path.stem:
        name = own
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise TargetNotFound(f"{path} is not a Python file: {_FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        if package:
            importlib.import_module(package)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(str(path), error) from error
    return module


def _place(path: Path) -> tuple[Path, str]:
    """Return the directory to import from and the dotted name there, so that a file can import its siblings."""
    parts, root = [path.stem.replace(".", "_")], path.parent  # a dot would mean a package
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module itself, or something it imports?
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            beside = Path(f"{name.replace('.', os.sep)}.py")
            raise TargetNotFound(f"there is no module {name!r}{_from_here(beside)}") from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(where: str, error: BaseException) -> BrokenModule:
    from redrive.tasks.workers.import_flow import why_not

    return BrokenModule(why_not(where, error))


def _from_here(path: Path) -> str:
    """Return a hint at the intended name if a file was not found."""
    parent = path.parent
    if not parent.is_dir():
        return f": there is no directory {parent}"
    near = get_close_matches(path.name, [file.name for file in parent.glob("*.py")], n=1)
    return f"; did you mean {parent / near[0]}?" if near else f"; {_FORMS}"


def _suggestion(module: object, name: str) -> str:
    names = [name for name in vars(module) if not name.startswith("_")] if hasattr(module, "__dict__") else []
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
