"""`rows.table`: which sink a URL selects, and the error for an invalid argument."""

import subprocess
import sys

import pytest
from sqlalchemy import make_url

from redrive import rows
from redrive.rows.sinks.table_schema import TableName, quoted


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://u:secret@h/d", "PostgresTable"),
        ("postgresql+psycopg://u:secret@h/d", "PostgresTable"),
        ("postgresql+psycopg2://u:secret@h/d", "GenericTable"),
        ("sqlite:///x.db", "SqliteTable"),
        ("sqlite+pysqlite:////abs/x.db", "SqliteTable"),
        ("duckdb:///x.duckdb", "DuckdbTable"),
        ("mysql+pymysql://u:secret@h/d", "GenericTable"),
        (make_url("postgresql://u:secret@h/d"), "PostgresTable"),
    ],
)
def test_url_chooses_the_sink_without_opening_it(url, kind):
    sink = rows.table(url, "silver.deliveries", key="id")
    assert type(sink).__name__ == kind
    assert sink.key == ("id",)
    assert "secret" not in sink.name + repr(sink)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"url": "x.db"}, ValueError, r"the table's URL cannot be read; write postgresql://"),
        ({"url": "postgresql://u:secret@h:port/d"}, ValueError, r"the table's URL cannot be read"),
        ({"url": 5}, TypeError, r"the table's URL is a text, not int"),
        ({"url": "sqlite://"}, ValueError, r"a table in memory would be gone with the process"),
        ({"url": "duckdb:///:memory:"}, ValueError, r"name a file: duckdb:///path"),
        ({"name": ""}, ValueError, r"'' is no name of a table"),
        ({"name": "a.b.c"}, ValueError, r"'a.b.c' is no name of a table; write \"table\" or \"schema.table\""),
        ({"name": None}, TypeError, r"the table's name is a text, not NoneType"),
        ({"key": ()}, ValueError, r"key names the column or columns that identify a row, not \(\)"),
        ({"key": ""}, ValueError, r"key names the column"),
        ({"key": ["a", 5]}, ValueError, r"key names the column"),
        ({"key": ["a", "a"]}, ValueError, r"key names a column twice: a, a"),
        ({"key": 5}, ValueError, r"key names the column or columns that identify a row, not 5"),
        ({"create": "yes"}, TypeError, r"create is True or False, not 'yes'"),
        ({"patience": -1}, ValueError, r"patience is a number of seconds from 0 up, not -1"),
        ({"patience": True}, ValueError, r"patience is a number of seconds"),
        ({"patience": float("inf")}, ValueError, r"patience is a number of seconds"),
    ],
)
def test_invalid_argument_is_reported_at_once(arguments, error, sentence):
    given = {"url": "sqlite:///x.db", "name": "t", "key": "id"} | arguments
    with pytest.raises(error, match=sentence) as told:
        rows.table(given.pop("url"), given.pop("name"), **given)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "schema", "table"),
    [
        ("t", None, "t"),
        ("silver.t", "silver", "t"),
        ("Silver.Vendor Deliveries", "Silver", "Vendor Deliveries"),
        ('"a.b"', None, "a.b"),
        ('x."a.""b"', "x", 'a."b'),
        (" t ", None, "t"),
    ],
)
def test_table_is_named_with_or_without_its_schema(name, schema, table):
    found = TableName.parse(name)
    assert (found.schema, found.table) == (schema, table)
    assert found.sql == ".".join(quoted(part) for part in (schema, table) if part is not None)


@pytest.mark.process
@pytest.mark.parametrize("url", ["sqlite:///x.db", "postgresql://h/d"])
def test_sink_imports_no_other_database(url):
    code = f"import sys; from redrive import rows; rows.table({url!r}, 't', key='id'); print('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
