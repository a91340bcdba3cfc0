"""Secrets of many shapes, each identified by the place where it is planted, and a search for them in outputs.

A place also has a marker, a harmless word that stands before its secrets: an output that has the marker was reached,
and could have shown the secrets.
"""

import base64
import functools
import re
from hashlib import blake2b

# A text is one line up to the private key, which has three: what shows but the first line shows the rest.
SHAPES = {
    "query": "GET https://api.partner.example/v1/orders?api_key={}&page=2",
    "bearer": "Authorization: Bearer {}",
    "basic": "Authorization: Basic {}",
    "header": "X-Api-Key: {}",
    "database": "postgresql://etl:{}@db.example/lake",
    "libpq": "host=db.example password={} dbname=lake",
    "json": '{{"client_secret": "{}"}}',
    "aws": "aws_secret_access_key={}",
    "aws id": "of {} in eu-west-1",
    "slack": "https://hooks.slack.com/services/T0123ABC/B0123ABC/{}",
    "pagerduty": "routing_key={}",
    "card": "card {} declined",
    "spaced card": "card {} declined",
    "cookie": "Cookie: theme=dark; session={}",
    "pem": "\n-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
}

_FAILING = ("fetch", "a call", "a hook", "a probe", "a check inside", "a source", "a frame", "a replay", "a task")
PLACES = frozenset(
    [
        *_FAILING,
        *(f"{place} {part}" for place in (*_FAILING, "an outage", "a letter") for part in ("note", "cause")),
        # services
        *("first key", "second key", "token", "a parameter", "a body"),
        # rows
        *("a key 1", "a key 2", "a key 3", "a field", "a row", "a check", "keeper", "writer", "another store"),
        *("the sink", "the source", "a ragged line", "a line of no text"),
        # tasks
        *("a parameter of a flow", "an item", "stdout", "stderr", "an outage", "an import", "a line of code"),
        # letters
        *("a record", "a letter", "the key of a letter", "a position", "the name of a source", "bytes", "a text"),
        *("an edit", "a note of an edit", "a note"),
        # alerts and metrics
        *("slots", "tables", "slack", "slack down", "pager", "pager down", "hub", "hub down", "apprise"),
        *("apprise down", "lamp", "lamp down", "an acknowledgement", "a path"),
        # the command line
        *("a typed store", "a typed word", "a setting"),
    ]
)


def marker(place):
    """What is harmless, of letters alone: numbers are left out of causes."""
    assert place in PLACES, f"nobody would look for the secrets of {place!r}"
    return f"zebra{place.replace(' ', '')}"


def key(place, shape="key"):
    """A credential that looks like any other word."""
    assert place in PLACES, f"nobody would look for the secrets of {place!r}"
    return base64.b32encode(blake2b(f"{place}/{shape}".encode(), digest_size=20).digest()).decode().rstrip("=")


def card(place, shape="card"):
    """Sixteen digits as an issuer would give them."""
    assert place in PLACES, f"nobody would look for the secrets of {place!r}"
    number = int.from_bytes(blake2b(f"{place}/{shape}".encode(), digest_size=8).digest(), "big") % 10**14
    digits = f"4{number:014}"
    doubled = [int(digit) * (2 if at % 2 == 0 else 1) for at, digit in enumerate(digits)]
    return f"{digits}{-sum(sum(divmod(one, 10)) for one in doubled) % 10}"


@functools.cache
def secret(place, shape):
    """What is hidden in this shape at this place."""
    match shape:
        case "card" | "spaced card":
            return card(place, shape)
        case "basic":
            return base64.b64encode(f"etl:{key(place, shape)}".encode()).decode()
        case "aws id":
            return f"AKIA{key(place, shape)[:16]}"
        case "pagerduty":
            return blake2b(f"{place}/{shape}".encode(), digest_size=16).hexdigest()
    return key(place, shape)


def as_written(place, shape):
    """The secret as it stands in a text."""
    found = secret(place, shape)
    return " ".join(re.findall("....", found)) if shape == "spaced card" else found


def text(place):
    """The marker, and a secret of every shape."""
    return " ".join([marker(place), *(words.format(as_written(place, shape)) for shape, words in SHAPES.items())])


def line(place):
    """The same in one line."""
    return text(place).replace("\n", " ")


def basic(place):
    """What is sent for etl:KEY@ in an address."""
    return base64.b64encode(f"etl:{key(place)}".encode()).decode()


def found_in(output, places=PLACES):
    """Which secrets of which places an output shows, whole, in their first half, or broken over lines and groups."""
    squeezed = re.sub(r"[\s│-]", "", output)
    return sorted(
        (place, shape)
        for place in places
        for shape in (*SHAPES, "key", "token", "path")
        for value in [secret(place, shape)]
        if value in output or value[:-4] in squeezed or value[: max(10, len(value) // 2)] in output
    )
