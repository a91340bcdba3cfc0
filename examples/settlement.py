"""Sixty merchants are paid by a bank that has a bad day, in a flow that nobody needs to sit beside.

What heals is repeated, what hangs is killed, a bank that is down is waited for. One merchant's account is malformed:
that payout becomes a dead letter, the report is held, and when the account is mended, the run goes on from there.

Run it: python examples/settlement.py

The bank is played by the server that redrive ships for tests. Everything else is in a temporary directory.
"""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

import redrive
from redrive.model.tasks import GroupHeld, TasksDead
from redrive.testing import Answer, FaultyServer, Request

DAY, MERCHANTS, MALFORMED = "2025-03-01", 60, "M-042"


def tell(event: object) -> None:
    """What a person would be told while it runs."""
    match event:
        case GroupHeld(service=service, held=held):
            print(f"  the {service} is {'down: payouts wait' if held else 'back: payouts go on'}")
        case TasksDead(task=task, reason=reason, cause=cause):
            print(f"  {task} needs a person: {reason}\n    cause {cause}")


# ── the flow: at the top of the module, where its workers find it ─────────────────────────────────────────────────────

flow = redrive.Flow("settlement", params={"day": DAY, "bank": ""}, workers=4, on_event=tell)
payments = redrive.Service("bank", breaker=redrive.Breaker(failures=5, window=10.0, cooldown=0.5))
flow.group(payments, concurrency=4)


@flow.sensor(every=0.2, timeout=3_600)
def ledger(day: str) -> str | None:
    """The day's ledger, once it is there. Nobody waits for it in a worker."""
    path = Path(f"{day}.csv")
    return str(path) if path.exists() else None


@flow.task(after=ledger)
def payouts(ledger: str) -> list[dict[str, str]]:
    """What is to be paid to whom."""
    with open(ledger, newline="") as file:
        return list(csv.DictReader(file))


@flow.task(each=payouts, service=payments, timeout=2.0, retry=redrive.Retry(attempts=8, base=0.1, cap=1.0))
def settle(payout: dict[str, str], bank: str, idempotency_key: str) -> int:
    """Pay one merchant. The bank knows a repeat by its key, so it may be tried again whatever happened."""
    account = checked(json.loads(Path("accounts.json").read_text())[payout["merchant"]])
    payment = {"account": account, "cents": int(payout["cents"])}
    answer = httpx.post(f"{bank}/payments", json=payment, headers={"Idempotency-Key": idempotency_key}, timeout=30.0)
    cents: int = answer.raise_for_status().json()["cents"]
    return cents


@flow.task(after=settle)
def report(settle: list[int], day: str) -> str:
    """All of them together."""
    return f"{day}: {len(settle)} merchants, {sum(settle) / 100:,.2f} EUR"


@flow.task(after=report)
def notify(report: str) -> None:
    """A task of its own: were it a part of the report, a repeat of the report would send it twice."""
    with open("sent.txt", "a") as outbox:
        print(report, file=outbox)


def checked(account: str) -> str:
    country, number = account[:2], account[2:]
    if not (country.isalpha() and number.isdigit()):
        raise ValueError(f"{account!r} is no account")
    return account


# ── the world around it ───────────────────────────────────────────────────────────────────────────────────────────────


class Bank:
    """Pays each key once. Some answers are lost, one never comes, and for a while it is down."""

    def __init__(self, server: FaultyServer) -> None:
        self.paid: dict[str, int] = {}
        self.asked = 0
        self.down_until = 0.0
        server.on("/payments", self.answer, method="POST")

    def answer(self, request: Request) -> Answer:
        self.asked += 1
        if self.asked == 20:
            self.down_until = time.monotonic() + 1.5
        if time.monotonic() < self.down_until:
            return Answer(503)
        cents = request.json()["cents"]
        self.paid[request.headers["Idempotency-Key"]] = cents
        if self.asked == 7:
            return Answer(json={"cents": cents}, reset="before")  # paid, and nobody has heard of it
        return Answer(hang=True) if self.asked == 13 else Answer(json={"cents": cents})


def deliver(day: str) -> None:
    """The ledger comes late."""
    time.sleep(1)
    lines = "".join(f"M-{n:03},{1_000 + n}\n" for n in range(MERCHANTS))
    Path("incoming").write_text(f"merchant,cents\n{lines}")
    Path("incoming").rename(f"{day}.csv")


def write_accounts(**known: str) -> None:
    accounts = {f"M-{n:03}": f"DE{n:04}" for n in range(MERCHANTS)}
    Path("accounts.json").write_text(json.dumps(accounts | known))


def main() -> int:
    logging.getLogger("redrive").setLevel(logging.CRITICAL)  # tell() says it all
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.chdir(directory),
        FaultyServer() as server,
    ):
        bank = Bank(server)
        write_accounts(**{MALFORMED: "DE12-unknown"})
        threading.Thread(target=deliver, args=(DAY,)).start()
        print(f"paying {MERCHANTS} merchants, as soon as the ledger of {DAY} is there")
        params = {"day": DAY, "bank": server.url}
        try:
            flow.run(params=params)
        except redrive.FlowStopped as stopped:
            print(stopped.report)
            return mend_and_go_on(params, bank)
    return 1


def mend_and_go_on(params: dict[str, Any], bank: Bank) -> int:
    for letter in flow.store.dlq.each(pipeline=flow.name):
        print(f"  letter {letter.id}: {letter.key} {letter.record['input']}: {letter.error_message}")
    print("the account is mended, and the payout is sent back")
    write_accounts(**{MALFORMED: "DE0042"})
    flow.retry("settle", note="account mended")
    done = flow.run(params=params)
    print(done)
    print(f"  {flow.result('report')}; the bank was asked {bank.asked} times and paid {len(bank.paid)}")
    flow.store.close()
    right = sum(bank.paid.values()) == sum(1_000 + n for n in range(MERCHANTS)) and len(bank.paid) == MERCHANTS
    return 0 if right and done.status == "complete" else 1


if __name__ == "__main__":
    sys.exit(main())
