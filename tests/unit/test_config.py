"""Settings: where they come from, who wins, and what is said of those that cannot be used."""

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
        file=directory / "redrive.toml",
    )


def test_the_environment_says_everything_there_is_to_say(tmp_path):
    environ = {
        "REDRIVE_STORE": "sqlite:///x.db",
        "REDRIVE_STORE_MIGRATE": "yes",
        "REDRIVE_STORE_PATIENCE": "0.5",
        "REDRIVE_LETTERS_REDACT": "card_number, *.ssn,",
        "REDRIVE_LETTERS_STORE_REDACTED": "1",
    }
    assert load(environ=environ, directory=tmp_path) == Settings(
        store="sqlite:///x.db", migrate=True, patience=0.5, redact=("card_number", "*.ssn"), store_redacted=True
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


@pytest.mark.parametrize("url", ["/var/letters.db", "sqlite:////var/letters.db", "postgresql://u:p@h/d"])
def test_what_is_absolute_stays_as_it_is(write, url):
    assert load(environ={}, directory=write(f"[store]\nurl = {url!r}\n")).store == url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[store\n", "is not valid TOML: Expected ']'"),
        ("[stroe]\nurl = 'x'\n", r"has \[stroe\], which means nothing here; there are \[store\] and \[letters\]"),
        ("url = 'x'\n", r"has \[url\], which means nothing here"),
        ("store = 'x'\n", r"store must be a table, \[store\], not a single value"),
        ("[store]\nulr = 'x'\n", r"has store.ulr, which means nothing here; \[store\] has url, migrate, patience"),
        ("[store]\nurl = 3\n", "store.url must be a text"),
        ("[store]\nurl = ''\n", "store.url must be a text"),
        ("[store]\nmigrate = 'no'\n", "store.migrate must be true or false"),
        ("[store]\npatience = true\n", "store.patience must be a number of seconds from 0 to 86400"),
        ("[store]\npatience = -1\n", "store.patience must be a number of seconds"),
        ("[letters]\nredact = 'ssn'\n", "letters.redact must be a list of names of fields"),
        ("[letters]\nredact = ['ssn', 3]\n", "letters.redact must be a list of names of fields"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file_and_its_key(write, text, words):
    directory = write(text)
    with pytest.raises(ConfigError, match=words) as raised:
        load(environ={}, directory=directory)
    assert str(raised.value).startswith(str(directory / "redrive.toml"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("REDRIVE_STORE_MIGRATE", "perhaps", "must be true or false"),
        ("REDRIVE_STORE_PATIENCE", "long", "must be a number of seconds"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(tmp_path, variable, value, words):
    with pytest.raises(ConfigError, match=f"{variable} {words}"):
        load(environ={variable: value}, directory=tmp_path)


def test_the_password_of_a_url_is_never_in_an_error(write):
    with pytest.raises(ConfigError) as raised:
        load(environ={}, directory=write('[store]\nurl = ["postgresql://u:hunter2@h/d"]\n'))
    assert "hunter2" not in str(raised.value)


def test_a_file_that_is_no_text_is_said_to_be_no_toml(tmp_path):
    (tmp_path / "redrive.toml").write_bytes(b"[store]\nurl = '\xff'\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(environ={}, directory=tmp_path)


def test_a_directory_that_was_removed_has_no_file(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load(environ={}) == Settings()
