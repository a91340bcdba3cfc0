"""A URL that would show part of its password is rejected where it is passed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import URL

import redrive
from redrive._internal.database_url import parse_url, wrong_path

AT = "the password in the URL has an unencoded '@'; write %40"
CUT = [
    "postgresql://etl:Pa55@secretA7@127.0.0.1:1/dw",
    "postgresql://etl:Pa55@secretA7:5@127.0.0.1:1/dw",
    "postgresql://etl:Pa55@x/secretA7@127.0.0.1/dw",
    "postgresql://etl:Pa55@x?secretA7@127.0.0.1/dw",
    "postgresql://etl:Pa55@x?a=secretA7@127.0.0.1/dw",
    "mysql+pymysql://etl:@secretA7@127.0.0.1/dw",
]
WAYS = {
    "store": redrive.connect,
    "sink": lambda url: redrive.rows.table(url, "t", key="id"),
    "source": lambda url: redrive.rows.query(url, "SELECT 1 AS id", watermark="id", key="id"),
}


class TestUnencodedPassword:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("url", CUT)
    def test_url_is_rejected_without_being_shown(self, way, url):
        with pytest.raises((ValueError, redrive.errors.StoreError)) as refused:
            WAYS[way](url)
        assert str(refused.value) == AT

    @pytest.mark.parametrize("way", ["sink", "source"])
    def test_parsed_url_with_password_in_host_is_rejected(self, way):
        url = URL.create("postgresql", "etl", "Pa55", "secretA7@127.0.0.1", 1, "dw")
        with pytest.raises(ValueError, match="unencoded '@'"):
            WAYS[way](url)

    def test_slash_in_the_user_is_rejected(self):
        with pytest.raises(ValueError, match="the user in the URL has an unencoded '/'; write %2F"):
            parse_url("postgresql://corp/etl:secretA7@h/dw", "the URL", "x")

    @given(
        password=st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1).filter(
            lambda password: "%" not in password and "+" not in password
        ),
    )
    def test_password_is_read_whole_or_rejected(self, password):
        url = f"postgresql://etl:{password}@127.0.0.1:1/dw"
        if "@" in password:
            with pytest.raises(ValueError, match=re.escape(AT)):
                parse_url(url, "the URL", "x")
        else:
            parsed = parse_url(url, "the URL", "x")
            assert (parsed.password, parsed.host, parsed.port) == (password, "127.0.0.1", 1)

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://etl:p%40ss@h/dw",
            "postgresql://etl@corp:secret@h/dw",
            "postgresql://etl@h/dw",
            "postgresql://h/my@dw",
            "postgresql://etl:a/b#c?d@h:1/dw",
            "postgresql://etl:x@h/dw?application_name=etl@host",
            "postgresql:///dw?host=/tmp&password=p@ss",
            "sqlite:////data/12:30@host/x.db",
            "duckdb:///C:/data/a@b.duckdb",
        ],
    )
    def test_url_that_is_read_whole_is_accepted(self, url):
        assert parse_url(url, "the URL", "x").drivername == url.partition(":")[0]


class TestPath:
    @pytest.mark.parametrize(
        "url", ["postgresql:/etl:secretA7@h/dw", "etl:secretA7@h/dw", "postgres//etl:a@h/dw", "etl:a/b@h", ":a@h"]
    )
    def test_incomplete_url_of_a_server_is_no_path(self, url):
        assert wrong_path(url, "X") == "it looks like a URL without its '://'; write X"

    @pytest.mark.parametrize(
        "path", ["x.db", "./12:30@host.db", "/data/12:30@host/x.db", "C:\\data\\x.db", "etl@host.db", "postgres/x.db"]
    )
    def test_path_is_a_path(self, path):
        assert wrong_path(path, "X") is None

    def test_file_that_is_there_is_a_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "12:30@host.db").touch()
        assert wrong_path("12:30@host.db", "X") is None
