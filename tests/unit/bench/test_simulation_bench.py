"""The simulations run by their commands, and their figures are compared with targets for jitter."""

from __future__ import annotations

import json


def test_contention_and_herd_have_tables_and_targets(bench):
    document = json.loads(bench("simulation.py", "--quick", "--json"))
    contended, returned, taken = document["record"]["tables"]

    times = {figure["row"]: figure["ratios"] for figure in contended["figures"] if figure["name"] == "time"}
    assert times["exponential"] == {"time ÷ exponential": 1}
    assert {"none", "equal", "full", "decorrelated"} < times.keys()
    assert {figure["name"] for figure in returned["figures"]} == {"normal", "peak", "recovered", "lost", "probes"}
    assert all(figure["value"] > 0 for figure in taken["figures"])
    assert [target["limit"] for target in document["record"]["targets"]] == [0.5, 0.5, 0.5, 3, 0.1]
