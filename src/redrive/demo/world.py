"""The directory of the demo and the services around its programs: a partner, a vendor and a bank, on a bad day."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from redrive._internal.files import make_directory, open_new
from redrive.errors import RedriveError
from redrive.testing import Answer, FaultyServer, Request

ROWS = 180_000
"""Deliveries in the vendor's file; three in a hundred have "N/A" for their fee."""
DAY = "2026-11-15"
MERCHANTS = 24
MALFORMED = "M-17"
"""The merchant whose account is invalid."""

_CITIES = ("Pune", "Delhi", "Chennai", "Jaipur")
_PER_PAGE = 50
_QUOTA = {"error": {"code": 403, "errors": [{"reason": "quotaExceeded"}]}}


class Partner:
    """Two accounts, tokens that expire, and faults at chosen pages."""

    def __init__(self, server: FaultyServer) -> None:
        self._faults: dict[int, Answer | str] = {
            **{page: Answer(503) for page in (57, 83, 119, 146, 171, 204, 229, 266, 301, 338, 352, 377)},
            **{page: Answer(json={"deliveries": ["half a page"]}, reset="mid-body") for page in (97, 188, 315)},
            **{page: Answer(429, retry_after=1) for page in (133, 290)},
            158: "the token expires",
            215: Answer(hang=True),
            250: "the account is exhausted",
        }
        self._with_a_comma = frozenset({31, 72, 140, 199, 244, 308, 391})  # pages with a weight that is not a number
        self._tokens = 0
        self._expired: set[str] = set()
        self._exhausted: set[str] = set()
        server.on("/token", self._log_in, method="POST")
        server.on("/deliveries/*", self._page)

    def _log_in(self, request: Request) -> Answer:
        self._tokens += 1
        return Answer(json={"token": f"{request.json()['account']}-token-{self._tokens:04}"})

    def _page(self, request: Request) -> Answer:
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        account = token.partition("-")[0]
        page = int(request.path.rpartition("/")[2])
        fault = None if token in self._expired or account in self._exhausted else self._faults.pop(page, None)
        if fault == "the token expires":
            self._expired.add(token)
        elif fault == "the account is exhausted":
            self._exhausted.add(account)
        if account in self._exhausted:
            return Answer(403, json=_QUOTA)
        if token in self._expired:
            return Answer(401)
        return fault if isinstance(fault, Answer) else Answer(json={"deliveries": self._items(page)}, delay=0.01)

    def _items(self, page: int) -> list[dict[str, str]]:
        numbers = range((page - 1) * _PER_PAGE, page * _PER_PAGE)
        items = [{"delivery_id": f"P-{n:06}", "city": _CITIES[n % 4], "weight_kg": f"{n % 90}.5"} for n in numbers]
        if page in self._with_a_comma:
            items[page % _PER_PAGE]["weight_kg"] = f"{page % 90},5"
        return items


class Bank:
    """Pays each key once. It is busy at first for three merchants, and never answers one whose payment it made."""

    def __init__(self, server: FaultyServer) -> None:
        self.asked = 0
        self.paid: dict[str, int] = {}
        """Cents, by the key of the payment."""
        self._faults = {"M-03": Answer(503), "M-08": Answer(503), "M-21": Answer(503), "M-12": Answer(hang=True)}
        server.on("/payments", self._pay, method="POST")

    def _pay(self, request: Request) -> Answer:
        self.asked += 1
        payment: dict[str, Any] = request.json()
        fault = self._faults.pop(payment["merchant"], None)
        if fault is None or fault.hang:  # where it hangs, it has paid without an answer
            self.paid[request.headers["Idempotency-Key"]] = payment["cents"]
        return fault or Answer(json={"cents": payment["cents"]}, delay=0.1)


def write_vendor_file(path: Path, rows: int) -> None:
    """Write the vendor's weekly file, the same for the same number of rows."""
    random_source = random.Random(2026)
    unpriced = set(random_source.sample(range(rows), rows * 3 // 100))
    with path.open("w") as file:
        file.write("delivery_id,city,delivered_at,fee\n")
        for number in range(rows):
            fee = "N/A" if number in unpriced else f"{number * 37 % 90_000 / 100:.2f}"
            moment = f"2026-11-{number % 14 + 1:02}T{number % 24:02}:00:00Z"
            file.write(f"D-{number:06},{_CITIES[number % 4]},{moment},{fee}\n")


def write_payouts(path: Path) -> None:
    """Write the payouts of the day: merchant and amount."""
    lines = "".join(f"M-{n:02},{1_000 + 137 * n}\n" for n in range(1, MERCHANTS + 1))
    path.write_text(f"merchant,cents\n{lines}")


def write_accounts(path: Path, **corrected: str) -> None:
    """Write the merchants' accounts, one of them malformed unless it is corrected."""
    accounts = {f"M-{n:02}": f"DE{8_800 + n}" for n in range(1, MERCHANTS + 1)}
    path.write_text(json.dumps(accounts | {MALFORMED: "DE88-unknown"} | corrected, indent=1) + "\n")


NAME = "redrive-demo"
MARKER = ".redrive-demo"
PROGRAMS = ("partner.py", "vendor.py", "settlement.py", "redrive.toml")
DELIVERIES, ACCOUNTS, LOG = "deliveries.csv", "accounts.json", "redrive.log"
_MADE = (
    *PROGRAMS,
    *(DELIVERIES, ACCOUNTS, LOG, f"payouts-{DAY}.csv"),
    *("warehouse.duckdb", "warehouse.duckdb.wal", "pager.txt", "team.txt", ".redrive", "__pycache__"),
)


class DemoDirectoryError(RedriveError):
    """The demo cannot run in the directory."""


@contextmanager
def set_up(directory: Path, *, rows: int) -> Iterator[None]:
    """Create the directory, with its programs and their files, and lock it against other demos."""
    with ExitStack() as stack:
        try:
            _claim(directory)
            stack.enter_context(_lock(directory))
            _clear(directory)
            _write_files(directory, rows)
        except OSError as error:
            where, why = error.filename or directory, error.strerror
            raise DemoDirectoryError(
                f"{where} cannot be written: {why}; name another place with --directory"
            ) from error
        yield


def _claim(directory: Path) -> None:
    if not _is_free(directory):
        raise DemoDirectoryError(
            f"{directory} was not made by a demo, and is left alone; name another place with --directory"
        )
    make_directory(directory)
    (directory / MARKER).touch()


def _is_free(directory: Path) -> bool:
    if not directory.is_dir():
        return not os.path.lexists(directory)
    return (directory / MARKER).is_file() or not any(directory.iterdir())


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    with (directory / MARKER).open("r+") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoDirectoryError(
                f"a demo is under way in {directory}; name another place with --directory"
            ) from None
        yield


def _clear(directory: Path) -> None:
    """Remove what an earlier demo has created, and no other file."""
    for name in _MADE:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _write_files(directory: Path, rows: int) -> None:
    programs = files("redrive.demo") / "programs"
    for name in PROGRAMS:
        # Settings that other users can write to would be rejected, whatever the umask.
        with open(open_new(directory / name), "w", encoding="utf-8") as file:
            file.write((programs / name).read_text(encoding="utf-8"))
    write_vendor_file(directory / DELIVERIES, rows)
    write_payouts(directory / f"payouts-{DAY}.csv")
    write_accounts(directory / ACCOUNTS)
