"""How many examples a property test draws that needs more, or fewer, than the profile in `tests/conftest.py`."""

import os

_SHARE = {"unit": 0.04, "test": 0.5, "chaos": 10.0}


def examples(count: int) -> int:
    """Return half of `count` in `make test`, few in `make unit`, and ten times as many as `count` in `make chaos`."""
    return max(1, int(count * _SHARE[os.environ.get("REDRIVE_TEST_LOOP", "test")]))
