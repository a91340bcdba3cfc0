"""The command `redrive explain`: finds out what is asked about, and answers."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from redrive.cli.command import command
from redrive.cli.exit_codes import CommandRefused, TargetNotFound
from redrive.cli.session import Session, seconds

if TYPE_CHECKING:
    from redrive.explain.dry_call import ServicePolicy
    from redrive.explain.fake_errors import FailureDetails
    from redrive.explain.question import Question
    from redrive.model.calls import Scope

    Asked = ServicePolicy | Question

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_STDIN = "-"
_MOST_BYTES = 16_000_000
_USAGE = "nothing to explain. Name an error, such as `redrive explain 503`, or pass a traceback on stdin"


@command(app)
def explain(
    session: Session,
    *,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="Exception (httpx.ReadTimeout), a status (503), a SQLSTATE (40P01), an errno (ECONNREFUSED), a "
            "FILE.py:NAME of an exception or a policy; - or nothing for a traceback on stdin.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="FILE:NAME", help="Service or Retry that would handle the error."),
    ] = None,
    scope: Annotated[str | None, typer.Option(metavar="SCOPE", help="Scope: call, row or task. [default: all]")] = None,
    sla: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Longest acceptable duration of a call: 90 (seconds), 5min …")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Timeout of one attempt, where the policy has none.")
    ] = None,
    method: Annotated[str | None, typer.Option(metavar="METHOD", help="Method of the request, such as POST.")] = None,
    retry_after: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Retry-After of the response: seconds or an HTTP date.")
    ] = None,
    body: Annotated[str | None, typer.Option(metavar="TEXT", help="Body of the response.")] = None,
) -> None:
    """Explain how redrive handles an error, or what a policy amounts to.

    For an error: the verdict, its rule, and what follows in a call, a row and a task. For a policy: when its attempts
    are made, and how long a call takes at best, on average and at worst. Nothing is contacted.

    Examples: redrive explain 503 --method POST; redrive explain vendor.py:shipfast --sla 5min
    """
    from redrive.cli.explain.view import show
    from redrive.explain import UnclearQuestion
    from redrive.explain.dry_call import DEFAULT
    from redrive.explain.fake_errors import FailureDetails

    given = FailureDetails(method=_method(method), retry_after=_patience(retry_after), body=body)
    limit = None if timeout is None else seconds("--timeout", timeout)
    promised = None if sla is None else seconds("--sla", sla)
    try:
        # Output of user code must not mix with the answer.
        with redirect_stdout(sys.stderr):
            guard = DEFAULT if policy is None else _policy(policy)
            asked = _asked(what or [], given)
        show(session.out, asked, guard, scope=_scope(scope), timeout=limit, sla=promised)
    except UnclearQuestion as error:
        raise CommandRefused(str(error)) from None


# ── what is asked about ───────────────────────────────────────────────────────────────────────────────────────────────


def _asked(words: list[str], given: FailureDetails) -> list[Asked]:
    from redrive.explain.question import phrases

    if not words and sys.stdin.isatty():
        raise CommandRefused(_USAGE)
    asked: list[Asked] = []
    for phrase in phrases(words) or [_STDIN]:
        asked += [_traceback(given)] if phrase == _STDIN else _found(phrase, given)
    return asked


def _found(phrase: str, given: FailureDetails) -> list[Asked]:
    from redrive.explain import UnclearQuestion
    from redrive.explain.question import is_coded, read
    from redrive.explain.tracebacks import of_traceback, parse

    if ": " in phrase and (chain := parse(phrase)):
        return [of_traceback(chain, given)]  # a line of a log
    if ":" in phrase and not is_coded(phrase):
        return [_loaded(phrase, given)]
    try:
        return [*read(phrase, given)]
    except UnclearQuestion:
        module, _, name = phrase.rpartition(".")
        if not module:
            raise
        try:
            return [_loaded(f"{module}:{name}", given, asked=phrase)]
        except TargetNotFound:
            pass
        raise


def _loaded(target: str, given: FailureDetails, asked: str | None = None) -> Asked:
    """Explain the object of a FILE:NAME: an exception or a policy."""
    from redrive.cli.targets import load
    from redrive.explain.dry_call import ServicePolicy
    from redrive.explain.question import of_class, of_error

    found = load(target)
    if isinstance(found, type) and issubclass(found, BaseException):
        return of_class(asked or target, found, given)
    if isinstance(found, Exception):
        return of_error(asked or target, found)
    policy = ServicePolicy.of(found)
    if policy is None:
        raise CommandRefused(f"{target} is {_what(found)}; name an exception, a Service or a Retry")
    return policy


def _policy(target: str) -> ServicePolicy:
    from redrive.cli.targets import load
    from redrive.explain.dry_call import ServicePolicy

    found = load(target)
    policy = ServicePolicy.of(found)
    if policy is None:
        raise CommandRefused(f"--policy {target} is {_what(found)}; name a Service or a Retry")
    return policy


def _what(found: Any) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}"
    ours = type(found).__name__ if type(found).__module__.startswith("redrive.") else None
    if ours == "Task":
        return "a task, which is tried by the retry= it was given"
    if ours in ("Flow", "Pipeline"):
        return f"a {ours.lower()}, which has no policy of its own but calls services that do"
    if callable(found):
        return "a function, guarded perhaps by a service that has a name of its own"
    return f"of the type {type(found).__name__}"


def _traceback(given: FailureDetails) -> Question:
    from redrive.explain.tracebacks import of_traceback, parse

    chain = parse(_stdin())
    if not chain:
        raise CommandRefused(
            "there is no traceback on stdin; pass what Python prints: `python job.py 2>&1 | redrive explain`"
        )
    return of_traceback(chain, given)


def _stdin() -> str:
    data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        most = f"{_MOST_BYTES // 1_000_000} MB"
        raise CommandRefused(
            f"stdin has more than {most}. Pass the end of it: `tail -n 1000 job.log | redrive explain`"
        )
    if not data.strip():
        raise CommandRefused(f"stdin is empty; {_USAGE}")
    if b"\0" in data:
        raise CommandRefused("stdin is not text. Pass a traceback as Python prints it")
    return data.decode("utf-8", "replace")


# ── what is known beside it ───────────────────────────────────────────────────────────────────────────────────────────


def _scope(scope: str | None) -> Scope | None:
    if scope not in (None, "call", "row", "task"):
        raise CommandRefused(f"--scope must be call, row or task, not {scope!r}")
    return cast("Scope | None", scope)


def _method(method: str | None) -> str | None:
    if method is not None and not method.isalpha():
        raise CommandRefused(f"--method must be the method of a request, such as GET or POST, not {method!r}")
    return None if method is None else method.upper()


def _patience(value: str | None) -> str | None:
    from redrive.classify.responses import parse_retry_after

    if value is not None and parse_retry_after(value, datetime.now(UTC)) is None:
        raise CommandRefused(
            f"--retry-after must be a number of seconds or an HTTP date, as in the header, not {value!r}"
        )
    return value
