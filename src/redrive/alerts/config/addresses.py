"""Checks of addresses: of channels, databases, probes and links. An address is never part of an error message."""

from __future__ import annotations

import re
import subprocess
import sys
from base64 import b64decode
from importlib.util import find_spec
from shutil import which
from string import Formatter
from urllib.parse import parse_qs, urlsplit

from redrive._internal.database_url import parse_url, wrong_password, wrong_path
from redrive.config.located import Located, listed, nearest, shown
from redrive.config.settings import beside
from redrive.config.value_kinds import text
from redrive.model.alerts import FACTS_IN_LINKS

PLACEHOLDERS = ("pipeline", "run_id", "alert", "service", "condition", "severity", *FACTS_IN_LINKS)
"""The placeholders of a link, besides `{facts.NAME}` and environment variables."""
_VARIABLE = re.compile("[A-Z_][A-Z0-9_]*")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.*", re.DOTALL)
_ROUTING_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "user-agent"})
_SHORTEST_KEY = 16
_WORDS = 'words, as in ["notify", "--now"]'
_HIDDEN = "the value is not shown, because it may hold a secret"
_DATABASES = "postgresql://user@host/database, sqlite:///path/to/file.db or duckdb:///path/to/file.duckdb"
_ASK_APPRISE = (
    "import sys; from apprise import Apprise;sys.exit(Apprise.instantiate(sys.stdin.buffer.read().decode()) is None)"
)
_TIMEOUT = 60.0  # seconds


def web(at: Located) -> str:
    """Return a URL that can be posted to."""
    url = text(at)
    if not _is_web(url):
        raise at.wrong(f"must be a URL such as https://host/path; {_HIDDEN}")
    return url


def header(name: str, at: Located) -> str:
    """Return the value of a header that a request may have."""
    if not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS or name.lower().startswith("webhook-"):
        raise at.wrong("is not a header that can be set here")
    value = text(at)
    if not (value.isascii() and value.isprintable()):
        raise at.wrong(f"must be printable ASCII; {_HIDDEN}")
    return value


def signing_key(at: Located) -> bytes:
    """Return the key of signatures: base64 after `whsec_`, otherwise the text itself."""
    key = text(at)
    if not key.startswith("whsec_"):
        made = key.encode()
    else:
        try:
            made = b64decode(key.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise at.wrong(f"must be base64 after whsec_; {_HIDDEN}") from None
    if len(made) < _SHORTEST_KEY:
        raise at.wrong(f"must have at least {_SHORTEST_KEY} bytes; {_HIDDEN}")
    return made


def apprise(at: Located) -> str:
    """Return a URL of apprise. Its form is checked only, since loading the services of apprise takes long."""
    url = text(at)
    if not _SCHEME.fullmatch(url):
        raise at.wrong(f"must be a URL of apprise's such as mailtos://user@host; {_HIDDEN}")
    return url


def is_installed() -> bool:
    """Return whether apprise is installed."""
    return find_spec("apprise") is not None


def check_installed(at: Located) -> None:
    """Raise if apprise is not installed."""
    if not is_installed():
        raise at.wrong("needs apprise, which is not installed: pip install 'redrive[alerts]'")


def pagerduty(at: Located) -> str:
    """Return the integration key of a PagerDuty service, or a URL that contains it."""
    target = text(at)
    has_key = _is_web(target) and "routing_key" in parse_qs(urlsplit(target).query)
    if not has_key and not _ROUTING_KEY.fullmatch(target):
        raise at.wrong(f"must be the integration key of a PagerDuty service, or a URL with ?routing_key=…; {_HIDDEN}")
    return target


def command(at: Located) -> tuple[str, ...]:
    """Return the words of a command; the relative path of a program starts at the directory of the file.

    Environment variables are not filled in: a shell can do that, also with the variables that describe the message.
    And every user of the machine can read the words of a command.
    """
    program, *others = [_word(entry) for entry in at.entries(_WORDS)] or [""]
    if not program.strip():
        raise at.wrong(f"must be a list of {_WORDS}")
    if "/" in program and at.source is not None:
        program = str(at.source.file.parent / program)
    return (program, *others)


def server(at: Located) -> str:
    """Return the URL of a PostgreSQL server."""
    url = _whole(text(at), at)
    if not url.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")) or not _is_database(url):
        raise at.wrong(f"must be a URL such as postgresql://user@host/database; {_HIDDEN}")
    return url


def database(at: Located) -> str:
    """Return the URL of a database; a path names a SQLite file, relative to the settings file."""
    url = text(at)
    if wrong := wrong_path(url, _DATABASES):
        raise at.wrong(f"is not complete: {wrong}")
    url = _whole(url, at)
    if at.source is not None:
        url = beside(at.source.file, url)
    if "://" not in url:
        url = f"sqlite:///{url}"
    if not _is_database(url):
        raise at.wrong(f"must be a URL such as {_DATABASES}; {_HIDDEN}")
    return url


def _whole(url: str, at: Located) -> str:
    if wrong := wrong_password(url):
        raise at.wrong(f"cannot be used: {wrong}")
    return url


def probe(at: Located) -> str:
    """Return `FILE:NAME` or `MODULE:NAME` of a function; a relative file starts at the directory of the settings."""
    where, _, name = text(at).rpartition(":")
    if not where or "://" in where or not all(part.isidentifier() for part in name.split(".")):
        raise at.wrong(f'must be FILE:NAME or MODULE:NAME, such as "probes.py:billing", not {shown(at.value)}')
    is_file = where.endswith(".py") or "/" in where
    return f"{at.source.file.parent / where}:{name}" if is_file and at.source is not None else f"{where}:{name}"


def template(at: Located) -> str:
    """Return a link with placeholders."""
    link = text(at)
    try:
        parts = list(Formatter().parse(link))
    except ValueError:
        raise at.wrong("has an unmatched brace; write {{ or }} for a brace") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not _can_fill(name)):
            near = nearest(name, PLACEHOLDERS)
            hint = (
                f"did you mean '{{{near}}}'?" if near else f"there are {listed(f'{{{name}}}' for name in PLACEHOLDERS)}"
            )
            raise at.wrong(f"has an unknown placeholder {shown('{' + name + '}')}; {hint}")
    if not _is_web("".join(before + ("x" if name is not None else "") for before, name, _, _ in parts)):
        raise at.wrong(f"must be a URL such as https://host/path; {_HIDDEN}")
    return link


def _can_fill(name: str) -> bool:
    return name in PLACEHOLDERS or bool(_VARIABLE.fullmatch(name)) or (name.startswith("facts.") and len(name) > 6)


def variable(at: Located) -> str:
    """Return the name of an environment variable."""
    name = text(at)
    if not _VARIABLE.fullmatch(name):
        raise at.wrong("must be the name of an environment variable, in capital letters, digits and underscores")
    return name


def _word(at: Located) -> str:
    if not isinstance(at.value, str):
        raise at.wrong("must be a text")
    return at.value


def _is_web(url: str) -> bool:
    if not url.isprintable() or " " in url:  # urlsplit silently drops these characters
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_database(url: str) -> bool:
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = parse_url(url, "the URL", _DATABASES)
        if parsed.drivername not in {"postgres", "duckdb"}:  # names that SQLAlchemy does not know by itself
            parsed.get_dialect()
    except (ArgumentError, ValueError, ImportError):
        return False
    return bool(parsed.database and parsed.database != ":memory:") or parsed.get_backend_name() not in {
        "sqlite",
        "duckdb",
    }


def check_fully(at: Located, target: str | tuple[str, ...]) -> None:
    """Run checks that take too long for every run: whether apprise accepts its URL, and whether a program exists."""
    if isinstance(target, tuple):
        if which(target[0]) is None:
            raise at.wrong("names a program that does not exist or is not executable")
    elif not _is_of_apprise(target):
        raise at.filled().wrong(f"is a URL that apprise does not understand; {_HIDDEN}")


def _is_of_apprise(url: str) -> bool:
    """Return whether apprise accepts a URL, in another process: apprise logs the URL, and warns about its imports."""
    words = [sys.executable, "-c", _ASK_APPRISE]
    try:
        asked = subprocess.run(words, input=url.encode(), capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
