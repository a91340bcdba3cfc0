"""Public homes of events and types, and the old module names that still work."""

from importlib import import_module

import pytest

import redrive.events
import redrive.types

MOVED = [
    ("redrive.runs", "BatchWritten", redrive.events),
    ("redrive.flows", "TaskFailed", redrive.events),
    ("redrive.letters", "LettersPut", redrive.events),
    ("redrive.notices", "Facts", redrive.types),
    ("redrive.model", "Kind", redrive.types),
    ("redrive.alerts.lag", "Lag", redrive.types),
]


class TestPublicHome:
    @pytest.mark.parametrize("module", [redrive.events, redrive.types])
    def test_every_listed_name_can_be_used(self, module):
        assert all(getattr(module, name) is not None for name in module.__all__)
        assert dir(module) == sorted(module.__all__)

    def test_unknown_name_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match=r"module 'redrive\.types' has no attribute 'Unknown'"):
            _ = redrive.types.Unknown


class TestMovedName:
    @pytest.mark.parametrize(("old", "name", "home"), MOVED)
    def test_old_module_works_and_warns(self, old, name, home):
        with pytest.warns(DeprecationWarning, match=rf"{old}\.{name} has moved: import it from redrive"):
            value = getattr(import_module(old), name)
        assert value is getattr(home, name)

    def test_unknown_name_of_an_old_module_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match=r"module 'redrive\.runs' has no attribute 'Unknown'"):
            _ = import_module("redrive.runs").Unknown
