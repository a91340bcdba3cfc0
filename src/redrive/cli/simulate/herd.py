"""`redrive simulate herd`: load on a service that recovers from an outage."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import TargetNotFound
from redrive.cli.format import counted
from redrive.cli.output import Column, Output
from redrive.cli.session import Session
from redrive.cli.simulate.noun import Plot, Seed, app, check, refusing, show
from redrive.model.calls import format_duration

if TYPE_CHECKING:
    from redrive.calls.service import Service
    from redrive.simulate.herd.report import Result
    from redrive.simulate.herd.simulation import Scenario

_DEFAULT = "redrive's default policy"


def _seconds(help: str) -> Any:
    return typer.Option(metavar="SECONDS", help=help)


@command(app)
def herd(
    session: Session,
    *,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME",
            help="Service with the policy to simulate, such as vendor.py:shipfast. [default: redrive's default]",
        ),
    ] = None,
    clients: Annotated[int, typer.Option(metavar="N", help="Number of processes that call the service.")] = 5_000,
    every: Annotated[float, _seconds("Mean interval between calls of one client.")] = 30.0,
    latency: Annotated[float, _seconds("Duration of a response.")] = 20.0,
    capacity: Annotated[
        float | None,
        typer.Option(
            metavar="PER_SECOND", help="Maximum number of requests per second. [default: twice the normal rate]"
        ),
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum number of waiting requests; others get a 503. [default: for 5 s]"),
    ] = None,
    timeout: Annotated[float, _seconds("Timeout of a client, where its policy has none.")] = 60.0,
    outage: Annotated[float, _seconds("Duration of the outage.")] = 120.0,
    outage_kind: Annotated[
        str, typer.Option(metavar="KIND", help="Symptom of the outage: refused (connections), 503 or hang.")
    ] = "refused",
    retry_after: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            help="Retry-After of every 503, of a full queue or of an outage of kind 503.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        float, _seconds("Mean delay before a failed call is made again, where its error names none.")
    ] = 5.0,
    fixed: Annotated[float, _seconds("Delay of the clients to compare with, which retry until they succeed.")] = 30.0,
    warmup: Annotated[float, _seconds("Normal operation before the outage.")] = 60.0,
    watch: Annotated[float, _seconds("Time to simulate after the outage.")] = 180.0,
    bucket: Annotated[float, _seconds("Interval in which requests are counted.")] = 1.0,
    repetitions: Annotated[int, typer.Option(metavar="N", help="Repetitions; the worst of each figure is shown.")] = 1,
    seed: Seed = 1,
    plot: Plot = None,
) -> None:
    """Simulate an outage, and the load when the service recovers: with your policy and with others.

    Each client makes one call after another. The peak is the load that the service must withstand after the outage.

    Examples: redrive simulate herd --clients 1000 --outage 60; redrive simulate herd --policy vendor.py:shipfast
    """
    from redrive.calls.service import Service
    from redrive.simulate.herd.clients import Policy
    from redrive.simulate.herd.report import figures, hold
    from redrive.simulate.herd.simulation import Scenario, check_fit, strategies

    check(plot)
    with refusing():
        scenario = Scenario(
            clients=clients,
            every=every,
            latency=latency,
            capacity=capacity,
            queue=queue,
            timeout=timeout,
            outage=outage,
            kind=outage_kind,  # type: ignore[arg-type]  # it rejects an unknown one
            retry_after=retry_after,
            again=again,
            fixed=fixed,
            warmup=warmup,
            watch=watch,
            bucket=bucket,
        )
        if repetitions < 1:
            raise ValueError(f"repetitions must be a whole number of 1 or more, not {repetitions}")
        name = _DEFAULT if policy is None else policy
        service = Service("default") if policy is None else _service(policy)
        asked = Policy.of(service, retry_after=retry_after)
        check_fit(name, asked, scenario)
    out = session.out
    compared = strategies(name, asked, fixed=fixed)
    with out.progress("simulating", of="share") as bar:
        results = hold(
            scenario,
            compared,
            seed=seed,
            repetitions=repetitions,
            progress=lambda share: bar(round(1_000 * share), 1_000),
        )
    _show_results(out, scenario, results, premise=_premise(scenario, repetitions, seed))
    show(out, figures(scenario, results), plot)


def _show_results(out: Output, scenario: Scenario, results: Sequence[Result], *, premise: str) -> None:
    if out.json:
        out.document([_document(scenario, result) for result in results])
    elif out.terminal:
        out.prose(premise)
        out.table(_COLUMNS, [_row(result) for result in results])
        out.prose(f"\n{_conclusion(results)}")
    else:
        rows = [_facts(result) for result in results]
        out.table([Column(title=title) for title in rows[0]], [[*row.values()] for row in rows])


def _service(wanted: str) -> Service:
    from redrive.calls.service import Service
    from redrive.cli.targets import load

    # What the user's code prints is not our answer.
    with redirect_stdout(sys.stderr):
        found = load(wanted)
    if not isinstance(found, Service):
        kind = type(found).__name__
        raise TargetNotFound(
            f"{wanted} is of type {kind}, not a redrive.Service; name the service whose policy is meant"
        )
    return found


# ── the answer ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _facts(one: Result) -> dict[str, Any]:
    return {
        "strategy": one.strategy,
        "normal_per_s": round(one.normal, 3),
        "peak_per_s": round(one.peak, 3),
        "peak_ratio": round(one.peak_ratio, 3),
        "peak_at_s": round(one.peak_at, 3),
        "peak_while_down_per_s": round(one.peak_while_down, 3),
        "recovered_after_s": None if math.isinf(one.recovered_after) else round(one.recovered_after, 3),
        "requests": one.requests,
        "in_vain": one.in_vain,
        "calls_failed": one.calls_failed,
        "lost": one.lost,
        "probes_per_s": round(one.probe_peak, 3),
    }


def _document(scenario: Scenario, one: Result) -> dict[str, Any]:
    from redrive.simulate.herd.report import per_second

    books = one.buckets
    series = {
        "from_s": books.begins(0) + scenario.outage,
        "bucket_s": books.width,
        "requests_per_s": per_second(books, books.requests),
        "probes_per_s": per_second(books, books.probes),
        "calls_failed_per_s": per_second(books, books.calls_failed),
    }
    return {**_facts(one), "series": series}


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == round(rate) else f"{rate:.1f}"


def _after(seconds: float) -> str:
    return "not recovered" if math.isinf(seconds) else format_duration(seconds)


# In a narrow terminal, what the service must live through matters most.
_COLUMNS = (
    Column(title="strategy", least=26, wrap=True),
    Column(title="peak/s", show=_rate, right=True),
    Column(title="× normal", show=lambda ratio: f"{ratio:.1f}", right=True),
    Column(title="at", show=lambda at: f"+{at:.4g} s", right=True, drop=4),
    Column(title="recovered", show=_after, right=True),
    Column(title="while down/s", show=_rate, right=True, drop=3),
    Column(title="probes/s", show=_rate, right=True, drop=2),
    Column(title="requests", right=True, drop=5),
    Column(title="in vain", right=True, drop=6),
    Column(title="calls failed", right=True, drop=7),
    Column(title="work lost", right=True, drop=1),
)


def _row(one: Result) -> list[Any]:
    return [
        *(one.strategy, one.peak, one.peak_ratio, one.peak_at, one.recovered_after, one.peak_while_down),
        *(one.probe_peak, one.requests, one.in_vain, one.calls_failed, one.lost),
    ]


_HOW = {"refused": "refuses connections", "503": "answers 503", "hang": "lets its clients hang"}


def _premise(scenario: Scenario, repetitions: int, seed: int) -> str:
    under_way = scenario.normal * scenario.latency
    asks = "" if scenario.retry_after is None else f"; a 503 asks for {format_duration(scenario.retry_after)}"
    drawn = f"the worst of {repetitions} repetitions, " if repetitions > 1 else ""
    return (
        f"{counted(scenario.clients, 'client')}, each with a call every {scenario.every:g} s that takes "
        f"{scenario.latency:g} s: {_rate(scenario.normal)} requests/s, {under_way:,.0f} under way\n"
        f"the service takes up {_rate(scenario.takes_up)} requests/s, {scenario.places:,} may wait; "
        f"it {_HOW[scenario.kind]} for {scenario.outage:g} s{asks}\n"
        f"{drawn}seed {seed}\n"
    )


def _conclusion(results: Sequence[Result]) -> str:
    ours, worst = results[0], max(results[1:], key=lambda result: result.peak)
    return (
        f"once it is back, the service meets {ours.peak_ratio:.1f} × its normal rate with {ours.strategy}, "
        f"{worst.peak_ratio:.1f} × with {worst.strategy}\n"
        f"while it is down, up to {ours.peak_while_down / ours.normal:.1f} × and "
        f"{worst.peak_while_down / worst.normal:.1f} × are sent"
    )
