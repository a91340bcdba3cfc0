"""A fork server that has imported redrive, so that a test can start a program without paying for its imports.

Importing the command line and its libraries takes half a second to a second; a fork takes milliseconds. Each pytest
worker keeps one server (`warm_python.py`), and `warm_client.py` is the command that stands in for `python`.

    python warm_server.py SOCKET    serve on this Unix socket until standard input is closed

A request is JSON with the caller's open files attached. The program runs in a forked process and ends like any program:
exit code, uncaught exception, signal; threads are joined and `atexit` functions run. Only the interpreter's own
teardown is left out, which takes longer than most programs. The caller receives the exit status and may forward
signals; when the caller disappears, the program is killed.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import types
import warnings

LIBRARIES = (
    *("asyncio", "concurrent.futures.thread", "http.client", "logging.handlers", "multiprocessing.pool", "sqlite3"),
    *("alembic.command", "alembic.runtime.migration", "httpx", "orjson", "psycopg", "pydantic", "typer.testing"),
    *("rich.live", "rich.progress", "rich.table", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite"),
    *("dataframely", "duckdb", "polars", "pyarrow.parquet"),
)
SIDE_EFFECTS = (
    "redrive.__main__",
    "redrive.cli.__main__",
    "redrive.demo.programs",
    "redrive.store.migrations",
    "redrive.tasks.workers.fork_server",
)
"""Modules that act when they are imported."""
FIRST_FREE_FILE = 200
"""Attached files are moved above this number first, so that none overwrites another."""


def preload() -> None:
    """Import the libraries and every module of redrive that has no side effect."""
    for name in LIBRARIES:
        importlib.import_module(name)
    import redrive

    for module in pkgutil.walk_packages(redrive.__path__, "redrive."):
        if not module.name.startswith(SIDE_EFFECTS):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


class Server:
    """Forks a process per request and reports its exit status."""

    def __init__(self, path: str) -> None:
        self._callers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._wakeup, wakeup_writer = os.pipe()
        os.set_blocking(wakeup_writer, False)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._own_files = (self._wakeup, wakeup_writer)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._reap)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._shut_down)

    def serve(self) -> dict | None:
        """Fork until standard input is closed. Return None then, and the request in each forked process."""
        while True:
            for key, _ in self._selector.select():
                if (request := key.data()) is not None:
                    return request or None

    def _shut_down(self) -> dict:
        for pid in self._callers:
            _send_signal(pid, signal.SIGKILL)
        return {}

    def _accept(self) -> dict | None:
        caller, _ = self._listener.accept()
        try:
            size, files, _, _ = socket.recv_fds(caller, 8, 64)
            text = b""
            while len(text) < int(size):
                text += caller.recv(int(size) - len(text))
        except (OSError, ValueError):  # the caller was killed before its request was complete
            caller.close()
            return None
        with warnings.catch_warnings():
            # Imported libraries may own idle threads, about which Python 3.12 warns.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            caller.close()
            self._release()
            return {**json.loads(text), "files": files}
        for file in files:
            os.close(file)
        self._callers[pid] = caller
        self._selector.register(caller, selectors.EVENT_READ, lambda: self._hear(pid))
        return None

    def _release(self) -> None:
        """Close in a forked process what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._listener.close()
        for caller in self._callers.values():
            caller.close()
        for file in self._own_files:
            os.close(file)

    def _reap(self) -> None:
        os.read(self._wakeup, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                caller = self._callers.pop(ended[0])
                with contextlib.suppress(KeyError):  # it was unregistered when the caller disappeared
                    self._selector.unregister(caller)
                with contextlib.suppress(OSError):
                    caller.sendall(b"%d" % os.waitstatus_to_exitcode(ended[1]))
                caller.close()

    def _hear(self, pid: int) -> None:
        """Forward the signals that a caller names; kill the program of a caller that disappeared."""
        try:
            numbers = self._callers[pid].recv(64).split()
        except OSError:
            numbers = []
        for number in numbers or [signal.SIGKILL]:
            _send_signal(pid, int(number))
        if not numbers:
            self._selector.unregister(self._callers[pid])


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def take_over(request: dict) -> None:
    """Adopt the caller's files, directory, environment and warning filters."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FILE) for file in request["files"]]
    for file in request["files"]:
        os.close(file)
    for file, number in zip(moved, request["numbers"], strict=True):
        os.dup2(file, number)
        os.close(file)
    encoding = request["environ"].get("PYTHONIOENCODING", "utf-8")
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _output(1, encoding, "strict", line_buffering=os.isatty(1))
    sys.stderr = sys.__stderr__ = _output(2, encoding, "backslashreplace", line_buffering=True)
    for action in request["warnings"]:
        warnings.simplefilter(action)


def _output(number: int, encoding: str, errors: str, *, line_buffering: bool) -> io.TextIOWrapper:
    raw = open(number, "wb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding=encoding, errors=errors, line_buffering=line_buffering)


def run(request: dict) -> None:
    """Run `-m MODULE`, `-c CODE` or a file the way the interpreter does."""
    kind, what = request["program"]
    search = [path for path in request["environ"].get("PYTHONPATH", "").split(os.pathsep) if path]
    first = {"-m": os.getcwd(), "-c": "", "file": os.path.dirname(os.path.abspath(what))}[kind]
    sys.path[:0] = [first, *search]
    sys.argv = [what if kind == "file" else kind, *request["arguments"]]
    program = types.ModuleType("__main__")
    vars(program)["__builtins__"] = __builtins__
    sys.modules["__main__"] = program
    if kind == "-m":
        runpy._run_module_as_main(what)  # the function behind `python -m`
    elif kind == "-c":
        exec(compile(what, "<string>", "exec"), vars(program))
    else:
        program.__file__ = what
        with open(what, "rb") as source:
            exec(compile(source.read(), what, "exec"), vars(program))


def exit_code_of(request: dict) -> int:
    """Run the program; return the code that the interpreter would exit with."""
    try:
        run(request)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> None:
    """Join the threads, run `atexit` functions, flush, and end by the code or the signal."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def main() -> None:
    """Serve requests; in a forked process, run the requested program."""
    del sys.path[0]
    preload()
    server = Server(sys.argv[1])
    print("ready", flush=True)  # noqa: T201
    if (request := server.serve()) is not None:
        take_over(request)
        end(exit_code_of(request))
    os._exit(0)


if __name__ == "__main__":
    main()
