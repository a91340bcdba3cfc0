"""Which SQL statements a condition of the settings may run: one that reads.

The transaction is read-only, too. But `COPY … TO PROGRAM` runs in a read-only transaction of a PostgreSQL superuser.
"""

from __future__ import annotations

import re

ONE_QUERY = "must be one statement that begins with SELECT, WITH, VALUES or TABLE"
"""What is said of a statement that is rejected."""

_BEGINNING = re.compile(r"[\s(]*(?:SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)
_OPENING = re.compile(r"['\"]|--|/\*")
_CLOSING = {"'": "'", '"': '"', "--": "\n", "/*": "*/"}


def is_one_query(statement: str) -> bool:
    """Return whether this is a single statement that begins with SELECT, WITH, VALUES or TABLE."""
    outside, rest = "", statement
    while (opening := _OPENING.search(rest)) is not None:
        outside += f"{rest[: opening.start()]} "
        inside, _, rest = rest[opening.end() :].partition(_CLOSING[opening[0]])
        if opening[0] == "/*" and "/*" in inside:  # where such a comment ends depends on the database
            return False
    outside += rest
    return _BEGINNING.match(outside) is not None and ";" not in outside.rstrip("; \t\r\n")
