"""Pays the merchants of a day, each in a task of its own, and reports when all of them are paid.

Run it: redrive run settlement.py --param day=2026-11-15

`redrive demo` runs the bank, which answers only during the demo; payouts wait until it is up.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import httpx

import redrive

BANK = os.environ.get("BANK_URL", "http://127.0.0.1:9")

flow = redrive.Flow("settlement", params=["day"], workers=4)
bank = redrive.Service("bank", breaker=redrive.Breaker(failures=10))  # while it is down, payouts wait
flow.group(bank, concurrency=4)


@flow.task
def payouts(day: str) -> list[dict[str, str]]:
    """Return the payouts of the day: merchant and amount."""
    with open(f"payouts-{day}.csv", newline="") as file:
        return list(csv.DictReader(file))


@flow.task(each=payouts, service=bank, timeout=2.0, retry=redrive.Retry(attempts=5, base=0.2, cap=1.0))
def settle(payout: dict[str, str], idempotency_key: str) -> int:
    """Pay one merchant. The bank recognizes a retry by its key, so a retry is safe after any failure."""
    account = checked(json.loads(Path("accounts.json").read_text())[payout["merchant"]])
    payment = {"merchant": payout["merchant"], "account": account, "cents": int(payout["cents"])}
    answer = httpx.post(f"{BANK}/payments", json=payment, headers={"Idempotency-Key": idempotency_key})
    cents: int = answer.raise_for_status().json()["cents"]
    return cents


@flow.task(after=settle)
def report(settle: list[int], day: str) -> str:
    """Return the total of all payouts."""
    return f"{day}: {len(settle)} merchants, {sum(settle) / 100:,.2f} EUR"


def checked(account: str) -> str:
    """Return the account if the bank can pay to it."""
    if not account.isalnum():
        raise ValueError(f"{account!r} is not an account")
    return account
