"""A scheduler starts a flow that pays merchants, and the flow is killed: each merchant is paid once, by one key.

The commands and exit codes are those of docs/operations.md. The short form runs with the tests; `make chaos` runs the
full count.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.oracles.effects import EffectLedger

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
(COMMAND,) = re.findall(r"^redrive (run --quiet settlement\.py:flow --param day=\S+)", PAGE, re.MULTILINE)
FINAL = {int(code) for code in re.findall(r"RestartPreventExitStatus=([\d ]+)`", PAGE)[-1].split()}
MERCHANTS = 12

FLOW = f"""
import os, time
from pathlib import Path

import redrive
from tests.oracles.effects import EffectLedger

flow = redrive.Flow("settlement", params=["day"], workers=2)


@flow.task
def merchants(day):
    return [f"M-{{n}}" for n in range({MERCHANTS})]


@flow.task(each=merchants, retry=redrive.Retry(attempts=3, base=0.01))
def pay(merchant, idempotency_key):
    time.sleep(0.02)
    EffectLedger("calls").record(f"{{merchant}}={{idempotency_key.replace(' ', '_')}}")
    try:  # the bank: it knows what it has paid by the key
        os.close(os.open("bank-" + idempotency_key.replace("/", "_"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    EffectLedger("paid").record(merchant)
    if Path("outage").exists():
        raise ConnectionResetError("the answer is lost")


@flow.task(after=pay, retry=None)
def post():
    if Path("outage").exists():
        raise ConnectionRefusedError("the ledger is down")
    if Path("bug").exists():
        raise ValueError("unknown currency")
"""


class Scheduler:
    """Start the command of the page repeatedly, and kill some of the starts."""

    def __init__(self, directory, store, seed):
        self.directory, self.chance = directory, random.Random(seed)
        (directory / "settlement.py").write_text(FLOW)
        path = os.pathsep.join((str(ROOT), *filter(None, sys.path)))
        self.environ = {**os.environ, "REDRIVE_STORE": store, "PYTHONPATH": path}
        self.starts = 0
        self.took = 3.0  # seconds of a start, as far as is known
        self.codes = []

    def redrive(self, *words):
        command = [sys.executable, "-m", "redrive.cli", *words]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.directory, env=self.environ, stdout=quiet, stderr=quiet)

    def start(self, *, killed=False):
        """Run the command once and return its exit code."""
        self.starts += 1
        began = time.monotonic()
        process = self.redrive(*COMMAND.split())
        if killed:
            try:
                process.wait(self.chance.uniform(0.2, 1.1) * self.took)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        code = process.wait()
        if code >= 0:
            self.took = time.monotonic() - began
        self.codes.append(code)
        return code

    def loop(self, *, kills):
        """Rerun as systemd, Kubernetes and Airflow do, until it succeeds or the code is final."""
        for left in range(kills, -1, -1):
            code = self.start(killed=left > 0)
            if code == 0 or code in FINAL:
                return code
        while (code := self.start()) != 0 and code not in FINAL:
            pass
        return code

    def check(self):
        """Check that each merchant was paid once, and requested by one key."""
        merchants = [f"M-{n}" for n in range(MERCHANTS)]
        EffectLedger(self.directory / "paid").check_once(merchants)
        keys = {}
        for call in EffectLedger(self.directory / "calls").ids():
            merchant, _, key = call.partition("=")
            keys.setdefault(merchant, set()).add(key)
        assert {merchant: len(found) for merchant, found in keys.items()} == dict.fromkeys(merchants, 1)


def pay_one_day(directory, store, seed, kills):
    """An outage, a bug and kills, and the loop of a scheduler over all of it; how often it was started."""
    directory.mkdir()
    scheduler = Scheduler(directory, store, seed)
    (directory / "outage").touch()
    assert scheduler.start() == 75
    (directory / "outage").unlink()
    (directory / "bug").touch()
    assert scheduler.loop(kills=kills // 2) == 70
    assert scheduler.start() == 70  # a scheduler that does not look at the code
    (directory / "bug").unlink()
    retry = scheduler.redrive("tasks", "retry", "post", "--run", "settlement")
    assert retry.wait() == 0
    assert scheduler.loop(kills=kills - kills // 2) == 0
    scheduler.check()
    return scheduler


def test_final_codes_are_the_same_in_all_recipes():
    (kubernetes,) = re.findall(r"onExitCodes: \{ operator: In, values: \[([\d, ]+)\]", PAGE)
    (table,) = re.findall(r"^\| ([\d, ]+) \|.*\| not start it again", PAGE, re.MULTILINE)
    assert {int(code) for code in kubernetes.split(",")} == {int(code) for code in table.split(",")} == FINAL


def test_scheduler_loop_pays_every_merchant_once(new_store, tmp_path):
    with new_store("sqlite") as store:
        pay_one_day(tmp_path / "day", store, seed=1, kills=1)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_hundred_kills_pay_every_merchant_once(new_store, tmp_path, kind):
    starts = killed = 0
    while starts < 100:
        with new_store(kind) as store:
            scheduler = pay_one_day(tmp_path / f"day-{starts}", store, seed=starts, kills=10)
        starts += scheduler.starts
        killed += scheduler.codes.count(-signal.SIGKILL)
    sys.stdout.write(f"\n{kind}: {starts} starts, {killed} of them killed\n")
    assert killed
