"""Settings: where they come from, who wins, and what is said of those that cannot be used."""

import subprocess
import sys

import pytest

from redrive.config import ConfigError, Settings, find, load


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
        "REDRIVE_RETENTION_FILES": "/mnt/results",
    }
    assert load(environ=environ, directory=tmp_path) == Settings(
        store="sqlite:///x.db",
        migrate=True,
        patience=0.5,
        redact=("card_number", "*.ssn"),
        store_redacted=True,
        keep_runs=14 * 86_400.0,
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
        ("\n[stroe]\nurl = 'x'\n", 2, "stroe means nothing here; did you mean 'store'?"),
        (
            "url = 'x'\n",
            1,
            "url means nothing here; there are [store], [letters], [retention], [alerts], [channels], [routes], "
            "[pipelines] and [tables]",
        ),
        ("store = 'x'\n", 1, "store must be a table, [store], not a single value"),
        ("[[store]]\nurl = 'x'\n", 1, "store must be a table, [store], not a list"),
        ("[store]\n\nulr = 'x'\n", 3, "store.ulr means nothing here; did you mean 'url'?"),
        ("[store]\nzzz = 'x'\n", 2, "store.zzz means nothing here; store has url, migrate and patience"),
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
        ("[retention]\nletters = '90d'\n", 2, "retention.letters means nothing here; retention has runs and files"),
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
