"""Random damage to the bytes of a file, reproducible by the seed of a `random.Random`.

Suites that compare readers over generated files use these: one change to a well-formed file finds more than noise does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random


def flip_bit(random: Random, data: bytes) -> bytes:
    """Return the data with one bit changed."""
    if not data:
        return data
    changed = bytearray(data)
    changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def truncate(random: Random, data: bytes) -> bytes:
    """Return the data without its end."""
    return data[: random.randint(0, len(data))]


def drop_slice(random: Random, data: bytes) -> bytes:
    """Return the data without a few bytes from its middle."""
    start = random.randint(0, len(data))
    return data[:start] + data[start + random.randint(1, 9) :]


def repeat_slice(random: Random, data: bytes) -> bytes:
    """Return the data with a few bytes of it written twice."""
    start = random.randint(0, len(data))
    end = start + random.randint(1, 9)
    return data[:end] + data[start:end] + data[end:]


def insert(random: Random, data: bytes, pieces: Sequence[bytes]) -> bytes:
    """Return the data with one of the pieces somewhere in it."""
    place = random.randint(0, len(data))
    return data[:place] + random.choice(pieces) + data[place:]


def corrupt(random: Random, data: bytes, pieces: Sequence[bytes]) -> bytes:
    """Return the data with one to three changes of any kind; `pieces` are what may be inserted."""
    changes: list[Callable[[Random, bytes], bytes]] = [flip_bit, truncate, drop_slice, repeat_slice]
    changes += [lambda random, data: insert(random, data, pieces)] * 4
    for _ in range(random.randint(1, 3)):
        data = random.choice(changes)(random, data)
    return data
