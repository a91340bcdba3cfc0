"""`redrive check`: whether settings, pipelines, flows and policies can be used, before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import USAGE, exit_code, sentence
from redrive.cli.format import in_a_line, short_path, style_of
from redrive.cli.output import Column
from redrive.cli.session import Session
from redrive.config import FILE
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.alerts.config.settings import AlertSettings

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check."""

    check: str
    """`settings`, `store`, `target`, `policy` or `probe`."""
    name: str
    status: str = "ok"
    """`ok` or `problem`."""
    detail: str = ""
    code: int = 0
    """Exit code of a problem."""


@command(app, accept_invalid=True)
def check(
    session: Session,
    *,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="Pipelines, flows or services, as FILE_OR_MODULE:NAME; without a name, the only one in the file.",
            show_default=False,
        ),
    ] = None,
    connect: Annotated[bool, typer.Option("--connect", help="Also open the store and compare its schema.")] = False,
) -> None:
    """Validate redrive.toml, import targets and check the policies of their services.

    Nothing is run, and nothing is contacted without --connect; importing a target executes its module. A problem ends
    the command with the exit code that `redrive run` would have: 64 for settings and targets, 69 for a store that
    cannot be reached, 70 for a module that cannot be imported.

    Examples: redrive check pipeline.py; redrive check vendor.py:pipeline settlement.py:flow --connect
    """
    # Output of user code must not mix with the answer.
    with redirect_stdout(sys.stderr):
        results = [*_settings(session), *_targets(targets or ())]
        if connect and session.invalid is None:
            results.append(_store(session))
    out = session.out
    if out.json:
        shown = [
            {"check": result.check, "name": result.name, "status": result.status, "detail": result.detail}
            for result in results
        ]
        out.document({"ok": not any(result.code for result in results), "checks": shown})
    else:
        out.table(_COLUMNS, [[result.check, result.name, result.status, result.detail] for result in results])
    if code := next((result.code for result in results if result.code), 0):
        raise typer.Exit(code)


_COLUMNS = (
    Column(title="check"),
    Column(title="name", least=16),
    Column(title="status", style=style_of),
    Column(title="detail", least=24, wrap=True, whole=True),
)


def _settings(session: Session) -> Iterator[CheckResult]:
    """Check redrive.toml, the variables, the channels, and that the probes they name can be imported."""
    from redrive.alerts.config.read import check_channels

    if session.invalid is not None:
        yield CheckResult(check="settings", name=FILE, status="problem", detail=str(session.invalid), code=USAGE)
        return
    file = session.settings.file
    name = FILE if file is None else short_path(str(file))
    problem = session.problem()
    if problem is not None:
        yield CheckResult(check="settings", name=name, status="problem", detail=problem, code=USAGE)
        return
    try:
        alerts = check_channels(session.settings)
    except (RedriveError, ImportError) as error:
        yield _problem("settings", name, error)
        return
    yield CheckResult(check="settings", name=name, detail="no file; defaults and variables" if file is None else "")
    yield from _probes(alerts)


def _probes(alerts: AlertSettings) -> Iterator[CheckResult]:
    from redrive.cli.targets import load

    own = [condition.probe for condition in alerts.defined.values() if condition.probe]
    for name in dict.fromkeys([*alerts.lags, *own]):
        try:
            load(name)
        except RedriveError as error:
            yield _problem("probe", name, error)
        else:
            yield CheckResult(check="probe", name=name)


def _targets(targets: Sequence[str]) -> Iterator[CheckResult]:
    """Check that each target can be imported, and the policies of the services in its module."""
    from redrive.cli.run import found_target
    from redrive.cli.targets import is_flow, load_target
    from redrive.explain.dry_call import ServicePolicy

    for target in targets:
        try:
            found = load_target(target)
            policy = ServicePolicy.of(found)
            if policy is None:
                found = found_target(target)
        except RedriveError as error:
            yield _problem("target", target, error)
            continue
        if policy is not None:
            yield CheckResult(check="target", name=target, detail=f"policy {policy.name}")
            yield _policy(policy)
            continue
        kind = "flow" if is_flow(found) else "pipeline"
        yield CheckResult(check="target", name=target, detail=f"{kind} {found.name}")
        for service in _services_beside(target):
            yield _policy(ServicePolicy.of(service))


def _services_beside(target: str) -> list[Any]:
    """Return the services that the module of a target has, each once."""
    from redrive.calls.service import Service
    from redrive.cli.targets import loaded_module

    where = target.rpartition(":")[0] if ":" in target else target
    values = vars(loaded_module(where)).values()
    return list({id(value): value for value in values if isinstance(value, Service)}.values())


def _policy(policy: Any) -> CheckResult:
    from redrive.explain.policy_text import explain_policy

    return CheckResult(check="policy", name=policy.name, detail="; ".join(explain_policy(policy).notes))


def _store(session: Session) -> CheckResult:
    try:
        with session.opened(migrate=False) as store:
            found = store.info()
    except (RedriveError, ImportError) as error:
        return _problem("store", "--connect", error)
    return CheckResult(check="store", name=short_path(found.url), detail=f"schema version {found.schema_version}")


def _problem(what: str, name: str, error: Exception) -> CheckResult:
    detail = in_a_line(sentence(error))
    return CheckResult(check=what, name=name, status="problem", detail=detail, code=exit_code(error))
