"""Pays the merchants of a day, each in a task of its own, and reports when all of them are paid.

Run it: redrive run settlement.py --param day=2026-11-15

The bank is played by `redrive demo`, and answers only while that runs; payouts wait until it is back.
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
    """What is to be paid to whom."""
    with open(f"payouts-{day}.csv", newline="") as file:
        return list(csv.DictReader(file))


@flow.task(each=payouts, service=bank, timeout=2.0, retry=redrive.Retry(attempts=5, base=0.2, cap=1.0))
def settle(payout: dict[str, str], idempotency_key: str) -> int:
    """Pay one merchant. The bank knows a repeat by its key, so it may be tried again whatever happened."""
    account = checked(json.loads(Path("accounts.json").read_text())[payout["merchant"]])
    payment = {"merchant": payout["merchant"], "account": account, "cents": int(payout["cents"])}
    answer = httpx.post(f"{BANK}/payments", json=payment, headers={"Idempotency-Key": idempotency_key})
    cents: int = answer.raise_for_status().json()["cents"]
    return cents


@flow.task(after=settle)
def report(settle: list[int], day: str) -> str:
    """All of them together."""
    return f"{day}: {len(settle)} merchants, {sum(settle) / 100:,.2f} EUR"


def checked(account: str) -> str:
    """An account that the bank can pay to."""
    if not account.isalnum():
        raise ValueError(f"{account!r} is no account")
    return account
