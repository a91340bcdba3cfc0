"""The benchmark of the dead-letter queue runs and reports its figures as JSON and as tables."""

from __future__ import annotations

import json

import pytest

DATABASES = ["SQLite", "PostgreSQL"]
ABOUT = {"section", "database", "letters", "in_table"}
COMPARED = {"name", "ms", "by_hand_ms", "ratio", "spread"}
KEYS = {
    "put": ABOUT | {"name", "us_per_letter", "letters_per_s", "to_floor", "to_naive", "spread"},
    "stream": ABOUT | {"streamed", "us_per_letter", "peak_mb", "growth_mb"},
    "causes": ABOUT | COMPARED | {"causes", "counted"},
    "find": ABOUT | COMPARED,
    "work": ABOUT | {"name", "touched", "us_per_letter", "letters_per_s", "naive_us_per_letter", "ratio"},
}


@pytest.fixture(scope="module")
def run(bench, tmp_path_factory):
    """Run once, and return the tables and the JSON document."""
    written = tmp_path_factory.mktemp("letters") / "letters.json"
    printed = bench("letters.py", "--quick", "--json", written)
    return printed, json.loads(written.read_text())


@pytest.fixture(scope="module")
def document(run):
    return run[1]


def rows_of(document, section, database):
    return [row for row in document["rows"] if (row["section"], row["database"]) == (section, database)]


def test_document_has_environment_and_versions(document):
    assert document["benchmark"] == "letters"
    assert document["quick"] is True
    assert document["environment"].keys() == {"date", "machine", "python", "versions"}
    assert list(document["databases"]) == DATABASES
    assert all(document["databases"].values())


@pytest.mark.parametrize("section", KEYS)
@pytest.mark.parametrize("database", DATABASES)
def test_each_section_has_rows_with_the_same_keys(document, section, database):
    rows = rows_of(document, section, database)

    assert rows
    assert all(row.keys() == KEYS[section] for row in rows)


@pytest.mark.parametrize("database", DATABASES)
def test_put_is_compared_with_the_floor_and_the_naive_way(document, database):
    rows = {row["name"]: row for row in rows_of(document, "put", database)}

    assert rows.keys() == {"put_many", "making NewLetters", "put_many, all stored before", "floor", "naive"}
    assert rows["floor"]["to_floor"] == rows["naive"]["to_naive"] == 1
    assert all(row["us_per_letter"] > 0 for row in rows.values())


@pytest.mark.parametrize("database", DATABASES)
def test_causes_are_counted_for_today_and_earlier_days(document, database):
    counted = {row["name"]: row["counted"] for row in rows_of(document, "causes", database)}

    assert counted["today"] == 2_000
    assert 0 < counted["yesterday"] < 2_000
    assert counted["all time"] == 4_000


@pytest.mark.parametrize("database", DATABASES)
def test_letters_are_replayed_discarded_purged_and_moved(document, database):
    touched = {row["name"]: row["touched"] for row in rows_of(document, "work", database)}

    assert touched["purge"] == touched["replay"] + touched["discard"]
    assert touched["import"] == touched["export"] > 0


def test_headline_has_the_figures_with_targets(document):
    assert [end["database"] for end in document["headline"]] == DATABASES
    for end in document["headline"]:
        assert document["targets"].keys() < end.keys()


@pytest.mark.parametrize("database", DATABASES)
def test_record_compares_put_with_floor_and_queries_with_sql(document, database):
    tables = {table["title"]: table["figures"] for table in document["record"]["tables"]}
    put = {figure["row"]: figure for figure in tables[f"Putting letters, {database}"] if figure["name"] == "rate"}

    assert put["floor"]["ratios"]["of the floor"] == put["naive"]["ratios"]["× naive"] == 1
    assert any("× GROUP BY" in figure.get("ratios", {}) for figure in tables[f"Causes, {database}"])
    assert any(database in target["what"] for target in document["record"]["targets"])


def test_tables_fit_a_hundred_columns_and_end_with_targets(run):
    lines = run[0].rstrip().splitlines()

    assert max(map(len, lines)) <= 100
    assert any(line.startswith("SQLite, 2,000 letters: put_many at ") for line in lines[-6:])
    assert any(line.startswith("PostgreSQL, 2,000 letters: put_many at ") for line in lines[-3:])
