"""The benchmark of recovery runs, and says what it measured in a form that can be read by a program."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench" / "outage.py"
KEYS = {
    "strategy",
    "normal_per_s",
    "peak_per_s",
    "peak_to_normal",
    "burst_to_normal",
    "asked_while_down",
    "all_served_after_s",
}


def test_each_strategy_has_its_row():
    command = [sys.executable, "-W", "error", BENCH, "--quick", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    document = json.loads(done.stdout)
    assert document["benchmark"] == "outage"
    assert len(document["rows"]) == 4
    assert all(row.keys() == KEYS and row["normal_per_s"] > 0 for row in document["rows"])
