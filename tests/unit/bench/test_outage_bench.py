"""The benchmark of recovery runs and reports its figures as JSON."""

import json

KEYS = {
    "strategy",
    "asks_every_s",
    "normal_per_s",
    "peak_per_s",
    "peak_to_normal",
    "burst_to_normal",
    "asked_while_down",
    "all_served_after_s",
}


def test_each_strategy_has_its_row_and_a_figure_for_the_record(bench):
    document = json.loads(bench("outage.py", "--quick", "--json"))
    assert document["benchmark"] == "outage"
    assert len(document["rows"]) == 4
    assert all(row.keys() == KEYS and row["normal_per_s"] > 0 for row in document["rows"])
    [table] = document["record"]["tables"]
    assert {figure["row"] for figure in table["figures"]} == {row["strategy"] for row in document["rows"]}
    assert [target["limit"] for target in document["record"]["targets"]] == [2]
