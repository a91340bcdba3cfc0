"""Settings: where they come from, who wins, and what is said of those that cannot be used."""

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


def test_without_a_file_and_without_variables_everything_has_its_default(tmp_path):
    assert load(environ={}, directory=tmp_path) == Settings()


def test_a_file_says_everything_there_is_to_say(write):
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


def test_the_environment_says_everything_there_is_to_say(tmp_path):
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


def test_an_argument_wins_over_the_environment_and_that_over_the_file(write):
    directory = write(EVERYTHING)
    assert load(environ={}, directory=directory).store == "postgresql://redrive@db/prod"
    environ = {"REDRIVE_STORE": "sqlite:///environment.db"}
    assert load(environ=environ, directory=directory).store == "sqlite:///environment.db"
    assert load(environ=environ, directory=directory, store="argument.db").store == "argument.db"
    assert load(environ=environ, directory=directory, store=None).store == "sqlite:///environment.db"


def test_a_variable_that_is_empty_says_nothing(write):
    assert load(environ={"REDRIVE_STORE": " "}, directory=write(EVERYTHING)).store == "postgresql://redrive@db/prod"


def test_the_variables_of_the_process_count_unless_others_are_given(tmp_path, monkeypatch):
    monkeypatch.setenv("REDRIVE_STORE", "from-the-process.db")
    assert load(directory=tmp_path).store == "from-the-process.db"


def test_the_file_is_found_in_a_parent_and_the_nearest_counts(tmp_path):
    below = tmp_path / "jobs" / "vendor"
    below.mkdir(parents=True)
    (tmp_path / "redrive.toml").write_text("[letters]\nredact = ['far']\n")
    assert find(below) == tmp_path / "redrive.toml"
    (tmp_path / "jobs" / "redrive.toml").write_text("[letters]\nredact = ['near']\n")
    assert load(environ={}, directory=below).redact == ("near",)


def test_a_directory_of_that_name_is_not_the_file(tmp_path):
    (tmp_path / "redrive.toml").mkdir()
    assert find(tmp_path) is None or find(tmp_path).parent != tmp_path


@pytest.mark.parametrize("url", ["data/letters.db", "sqlite:///data/letters.db"])
def test_a_relative_path_means_the_same_from_every_directory_below_the_file(tmp_path, url):
    below = tmp_path / "jobs"
    below.mkdir()
    (tmp_path / "redrive.toml").write_text(f"[store]\nurl = {url!r}\n")
    assert load(environ={}, directory=below).store.removeprefix("sqlite:///") == str(tmp_path / "data" / "letters.db")


@pytest.mark.parametrize(
    "url",
    ["/var/letters.db", "sqlite:////var/letters.db", "postgresql://u:p@h/d", ":memory:", "sqlite:///:memory:"],
)
def test_what_is_absolute_stays_as_it_is(write, url):
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
def test_what_cannot_be_used_is_named_with_its_file_its_line_and_its_key(write, text, line, says):
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
def test_a_variable_that_cannot_be_used_is_named(tmp_path, variable, value, words):
    with pytest.raises(ConfigError, match=f"^{variable} {words}"):
        load(environ={variable: value}, directory=tmp_path)


@pytest.mark.parametrize(("word", "on"), [("off", False), ("0", False), ("False", False), ("on", True), ("", None)])
def test_the_environment_may_turn_alerts_off(tmp_path, word, on):
    assert load(environ={"REDRIVE_ALERTS": word}, directory=tmp_path).alerts_on is on


def test_a_span_may_be_said_in_words(write):
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
def test_the_url_of_the_store_may_name_variables(write, url, means):
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
def test_a_variable_without_a_value_is_named_with_its_key(write, url, says):
    directory = write(f"\n[store]\nurl = '{url}'\n")
    with pytest.raises(ConfigError) as raised:
        load(environ={"EMPTY": " "}, directory=directory)
    assert str(raised.value) == f"{directory / 'redrive.toml'}, line 3: {says}"


def test_a_variable_may_be_missing_where_another_store_is_given(write):
    directory = write("[store]\nurl = '$DATABASE_URL'\n")
    assert load(environ={}, directory=directory, store="x.db").store == "x.db"
    assert load(environ={"REDRIVE_STORE": "y.db"}, directory=directory).store == "y.db"


# ── the file itself ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_password_of_a_url_is_never_in_an_error(write):
    with pytest.raises(ConfigError) as raised:
        load(environ={}, directory=write('[store]\nurl = ["postgresql://u:hunter2@h/d"]\n'))
    assert "hunter2" not in str(raised.value)


def test_a_file_that_is_no_text_is_said_to_be_no_toml(tmp_path):
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
def test_a_file_that_python_cannot_read_is_a_sentence_as_well(write, text, says):
    with pytest.raises(ConfigError, match=says):
        load(environ={}, directory=write(text))


def test_a_value_that_is_nested_deeply_still_has_its_line(write):
    with pytest.raises(ConfigError, match="line 2: store must be a table"):
        load(environ={}, directory=write("\nstore = " + "[" * 200 + "]" * 200))


def test_what_an_editor_on_windows_puts_in_does_no_harm(tmp_path):
    (tmp_path / "redrive.toml").write_bytes(b"\xef\xbb\xbf[store]\r\npatience = 3\r\nmigrate = 3\r\n")
    with pytest.raises(ConfigError, match=r"line 3: store\.migrate"):
        load(environ={}, directory=tmp_path)


def test_a_file_that_may_not_be_read_is_named(write, monkeypatch):
    directory = write("")

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)  # root may read everything
    with pytest.raises(ConfigError, match=r"redrive\.toml cannot be read: Permission denied"):
        load(environ={}, directory=directory)


def test_an_address_where_a_key_belongs_is_in_no_error(write):
    with pytest.raises(ConfigError) as raised:
        load(environ={}, directory=write("[letters]\n'https://h/hunter2' = 1\n"))
    assert "hunter2" not in str(raised.value)


def test_settings_that_are_printed_show_no_address_of_a_channel(write):
    directory = write("[channels.team]\nslack = 'https://hooks.example/hunter2'\n")
    assert "hunter2" not in repr(load(environ={}, directory=directory))


@pytest.mark.process
@pytest.mark.bare
def test_without_a_file_nothing_is_loaded_that_only_a_file_needs(tmp_path):
    program = (
        "import sys; from redrive.config import load; load();"
        "print(*[name for name in ('tomllib', 'zoneinfo', 'difflib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_directory_that_was_removed_has_no_file(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load(environ={}) == Settings()


# ── files of strangers ────────────────────────────────────────────────────────────────────────────────────────────────


NOBODY = 65_534
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


class TestFileOfAStranger:
    @as_root
    def test_file_of_another_user_is_refused(self, write):
        directory = write("[channels.x]\ncommand = ['evil.sh']\n")
        os.chown(directory / "redrive.toml", NOBODY, NOBODY)
        below = directory / "victim"
        below.mkdir()
        with pytest.raises(ConfigError, match=r"belongs to the user .*REDRIVE_CONFIG="):
            load(environ={}, directory=below)

    @as_root
    def test_file_in_a_directory_of_another_user_is_refused(self, write):
        directory = write("")
        os.chown(directory, NOBODY, NOBODY)
        with pytest.raises(ConfigError, match="is not read, because"):
            load(environ={}, directory=directory)

    @as_root
    def test_file_of_who_called_sudo_is_read(self, write):
        directory = write("[letters]\nredact = ['a']\n")
        os.chown(directory / "redrive.toml", NOBODY, NOBODY)
        assert load(environ={"SUDO_UID": str(NOBODY)}, directory=directory).redact == ("a",)

    @pytest.mark.parametrize("hops", [1, 2])
    def test_link_through_a_directory_that_every_user_can_write_is_rejected(self, write, tmp_path, hops):
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
    def test_what_every_user_can_write_is_refused(self, write, what):
        directory = write("")
        (directory / "redrive.toml" if what == "file" else directory).chmod(0o777)
        with pytest.raises(ConfigError, match="can be written by every user"):
            load(environ={}, directory=directory)

    def test_own_file_in_a_sticky_directory_is_read(self, write):
        directory = write("[letters]\nredact = ['a']\n")
        directory.chmod(0o1777)
        assert load(environ={}, directory=directory).redact == ("a",)

    @as_root
    def test_link_to_a_file_of_another_user_is_refused(self, tmp_path):
        (tmp_path / "foreign.toml").write_text("")
        os.chown(tmp_path / "foreign.toml", NOBODY, NOBODY)
        (tmp_path / "redrive.toml").symlink_to("foreign.toml")
        with pytest.raises(ConfigError, match="belongs to the user"):
            load(environ={}, directory=tmp_path)

    @as_root
    def test_file_that_is_named_is_read_whosever_it_is(self, write, tmp_path_factory):
        directory = write("[letters]\nredact = ['a']\n")
        os.chown(directory / "redrive.toml", NOBODY, NOBODY)
        named = {"REDRIVE_CONFIG": str(directory / "redrive.toml")}
        assert load(environ=named, directory=tmp_path_factory.mktemp("other")).redact == ("a",)
        assert load(environ={"REDRIVE_CONFIG": "/dev/null"}, directory=directory).redact == ()

    def test_file_that_is_named_and_missing_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match=r"REDRIVE_CONFIG names .*, which does not exist"):
            load(environ={"REDRIVE_CONFIG": str(tmp_path / "no.toml")}, directory=tmp_path)


class TestEndOfTheSearch:
    @pytest.fixture(params=["git", "home"])
    def end(self, request, tmp_path, monkeypatch):
        end = tmp_path / "end"
        (end / "below").mkdir(parents=True)
        if request.param == "git":
            (end / ".git").mkdir()
        else:
            monkeypatch.setenv("HOME", str(end))
        return end

    def test_file_above_is_not_used_and_that_is_said(self, end, caplog):
        (end.parent / "redrive.toml").write_text("")
        assert find(end / "below") is None
        assert "is not used: the search ends at" in caplog.text

    def test_file_at_the_end_is_used(self, end):
        (end / "redrive.toml").write_text("")
        assert find(end / "below") == end / "redrive.toml"


class TestVariableInAUrl:
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
