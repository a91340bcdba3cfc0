"""`redrive simulate contention`: many clients that write to one row, by backoff strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import CommandRefused
from redrive.cli.format import counted
from redrive.cli.output import Column
from redrive.cli.session import Session
from redrive.cli.simulate.noun import Plot, Seed, app, check, refusing, show
from redrive.model.calls import format_duration
from redrive.policy.option_checks import shown

if TYPE_CHECKING:
    from redrive.simulate.contention import Result, Study

# What an ordinary machine simulates in a second, to estimate the duration.
_WRITES_PER_SECOND = 200_000
_ESTIMATE_FROM = 60.0  # seconds of a simulation from which its duration is announced
_CONFIRM_FROM = 3_600.0  # seconds from which --yes is required


@command(app)
def contention(
    session: Session,
    *,
    clients: Annotated[
        list[str] | None,
        typer.Option(metavar="N,N,…", help="Numbers of clients; may be repeated. [default: 10,50,100]"),
    ] = None,
    repetitions: Annotated[int, typer.Option(metavar="N", help="Repetitions of each case; the mean is shown.")] = 100,
    seed: Seed = 1,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Strategy: none, exponential, equal, full or decorrelated; may be repeated. [default: all]",
        ),
    ] = None,
    base: Annotated[float, typer.Option(metavar="SECONDS", help="First wait.")] = 0.005,
    cap: Annotated[float, typer.Option(metavar="SECONDS", help="Longest wait.")] = 2.0,
    hop: Annotated[float, typer.Option(metavar="SECONDS", help="Mean duration of a message.")] = 0.010,
    deviation: Annotated[float, typer.Option(metavar="SECONDS", help="Standard deviation of that duration.")] = 0.002,
    plot: Plot = None,
    yes: Annotated[bool, typer.Option("--yes", help="Start without asking, even if it takes hours.")] = False,
) -> None:
    """Simulate clients that contend for one row: completion time and writes, by backoff strategy.

    Each client must commit one version-checked write. It reads the version, writes with it, and fails if another client
    was faster; then it waits by its strategy and reads again.

    Examples: redrive simulate contention --clients 10,100; redrive simulate contention --strategy full --json
    """
    from redrive.simulate.contention import STRATEGIES, NetworkModel, Study, figures, run_study

    check(plot)
    with refusing():
        study = Study(
            network=NetworkModel(base=base, cap=cap, hop=hop, deviation=deviation),
            strategies=tuple(dict.fromkeys(strategy or STRATEGIES)),
            clients=_numbers(clients) if clients else Study().clients,
            repetitions=repetitions,
            seed=seed,
        )
    out = session.out
    _announce_duration(session, study, yes=yes)
    with out.progress("simulating", of="share") as bar:
        results = run_study(study, lambda share: bar(round(1_000 * share), 1_000))
    rows = [_document(result, results) for result in results]
    if out.json:
        out.document(rows)
    elif out.terminal:
        out.prose(_premise(study))
        out.table(_COLUMNS, [_row(row) for row in rows])
        if conclusion := _conclusion(results):
            out.prose(f"\n{conclusion}")
    else:
        out.table([Column(title=name) for name in rows[0]], [[*row.values()] for row in rows])
    show(out, figures(study, results), plot)


def _numbers(given: Sequence[str]) -> tuple[int, ...]:
    words = [word.strip() for text in given for word in text.split(",")]
    try:
        return tuple(dict.fromkeys(int(word) for word in words))
    except ValueError:
        raise CommandRefused(
            f"--clients is a whole number, or several as 10,50,100, not {shown(','.join(given))}"
        ) from None


def _announce_duration(session: Session, study: Study, *, yes: bool) -> None:
    """Print the estimated duration of a long simulation; one of an hour or more requires --yes."""
    from redrive.simulate.contention import estimate_writes

    expected = estimate_writes(study)
    writes = sum(expected.values())
    seconds = writes / _WRITES_PER_SECOND
    if seconds < _ESTIMATE_FROM:
        return
    estimate = f"this takes about {_many(writes)} writes, some {format_duration(seconds)}"
    if len(expected) > 1:
        clients, strategy = max(expected, key=lambda case: expected[case])
        estimate += f", and {_many(expected[clients, strategy])} of them are for {clients:,} clients with {strategy!r}"
    if seconds > _CONFIRM_FROM and not yes:
        raise CommandRefused(f"{estimate}; ask for less with --clients, --repetitions or --strategy, or pass --yes")
    session.out.say(estimate)


def _many(number: float) -> str:
    """Return an estimated number in millions or billions."""
    millions = number / 1e6
    return f"{millions / 1e3:,.1f} billion" if millions >= 1_000 else f"{millions:,.0f} million"


# ── the output ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _document(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    from redrive.simulate.contention import spread, unjittered

    baseline = unjittered(result, results)
    return {
        "strategy": result.strategy,
        "clients": result.clients,
        "repetitions": len(result.times),
        **spread("time_ms", [1_000 * time for time in result.times], digits=3),
        **spread("writes", result.writes, digits=3),
        "time_ratio": None if baseline is None else round(result.time / baseline.time, 4),
        "writes_ratio": None if baseline is None else round(result.write_count / baseline.write_count, 4),
    }


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} ×"


def _milliseconds(time: float) -> str:
    return f"{time:,.0f} ms"


_COLUMNS = (
    Column(title="clients", right=True),
    Column(title="strategy"),
    Column(title="time", show=_milliseconds, right=True),
    Column(title="p95", show=_milliseconds, right=True, drop=2),
    Column(title="of exponential", show=_ratio, right=True, drop=4),
    Column(title="writes", show=lambda mean: f"{mean:,.0f}", right=True),
    Column(title="p95", show=lambda count: f"{count:,.0f}", right=True, drop=3),
    Column(title="of exponential", show=_ratio, right=True, drop=1),
)


def _row(document: dict[str, Any]) -> list[Any]:
    return [
        *(document["clients"], document["strategy"]),
        *(document["time_ms"], document["time_ms_p95"], document["time_ratio"]),
        *(document["writes"], document["writes_p95"], document["writes_ratio"]),
    ]


def _premise(study: Study) -> str:
    network = study.network
    return (
        "each client commits one version-checked write to the same row, and all begin at once\n"
        f"a hop takes |normal({_ms(network.hop)}, {_ms(network.deviation)})| ms; "
        f"waits begin at {_ms(network.base)} ms and end at {_ms(network.cap)} ms\n"
        f"means of {counted(study.repetitions, 'repetition')}, seed {study.seed}\n"
    )


def _ms(seconds: float) -> str:
    return f"{1_000 * seconds:,.10g}"


def _conclusion(results: Sequence[Result]) -> str:
    """Return the best strategies for the greatest number of clients, where strategies differ most."""
    clients = max(result.clients for result in results)
    compared = [result for result in results if result.clients == clients]
    fastest, fewest = (
        min(compared, key=lambda result: result.time),
        min(compared, key=lambda result: result.write_count),
    )
    if fewest.write_count == max(result.write_count for result in compared):
        return ""  # one strategy, or too few clients for the strategy to matter
    return (
        f"with {counted(clients, 'client')}, {fastest.strategy} finishes first, after "
        f"{_milliseconds(1_000 * fastest.time)}; {fewest.strategy} needs the fewest writes, {fewest.write_count:,.0f}"
    )
