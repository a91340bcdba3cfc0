"""URLs of databases: what is wrong with one, without showing it.

A character that must be encoded cuts a password in two, and the driver names what it takes for the host or the
database in its error. Such a URL is rejected where it is passed.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import URL

STORE_FORMS = "sqlite:///path/to/file.db or postgresql://user:password@host/database"
"""What the URL of a store may be."""

_UNENCODED_AT = "the password in the URL has an unencoded '@'; write %40"
_UNENCODED_SLASH = "the user in the URL has an unencoded '/'; write %2F"
_INCOMPLETE = "it looks like a URL without its '://'; write "

# As SQLAlchemy separates user, password and the rest.
_REST = re.compile(r"[\w+.-]{1,60}://(.*)", re.DOTALL)
_PASSWORD = re.compile(r"[^:/]*:[^@]*@")
# Of a path, a slash stands before the colon, or no @ behind it.
_SERVER = re.compile(
    r"(?:postgres|mysql|mariadb|oracle|mssql)[\w+]{0,40}(?::|//)|[^/:@\s]{0,200}:[^@]{1,500}@", re.IGNORECASE
)


def parse_url(url: str | URL, what: str, forms: str) -> URL:
    """Return the URL of a database, in its parts.

    Args:
        url: the URL.
        what: whose URL it is, for the error: "the table's URL".
        forms: what to write, for the error.

    Raises:
        ValueError: it cannot be read, or part of its password would be taken for something else.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    from redrive._internal.masking import learn_url

    learn_url(url if isinstance(url, str) else url.render_as_string(hide_password=False))
    if isinstance(url, str) and (wrong := wrong_password(url)):
        raise ValueError(wrong)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"{what} cannot be read; write {forms}") from None
    if "@" in (parsed.host or ""):
        raise ValueError(_UNENCODED_AT)
    return parsed


def wrong_password(url: str) -> str | None:
    """Return what is wrong where part of a password would be taken for a host or a database."""
    found = _REST.match(url)
    if found is None:
        return None
    rest = found[1]
    password = _PASSWORD.match(rest)
    place, _, query = rest[password.end() if password else 0 :].partition("?")
    if password is None:
        is_cut = not rest.startswith("/") and "@" in place.partition("/")[2].partition(":")[2]
        return _UNENCODED_SLASH if is_cut else None
    names = [part.partition("=")[0] for part in query.split("&")]
    # A parameter may have an @, as in application_name=etl@host; a host and a database behind it are the URL's own.
    is_in_query = any("@" in name for name in names) or "/" in query.partition("@")[2]
    return _UNENCODED_AT if "@" in place or is_in_query else None


def wrong_path(path: str | os.PathLike[str], forms: str) -> str | None:
    """Return what is wrong where this is not the path of a file, but a URL of a server that is not complete."""
    text = os.fspath(path)
    is_url = isinstance(text, str) and "://" not in text and _SERVER.match(text) and not os.path.exists(text)
    return f"{_INCOMPLETE}{forms}" if is_url else None
