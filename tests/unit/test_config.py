"""Settings: where they come from, which one wins, and the error for each invalid one."""

import os
import subprocess
import sys

import pytest

from redrive.config import ConfigError, Settings, find, load, origins
from redrive.config.located import ConfigFile, Located


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "redrive.toml").write_text(text)
        return tmp_path

    return write


EVERYTHING = """
[store]
url = "postgresql://redrive@db/prod"
migrate = false
patience = 12

[letters]
redact = ["card_number", " *.ssn "]
store_redacted = true

[retention]
letters = "30d"
runs = "90d"
files = "results"
"""


def test_settings_have_defaults_without_file_and_variables(tmp_path):
    assert load(environ={}, directory=tmp_path) == Settings()


def test_file_can_set_every_setting(write):
    directory = write(EVERYTHING)
    assert load(environ={}, directory=directory) == Settings(
        store="postgresql://redrive@db/prod",
        migrate=False,
        patience=12.0,
        redact=("card_number", "*.ssn"),
        store_redacted=True,
        keep_runs=90 * 86_400.0,
        keep_letters=30 * 86_400.0,
        result_files=str(directory / "results"),
        file=directory / "redrive.toml",
    )


def test_environment_can_set_every_setting(tmp_path):
    environ = {
        "REDRIVE_STORE": "sqlite:///x.db",
        "REDRIVE_STORE_MIGRATE": "yes",
        "REDRIVE_STORE_PATIENCE": "0.5",
        "REDRIVE_LETTERS_REDACT": "card_number, *.ssn,",
        "REDRIVE_LETTERS_STORE_REDACTED": "1",
        "REDRIVE_RETENTION_RUNS": "2w",
        "REDRIVE_RETENTION_LETTERS": "60d",
        "REDRIVE_RETENTION_FILES": "/mnt/results",
    }
    assert load(environ=environ, directory=tmp_path) == Settings(
        store="sqlite:///x.db",
        migrate=True,
        patience=0.5,
        redact=("card_number", "*.ssn"),
        store_redacted=True,
        keep_runs=14 * 86_400.0,
        keep_letters=60 * 86_400.0,
        result_files="/mnt/results",
    )


def test_argument_overrides_environment_overrides_file(write):
    directory = write(EVERYTHING)
    assert load(environ={}, directory=directory).store == "postgresql://redrive@db/prod"
    environ = {"REDRIVE_STORE": "sqlite:///environment.db"}
    assert load(environ=environ, directory=directory).store == "sqlite:///environment.db"
    assert load(environ=environ, directory=directory, store="argument.db").store == "argument.db"
    assert load(environ=environ, directory=directory, store=None).store == "sqlite:///environment.db"


def test_empty_variable_is_ignored(write):
    assert load(environ={"REDRIVE_STORE": " "}, directory=write(EVERYTHING)).store == "postgresql://redrive@db/prod"


def test_process_variables_count_unless_others_are_passed(tmp_path, monkeypatch):
    monkeypatch.setenv("REDRIVE_STORE", "from-the-process.db")
    assert load(directory=tmp_path).store == "from-the-process.db"


def test_nearest_file_in_a_parent_directory_is_used(tmp_path):
    below = tmp_path / "jobs" / "vendor"
    below.mkdir(parents=True)
    (tmp_path / "redrive.toml").write_text("[letters]\nredact = ['far']\n")
    assert find(below) == tmp_path / "redrive.toml"
    (tmp_path / "jobs" / "redrive.toml").write_text("[letters]\nredact = ['near']\n")
    assert load(environ={}, directory=below).redact == ("near",)


def test_directory_of_that_name_is_not_the_file(tmp_path):
    (tmp_path / "redrive.toml").mkdir()
    assert find(tmp_path) is None or find(tmp_path).parent != tmp_path


@pytest.mark.parametrize("url", ["data/letters.db", "sqlite:///data/letters.db"])
def test_relative_path_is_relative_to_the_file(tmp_path, url):
    below = tmp_path / "jobs"
    below.mkdir()
    (tmp_path / "redrive.toml").write_text(f"[store]\nurl = {url!r}\n")
    assert load(environ={}, directory=below).store.removeprefix("sqlite:///") == str(tmp_path / "data" / "letters.db")


@pytest.mark.parametrize(
    "url",
    ["/var/letters.db", "sqlite:////var/letters.db", "postgresql://u:p@h/d", ":memory:", "sqlite:///:memory:"],
)
def test_absolute_path_is_unchanged(write, url):
    assert load(environ={}, directory=write(f"[store]\nurl = {url!r}\n")).store == url


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[store\n", 1, "this is not valid TOML: Expected ']' at the end of a table declaration"),
        ("[store]\nurl = 'x\n", 2, 'this is not valid TOML: Expected "\'"'),
        ("[letters]\nredact = [\n", 2, "this is not valid TOML: Invalid value"),
        ("[store]\nurl = 'x'\nurl = 'y'\n", 3, "this is not valid TOML: Cannot overwrite a value"),
        ("\n[stroe]\nurl = 'x'\n", 2, "stroe is not a setting; did you mean 'store'?"),
        (
            "url = 'x'\n",
            1,
            "url is not a setting; there are [store], [letters], [retention], [alerts], [channels], [routes], "
            "[pipelines], [tables], [conditions], [maintenance] and [services]",
        ),
        ("store = 'x'\n", 1, "store must be a table, [store], not a single value"),
        ("[[store]]\nurl = 'x'\n", 1, "store must be a table, [store], not a list"),
        ("[store]\n\nulr = 'x'\n", 3, "store.ulr is not a setting; did you mean 'url'?"),
        ("[store]\nzzz = 'x'\n", 2, "store.zzz is not a setting; store has url, migrate and patience"),
        ("[store]\nurl = 3\n", 2, "store.url must be a text"),
        ("[store]\nurl = ''\n", 2, "store.url must be a text"),
        ("[store]\n# a comment\nmigrate = 'no'\n", 3, "store.migrate must be true or false"),
        (
            "[store]\npatience = true\n",
            2,
            'store.patience must be a span such as "90s", "5min" or "1h", or a number of seconds',
        ),
        ("[store]\npatience = -1\n", 2, "store.patience must be 0 seconds or more"),
        ("[store]\npatience = '25h'\n", 2, "store.patience must be at most a day"),
        ("[letters]\nredact = 'ssn'\n", 2, "letters.redact must be a list of names of fields"),
        ("[retention]\nruns = '12h'\n", 2, 'retention.runs must be at least a day, such as "90d"'),
        ("[retention]\nruns = '11000d'\n", 2, "retention.runs must be at most ten years"),
        ("[retention]\nruns = 'never'\n", 2, 'retention.runs must be a span such as "90s"'),
        ("[retention]\nletters = '1h'\n", 2, 'retention.letters must be at least a day, such as "90d"'),
        (
            "[retention]\nqueue = '90d'\n",
            2,
            "retention.queue is not a setting; retention has runs, letters and files",
        ),
        ("[letters]\nredact = [\n'ssn',\n3]\n", 2, "letters.redact must be a list of names of fields"),
    ],
)
def test_invalid_setting_is_reported_with_file_line_and_key(write, text, line, says):
    directory = write(text)
    with pytest.raises(ConfigError) as raised:
        load(environ={}, directory=directory)
    assert str(raised.value).startswith(f"{directory / 'redrive.toml'}, line {line}: {says}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("REDRIVE_STORE_MIGRATE", "perhaps", "must be true or false"),
        ("REDRIVE_STORE_PATIENCE", "long", "must be a span such as .* not 'long'"),
        ("REDRIVE_ALERTS", "perhaps", "must be true or false"),
    ],
)
def test_invalid_variable_is_named(tmp_path, variable, value, words):
    with pytest.raises(ConfigError, match=f"^{variable} {words}"):
        load(environ={variable: value}, directory=tmp_path)


@pytest.mark.parametrize(("word", "on"), [("off", False), ("0", False), ("False", False), ("on", True), ("", None)])
def test_environment_may_turn_alerts_off(tmp_path, word, on):
    assert load(environ={"REDRIVE_ALERTS": word}, directory=tmp_path).alerts_on is on


def test_duration_may_have_units(write):
    assert load(environ={}, directory=write("[store]\npatience = '1min 30s'\n")).patience == 90
    assert load(environ={"REDRIVE_STORE_PATIENCE": "2min"}, directory=write("")).patience == 120


# ── variables in the URL of the store ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "means"),
    [
        ("$DATABASE_URL", "postgresql://u:a$b@h/d"),
        ("postgresql://u:${PASSWORD}@h/d", "postgresql://u:hunter2@h/d"),
        ("postgresql://u:$PASSWORD@h/d", "postgresql://u:hunter2@h/d"),
        ("postgresql://u:a$$b@h/d", "postgresql://u:a$b@h/d"),
    ],
)
def test_url_of_the_store_may_contain_variables(write, url, means):
    environ = {"DATABASE_URL": "postgresql://u:a$b@h/d\n", "PASSWORD": "hunter2"}
    assert load(environ=environ, directory=write(f"[store]\nurl = '{url}'\n")).store == means


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("$DATABASE_URL", "store.url names the variable DATABASE_URL, which is not set; set it"),
        ("${EMPTY}", "store.url names the variable EMPTY, which is not set; set it"),
        ("postgresql://u:a$@h/d", "store.url has a $ that names no variable; write $NAME, or $$ for a dollar sign"),
        ("postgresql://u:a$1@h/d", "store.url has a $ that names no variable; write $NAME, or $$ for a dollar sign"),
        ("${}", "store.url has a $ that names no variable; write $NAME, or $$ for a dollar sign"),
    ],
)
def test_variable_without_a_value_is_named_with_its_key(write, url, says):
    directory = write(f"\n[store]\nurl = '{url}'\n")
    with pytest.raises(ConfigError) as raised:
        load(environ={"EMPTY": " "}, directory=directory)
    assert str(raised.value) == f"{directory / 'redrive.toml'}, line 3: {says}"


def test_variable_may_be_missing_where_another_store_is_passed(write):
    directory = write("[store]\nurl = '$DATABASE_URL'\n")
    assert load(environ={}, directory=directory, store="x.db").store == "x.db"
    assert load(environ={"REDRIVE_STORE": "y.db"}, directory=directory).store == "y.db"


# ── the file itself ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_password_of_a_url_is_never_in_an_error(write):
    with pytest.raises(ConfigError) as raised:
        load(environ={}, directory=write('[store]\nurl = ["postgresql://u:hunter2@h/d"]\n'))
    assert "hunter2" not in str(raised.value)


def test_binary_file_is_reported_as_invalid_toml(tmp_path):
    (tmp_path / "redrive.toml").write_bytes(b"[store]\nurl = '\xff'\n")
    with pytest.raises(ConfigError, match="line 2: this is not valid TOML: there is a byte that is not UTF-8"):
        load(environ={}, directory=tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("store = " + "[" * 5_000 + "]" * 5_000, "is not valid TOML: it is nested too deeply"),
        ("store = 1" + "0" * 5_000, "is not valid TOML: Exceeds the limit"),
    ],
)
def test_file_that_python_cannot_read_is_one_sentence(write, text, says):
    with pytest.raises(ConfigError, match=says):
        load(environ={}, directory=write(text))


def test_deeply_nested_value_has_its_line(write):
    with pytest.raises(ConfigError, match="line 2: store must be a table"):
        load(environ={}, directory=write("\nstore = " + "[" * 200 + "]" * 200))


def test_windows_line_ends_and_bom_are_accepted(tmp_path):
    (tmp_path / "redrive.toml").write_bytes(b"\xef\xbb\xbf[store]\r\npatience = 3\r\nmigrate = 3\r\n")
    with pytest.raises(ConfigError, match=r"line 3: store\.migrate"):
        load(environ={}, directory=tmp_path)


def test_unreadable_file_is_named(write, monkeypatch):
    directory = write("")

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)  # root may read everything
    with pytest.raises(ConfigError, match=r"redrive\.toml cannot be read: Permission denied"):
        load(environ={}, directory=directory)


def test_address_in_place_of_a_key_is_in_no_error(write):
    with pytest.raises(ConfigError) as raised:
        load(environ={}, directory=write("[letters]\n'https://h/hunter2' = 1\n"))
    assert "hunter2" not in str(raised.value)


def test_printed_settings_show_no_address_of_a_channel(write):
    directory = write("[channels.team]\nslack = 'https://hooks.example/hunter2'\n")
    assert "hunter2" not in repr(load(environ={}, directory=directory))


@pytest.mark.process
@pytest.mark.bare
def test_missing_file_imports_no_file_parsers(tmp_path):
    program = (
        "import sys; from redrive.config import load; load();"
        "print(*[name for name in ('tomllib', 'zoneinfo', 'difflib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_removed_directory_has_no_file(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load(environ={}) == Settings()


# ── files of strangers ────────────────────────────────────────────────────────────────────────────────────────────────


NOBODY = 65_534
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


class TestFileOwner:
    @as_root
    def test_file_of_another_user_is_rejected(self, write):
        directory = write("[channels.x]\ncommand = ['evil.sh']\n")
        os.chown(directory / "redrive.toml", NOBODY, NOBODY)
        below = directory / "victim"
        below.mkdir()
        with pytest.raises(ConfigError, match=r"belongs to the user .*REDRIVE_CONFIG="):
            load(environ={}, directory=below)

    @as_root
    def test_file_in_a_directory_of_another_user_is_rejected(self, write):
        directory = write("")
        os.chown(directory, NOBODY, NOBODY)
        with pytest.raises(ConfigError, match="is not read, because"):
            load(environ={}, directory=directory)

    @as_root
    def test_file_of_the_sudo_user_is_read(self, write):
        directory = write("[letters]\nredact = ['a']\n")
        os.chown(directory / "redrive.toml", NOBODY, NOBODY)
        assert load(environ={"SUDO_UID": str(NOBODY)}, directory=directory).redact == ("a",)

    @pytest.mark.parametrize("hops", [1, 2])
    def test_link_through_a_world_writable_directory_is_rejected(self, write, tmp_path, hops):
        directory, shared, safe = write(""), tmp_path / "shared", tmp_path / "safe"
        shared.mkdir()
        safe.mkdir()
        (directory / "redrive.toml").unlink()
        (safe / "real.toml").write_text("")
        if hops == 1:
            (shared / "its.toml").write_text("")
        else:
            (shared / "its.toml").symlink_to("../safe/real.toml")
        (directory / "redrive.toml").symlink_to(shared / "its.toml")
        assert load(environ={}, directory=directory).file == directory / "redrive.toml"
        shared.chmod(0o777)
        with pytest.raises(ConfigError, match="shared can be written by every user"):
            load(environ={}, directory=directory)

    @pytest.mark.parametrize("what", ["file", "directory"])
    def test_world_writable_file_is_rejected(self, write, what):
        directory = write("")
        (directory / "redrive.toml" if what == "file" else directory).chmod(0o777)
        with pytest.raises(ConfigError, match="can be written by every user"):
            load(environ={}, directory=directory)

    def test_own_file_in_a_sticky_directory_is_read(self, write):
        directory = write("[letters]\nredact = ['a']\n")
        directory.chmod(0o1777)
        assert load(environ={}, directory=directory).redact == ("a",)

    @as_root
    def test_link_to_a_file_of_another_user_is_rejected(self, tmp_path):
        (tmp_path / "foreign.toml").write_text("")
        os.chown(tmp_path / "foreign.toml", NOBODY, NOBODY)
        (tmp_path / "redrive.toml").symlink_to("foreign.toml")
        with pytest.raises(ConfigError, match="belongs to the user"):
            load(environ={}, directory=tmp_path)

    @as_root
    def test_named_file_of_another_user_is_read(self, write, tmp_path_factory):
        directory = write("[letters]\nredact = ['a']\n")
        os.chown(directory / "redrive.toml", NOBODY, NOBODY)
        named = {"REDRIVE_CONFIG": str(directory / "redrive.toml")}
        assert load(environ=named, directory=tmp_path_factory.mktemp("other")).redact == ("a",)
        assert load(environ={"REDRIVE_CONFIG": "/dev/null"}, directory=directory).redact == ()

    def test_named_missing_file_is_rejected(self, tmp_path):
        with pytest.raises(ConfigError, match=r"REDRIVE_CONFIG names .*, which does not exist"):
            load(environ={"REDRIVE_CONFIG": str(tmp_path / "no.toml")}, directory=tmp_path)


class TestFileSearch:
    @pytest.fixture(params=["git", "home"])
    def end(self, request, tmp_path, monkeypatch):
        end = tmp_path / "end"
        (end / "below").mkdir(parents=True)
        if request.param == "git":
            (end / ".git").mkdir()
        else:
            monkeypatch.setenv("HOME", str(end))
        return end

    def test_file_above_is_ignored_and_reported(self, end, caplog):
        (end.parent / "redrive.toml").write_text("")
        assert find(end / "below") is None
        assert "is not used: the search ends at" in caplog.text

    def test_file_at_the_end_is_used(self, end):
        (end / "redrive.toml").write_text("")
        assert find(end / "below") == end / "redrive.toml"


class TestUrlVariables:
    @pytest.mark.parametrize(
        ("template", "value", "filled"),
        [
            ("postgresql://bob:${V}@db/x", "p@ss", "postgresql://bob:p%40ss@db/x"),
            ("postgresql://bob:$V@db/x", "x@10.255.255.1:1/y", "postgresql://bob:x%4010.255.255.1%3A1%2Fy@db/x"),
            ("postgresql://bob:$V@db/x", "a b%", "postgresql://bob:a%20b%25@db/x"),
            ("postgresql://bob:$V@db/x", "p%40ss", "postgresql://bob:p%40ss@db/x"),  # encoded by hand
            ("postgresql://$V:x@db/x", "bob@corp", "postgresql://bob%40corp:x@db/x"),
            ("postgresql://$V@db/x", "bob:p@ss", "postgresql://bob:p%40ss@db/x"),
            ("postgresql://bob@$V/x", "db1:5432,db2:5432", "postgresql://bob@db1:5432,db2:5432/x"),
            ("postgresql://$V", "bob:x@db/x", "postgresql://bob:x@db/x"),
            ("https://h/v2?routing_key=$V&a=1", "a&b=c#d", "https://h/v2?routing_key=a%26b%3Dc%23d&a=1"),
            ("https://h/services/$V", "T0/B0/x", "https://h/services/T0/B0/x"),
            ("$V", "postgresql://bob:p%40ss@db/x", "postgresql://bob:p%40ss@db/x"),
            ("data/$V.db", "a@b", "data/a@b.db"),
        ],
    )
    def test_value_is_encoded_by_its_part(self, tmp_path, template, value, filled):
        at = Located(template, ("store", "url"), ConfigFile(tmp_path / "redrive.toml", "", {"V": value}))
        assert at.filled().value == filled


def test_origins_name_lines_and_variables(write):
    directory = write(
        "[store]\nurl = 'postgresql://bob:hunter2hunter2@db/x'\n[letters]\nredact = ['a']\n"
        "[channels.pager]\npagerduty = '$PD'\n[channels.team]\nslack = 'https://hooks.slack.com/services/x'\n"
    )
    found = origins(environ={"REDRIVE_LETTERS_REDACT": "b"}, directory=directory)
    file = directory / "redrive.toml"
    assert [tuple(one) for one in found] == [
        ("store.url", "postgresql://bob:***@db/x", f"{file}, line 2"),
        ("letters.redact", "b", "REDRIVE_LETTERS_REDACT"),
        ("channels.pager.pagerduty", "$PD", f"{file}, line 6 (PD not set)"),
        ("channels.team.slack", "…", f"{file}, line 8"),
    ]
