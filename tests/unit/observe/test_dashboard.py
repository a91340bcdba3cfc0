"""The files that `redrive observe` prints use only metrics of a real scrape."""

import json
import re

import pytest
from typer.testing import CliRunner

import redrive
from redrive.cli.app import app
from redrive.observe import prometheus
from redrive.observe.grafana import dashboard, known_metrics, rules


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """The metric types of a real scrape, by name."""
    with redrive.connect(tmp_path_factory.mktemp("scrape") / "store.db") as store:
        text = prometheus.render(store).decode()
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def printed(*words):
    answer = CliRunner().invoke(app, ["observe", *words])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def metrics_in(expression):
    return re.findall(r"\bredrive_\w+", expression)


class TestGrafana:
    def test_uses_only_metrics_of_a_scrape(self, scraped):
        for panel in dashboard()["panels"]:
            for target in panel.get("targets", ()):
                (name,) = metrics_in(target["expr"])
                assert name.removesuffix("_bucket") in scraped, name

    def test_has_one_panel_for_each_metric(self):
        panels = [one for one in dashboard()["panels"] if one["type"] != "row"]
        assert len(panels) == len(known_metrics())
        assert len({one["id"] for one in dashboard()["panels"]}) == len(dashboard()["panels"])

    def test_panels_do_not_overlap(self):
        taken = set()
        for panel in dashboard()["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert taken.isdisjoint(cells), panel["title"]
            taken |= cells

    def test_counts_are_rates_and_times_are_ages(self):
        asked = {one["title"]: one["targets"][0]["expr"] for one in dashboard()["panels"] if "targets" in one}
        assert asked["service calls"] == "sum by (service) (rate(redrive_service_calls_total[5m]))"
        age = "time() - redrive_pipeline_last_success_timestamp_seconds"
        assert asked["pipeline last success timestamp seconds"] == age

    def test_is_printed_as_json(self):
        assert json.loads(printed("grafana")) == dashboard()


class TestRules:
    def test_use_only_metrics_of_a_scrape(self, scraped):
        (group,) = rules()["groups"]
        for rule in group["rules"]:
            (name,) = metrics_in(rule["expr"])
            assert name in scraped

    def test_are_printed_as_yaml(self):
        yaml = pytest.importorskip("yaml")
        assert yaml.safe_load(printed("rules")) == rules()
        assert json.loads(printed("rules", "--json")) == rules()
