"""The ledger of effects: how effects are counted, and when its checks raise."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracles.effects import EffectLedger

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ledger(tmp_path):
    return EffectLedger(tmp_path / "effects")


def test_effects_are_counted_in_order(ledger):
    assert ledger.counts() == {}
    ledger.record("b")
    ledger.record("a", 7, "b")
    assert ledger.ids() == ["b", "a", "7", "b"]
    assert ledger.counts() == {"a": 1, "b": 2, "7": 1}


def test_effects_of_several_processes_are_all_counted(ledger):
    program = "import sys; from tests.oracles.effects import EffectLedger as Ledger\n"
    program += "for n in range(300): Ledger(sys.argv[1]).record(f'{sys.argv[2]}-{n}')"
    command = [sys.executable, "-c", program, str(ledger.path)]
    processes = [subprocess.Popen([*command, name], cwd=ROOT) for name in "abc"]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    ledger.check_once(f"{name}-{n}" for name in "abc" for n in range(300))


def test_each_effect_once_passes(ledger):
    ledger.record(1, 2, 3)
    ledger.check_once(range(1, 4))
    ledger.check_at_least_once(range(1, 4))


def test_lost_doubled_and_unexpected_effects_are_named(ledger):
    ledger.record("a", "b", "b", "x")
    with pytest.raises(AssertionError, match=r"effects: lost: c, d; repeated: b \(2 times\); unexpected: x"):
        ledger.check_once(["a", "b", "c", "d"])
    with pytest.raises(AssertionError, match=r"effects: lost: c, d; unexpected: x"):
        ledger.check_at_least_once(["a", "b", "c", "d"])


def test_doubled_effects_pass_where_allowed(ledger):
    ledger.record("a", "b", "b")
    ledger.check_at_least_once(["a", "b"])
    with pytest.raises(AssertionError, match="repeated: b"):
        ledger.check_once(["a", "b"])


def test_ledger_without_effects_has_lost_all(ledger):
    with pytest.raises(AssertionError, match="lost: a"):
        ledger.check_once(["a"])


@pytest.mark.parametrize("effect_id", ["", "a b", "a\nb", " a"])
def test_id_with_white_space_is_rejected(ledger, effect_id):
    with pytest.raises(ValueError, match="without white space"):
        ledger.record(effect_id)
