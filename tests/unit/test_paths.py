"""Every path option rejects a URL before any file is created."""

from __future__ import annotations

from pathlib import Path

import pytest

import redrive
from redrive import rows
from redrive._internal.files import local_path
from redrive.observe.prometheus import write_textfile

URLS = ["s3://b/x", "gs://b/x", "abfss://c@a.dfs.core.windows.net/x", "hdfs://n/x", "file:///abs/x", "http://h/x"]

TAKES_A_PATH = {
    "csv": rows.csv,
    "ndjson": rows.ndjson,
    "parquet": rows.parquet,
    "csv of several": lambda path: rows.csv(["a.csv", path]),
    "parquet_dataset": lambda path: rows.parquet_dataset(path, key="id"),
    "table of SQLite": lambda path: rows.table(f"sqlite:///{path}", "t", key="id"),
    "table of DuckDB": lambda path: rows.table(f"duckdb:///{path}", "t", key="id"),
    "store of SQLite": lambda path: redrive.connect(f"sqlite:///{path}"),
    "results of a flow": lambda path: redrive.Flow("f", files=path),
    "metrics": lambda path: write_textfile(None, path),
}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("take", TAKES_A_PATH.values(), ids=TAKES_A_PATH)
@pytest.mark.parametrize("kind", [str, Path])
def test_path_with_a_scheme_is_rejected(tmp_path, monkeypatch, take, url, kind):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=rf"must be on this machine, not at {url.partition(':')[0]}://…: ") as error:
        take(kind(url))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_path_object_of_a_store_with_a_scheme_is_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(redrive.StoreError, match="must be on this machine"):
        redrive.connect(Path("s3://b/x"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["a.csv", "/abs/a.csv", "C:/a.csv", "day:1/a.csv", "in/s3://x", "./s3:/x", "a:b", ":/"]
)
def test_local_path_is_accepted_unchanged(path):
    assert local_path(path, "the file") == path


def test_bytes_are_no_path():
    with pytest.raises(TypeError, match="must be a path as text"):
        local_path(b"a.csv", "the file")
