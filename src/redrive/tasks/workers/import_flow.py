"""How a worker comes by a flow: where it lives, how that is imported there, and why it could not be.

A flow of a module is imported under the module's name; one of the program itself, which `python jobs.py` calls
`__main__`, under the name `__mp_main__`, as multiprocessing has it: what is under `if __name__ == "__main__":` is not
run again.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any

import redrive
from redrive._internal.masking import mask
from redrive.classify.detail import message
from redrive.errors import FlowError
from redrive.tasks.flow import Flow, defined

_MAIN = ("__main__", "__mp_main__")
_role: str | None = None  # what this process is for: "import", "task", or the user's own business

_GUARD = "put that under `if __name__ == '__main__':`"


def becomes(role: str) -> None:
    """Set what this process is for."""
    global _role  # noqa: PLW0603 - it is the process that is meant, not an object in it
    _role = role


def refuse_within_import() -> None:
    """See that a flow is not run by the import of its own module, nor by a task."""
    if _role == "import":
        raise FlowError(f"it runs a flow when it is imported; {_GUARD}")
    if _role == "task":
        raise FlowError("a task cannot run a flow: make what is to be run tasks of its own flow")


@dataclass(frozen=True, slots=True)
class FlowLocation:
    """Where a flow lives."""

    flow: str
    line: int
    """Where it is made, in its file."""
    module: str
    """Its name, `__main__` for the program itself."""
    file: str | None
    package: str | None = None
    """For `python -m jobs.settle`, the name behind the -m."""

    @classmethod
    def of(cls, flow: Flow) -> FlowLocation:
        """Return the target of this flow; raise a FlowError if no other process can import it."""
        file = None if flow.file is None else os.path.abspath(flow.file)
        if flow.module not in _MAIN:
            return cls(flow.name, flow.line, flow.module, file)
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name != "__main__" and _same(getattr(main, "__file__", None), file):
            return cls(flow.name, flow.line, "__main__", file, spec.name)
        if file is None or not os.path.exists(file):
            raise FlowError(
                f"flow {flow.name!r} is made in a program without a file (a notebook, python -c, standard input), and "
                "its workers have nothing to import: write it into a module, or use in_thread=True"
            )
        return cls(flow.name, flow.line, "__main__", file)

    @classmethod
    def of_program(cls) -> FlowLocation | None:
        """Return where the program itself lives; None where it has no file (a notebook, python -c)."""
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if file is None or not os.path.exists(file):
            return None
        package = spec.name if spec is not None and spec.name != "__main__" else None
        return cls("", 0, "__main__", os.path.abspath(file), package)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return os.path.basename(self.file) if self.file else self.module

    def visit(self) -> Flow | None:
        """Import the module, and find the flow in it; FlowError where that breaks, None where the flow is not there."""
        try:
            self.load()
        except BaseException as error:
            raise FlowError(why_not(self.shown, error, by=" by workers")) from error
        return defined.get((self.flow, self.line))

    def load(self) -> None:
        """Import the module."""
        if self.module in _MAIN:
            self._import_main()
            return
        if self.file is None or _same(_origin(self.module), self.file):
            importlib.import_module(self.module)
            return
        # Its name leads elsewhere or nowhere, as that of a json.py that was loaded by its path.
        spec = importlib.util.spec_from_file_location(self.module, self.file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.file} is no Python file", name=self.module)
        parent = self.module.rpartition(".")[0]
        if parent and _origin(parent) is not None:
            importlib.import_module(parent)
        _execute(spec, self.module)

    def _import_main(self) -> None:
        spec = importlib.util.find_spec(self.package) if self.package else None
        if spec is None:
            assert self.file is not None
            spec = importlib.util.spec_from_file_location(
                "__mp_main__", self.file, loader=SourceFileLoader("__mp_main__", self.file)
            )
        assert spec is not None
        sys.modules["__main__"] = _execute(spec, "__mp_main__")


def _execute(spec: ModuleSpec, name: str) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    module.__name__ = name
    sys.modules[name] = module
    if name in _MAIN:
        sys.modules["__main__"] = module
    assert spec.loader is not None
    code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]  # all that can be run from files have it
    exec(code, module.__dict__)
    return module


def _origin(module: str) -> str | None:
    """The file that importing this name would run."""
    known = sys.modules.get(module)
    if known is not None:
        return getattr(known, "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            return None
        raise
    return None if spec is None else spec.origin


def _same(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return False
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.abspath(one) == os.path.abspath(other)


def why_not(where: str, error: BaseException, *, by: str = "") -> str:
    """Return why an import failed: the exception, and the innermost line of the user's code."""
    what = f"{where} cannot be imported{by}"
    if isinstance(error, FlowError) and by:
        return mask(f"{what}: {error}")
    lines = mask(message(error)).strip().splitlines()
    if isinstance(error, SyntaxError):
        place = f"{os.path.basename(error.filename or where)}, line {error.lineno}"
        return f"{what}: {type(error).__name__}: {error.msg} ({place})"
    if isinstance(error, SystemExit):
        lines = [f"it ends the program when it is imported; {_GUARD}"]
    frames = [one for one in traceback.extract_tb(error.__traceback__) if os.path.isfile(one.filename)]
    frames = [frame for frame in frames if _of_the_user(frame.filename)] or frames
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    words = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{what}: {words}{place}"


def _of_the_user(filename: str) -> bool:
    own = (f"{os.sep}site-packages{os.sep}", os.path.dirname(os.__file__), os.path.dirname(redrive.__file__))
    return not any(part in filename for part in own)
