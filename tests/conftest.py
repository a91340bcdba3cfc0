"""Services the tests share: the real thing, started from a wheel, gone at the end."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# pytest explains a failed assert of a test file only. These packages assert, too, and must be registered before the
# first import of any of their modules.
pytest.register_assert_rewrite("tests.oracles", "tests.support")

from redrive._internal.masking import known_values  # noqa: E402
from tests.support.postgres import QUICK, Postgres, running_postgres  # noqa: E402 - after the registration
from tests.support.stores import NewStore, StoreSlots  # noqa: E402

# No example has a deadline: that would be a timing assert on an unknown machine. `make unit` and `make test` draw the
# same examples every time, `make unit` fewer of them; `make chaos` draws new ones, and more. No failure is explained:
# for that Hypothesis traces every example, and a traced function of CPython 3.11 may loop for ever at its first line
# when another thread asks for the interpreter at that moment.
loop = os.environ.get("REDRIVE_TEST_LOOP", "test")
settings.register_profile(
    "redrive",
    deadline=None,
    derandomize=loop != "chaos",
    max_examples={"unit": 8, "test": 30, "chaos": 2_000}[loop],
    phases=[phase for phase in Phase if phase is not Phase.explain],
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


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

LONG = (
    "integration/test_demo.py",
    "integration/test_docs.py",
    "integration/test_no_secrets.py",
    "integration/test_rows_faults.py",
    "integration/test_week_messages.py",
    "chaos/test_pipeline_kills.py",
    "contract/test_pipeline.py",
    "contract/test_replay_outcomes.py",
    "contract/test_sinks.py",
    "unit/tasks/test_model.py",
)
"""Files that take half a minute or nearly so: a process that got one of them last would end long after the others."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        return LONG.index(path) if path in LONG else len(LONG)

    items.sort(key=turn)


# ── threads ───────────────────────────────────────────────────────────────────────────────────────────────────────────

OF_SERVICES = ("redrive-rollups", "redrive-sharing")
_first_seen: dict[threading.Thread, str] = {}
_reported: set[threading.Thread] = set()


def _note_threads(after: str) -> None:
    for thread in threading.enumerate():
        if thread.name in OF_SERVICES and thread not in _reported:
            _first_seen.setdefault(thread, after)


def pytest_collection_finish() -> None:
    _note_threads("the import of a test module")
    gc.collect()
    gc.freeze()  # sixteen thousand items, and all that was imported: a full collection need not look at them each time


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def _garbage_of_a_module() -> list[str]:
    """Collect what a module left, and return what could not be collected in silence: files and sockets never closed."""
    errors: list[str] = []

    def note(unraisable: sys.UnraisableHookArgs) -> None:
        errors.append(f"{unraisable.exc_value}")

    hook, sys.unraisablehook = sys.unraisablehook, note
    try:
        gc.collect()  # a service that nothing refers to any more ends its threads, too
    finally:
        sys.unraisablehook = hook
    return errors


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """A module that leaves open sockets or threads of a service fails: a test of another module would be blamed."""
    result = yield
    _note_threads(item.nodeid)
    if nextitem is None or nextitem.path != item.path:
        if errors := _garbage_of_a_module():
            pytest.fail(f"{item.path.name} leaves what it did not close: {'; '.join(errors)}", pytrace=False)
        for values in (known_values._keys, known_values._learned, known_values._registered):
            values.clear()  # secrets of one module: another may use a part of one, and each is looked for in every text
        for thread in _first_seen:
            thread.join(5)
        left = {thread: after for thread, after in _first_seen.items() if thread.is_alive()}
        _first_seen.clear()
        _reported.update(left)
        if left:
            found = "; ".join(f"{thread.name}, first seen after {after}" for thread, after in left.items())
            pytest.fail(f"threads of services are left: {found}", pytrace=False)
    return result


# ── servers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that tests copy."""
    import redrive

    path = tmp_path_factory.mktemp("store") / "empty.db"
    with redrive.connect(path):
        pass
    return path


@pytest.fixture(scope="session")
def store_slots(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSlots]:
    """The databases that the tests of this process take in turn."""
    slots = StoreSlots(tmp_path_factory.mktemp("stores"), lambda: request.getfixturevalue("postgres_url"))
    yield slots
    slots.close()


@pytest.fixture
def new_store(store_slots: StoreSlots) -> NewStore:
    """Lend empty stores, as many as a test needs: `with new_store("sqlite") as url`."""
    return store_slots.lend


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, new_store: NewStore) -> Iterator[str]:
    """The URL of an empty store, on each database."""
    with new_store(request.param) as url:
        yield url
