"""What every command is given: the settings, the store and the output."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli.exit_codes import CommandRefused
from redrive.cli.output import Output
from redrive.config import ConfigError, Settings, load
from redrive.config.located import Located
from redrive.config.value_kinds import YEAR, duration

if TYPE_CHECKING:
    from redrive.store.store import Store

# An operator at a terminal wants to know soon that a server is down; work that is under way has longer timeouts.
_PATIENCE_TO_CONNECT = 5.0

LARGEST_ID = (1 << 63) - 1
"""Greatest id that a database can store."""
MOST = 1_000_000_000
"""Greatest value of options that limit a number."""
Limit = Annotated[int, typer.Option(metavar="N", help="Maximum number of results.", min=1, max=MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """The options of every command; they may also precede the command."""

    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Store to use: postgresql://…, sqlite:///… or a path. [env: REDRIVE_STORE]"),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with full values.")] = False
    wide: Annotated[bool, typer.Option("--wide", help="Print tables in full width; cut and drop no column.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One execution of a command."""

    url: str | None
    out: Output
    words: tuple[str, ...] = ()
    """The command as it was typed."""
    settings: Settings = field(default_factory=Settings)
    invalid: ConfigError | None = None
    """The error of invalid settings; None if they are valid, or if the command requires valid ones."""

    @classmethod
    def of(cls, context: typer.Context, *, accept_invalid: bool = False) -> Session:
        """Return a session with the options of the command and of the groups it belongs to; the innermost counts.

        Args:
            accept_invalid: return a session without settings where they cannot be used, instead of raising.
        """
        url, as_json, wide = None, False, False
        here: typer.Context | None = context
        while here is not None:
            given = here.params.get("store")
            if given is not None and not given.strip():
                raise CommandRefused("--store is empty; name a file or a URL, or leave it out for the default")
            url = url or given
            as_json = as_json or bool(here.params.get("json"))
            wide = wide or bool(here.params.get("wide"))
            here = here.parent  # type: ignore[assignment]  # a parent is one of the same kind
        words = (context.obj or {}).get("words", ())
        session = cls(url=url, out=Output(as_json=as_json, wide=wide), words=tuple(words))
        try:
            return replace(session, settings=load(store=url))
        except ConfigError as error:
            if not accept_invalid:
                raise
            return replace(session, invalid=error)

    @contextmanager
    def opened(
        self, *, create: bool = False, migrate: bool | None = None, may_lack_secrets: bool = True
    ) -> Iterator[Store]:
        """The store. Only who puts letters in makes a new one: to ask in the wrong directory must leave no trace.

        Only a run needs the secrets of channels: the messages of a command wait for a process that has them.
        """
        from redrive.store.database import PATIENCE
        from redrive.store.store import open_store

        settings = self.settings
        _check_redaction(settings)
        if not create:
            _must_exist(settings.store)
        asked = replace(
            settings,
            migrate=settings.migrate if migrate is None else migrate,
            patience=_PATIENCE_TO_CONNECT if settings.patience is None else settings.patience,
        )
        with open_store(asked, may_lack_secrets=may_lack_secrets) as store:
            store.database.patience = PATIENCE if settings.patience is None else settings.patience
            yield store

    def problem(self) -> str | None:
        """Return why commands that open the store reject these settings; None where they do not."""
        from redrive.alerts.config.read import read

        try:
            _check_redaction(self.settings)
            read(self.settings, may_lack_secrets=True)
        except ConfigError as error:
            return str(error)
        return None

    @contextmanager
    def reopened(self, made: Any) -> Iterator[Store]:
        """Return the store in which a pipeline or a flow has just run."""
        if self.url is None:
            yield made.store
        else:
            with self.opened() as store:
                yield store

    def named(self, made: Any) -> str | None:
        """Return the store to name in a command about a pipeline or a flow; None if it is the default."""
        from redrive._internal.masking import mask
        from redrive.store.store import DEFAULT

        if self.url is not None:
            return self.url
        name: str = made.store.database.name
        usual = self.settings.store or DEFAULT
        return None if name in {usual, mask(usual), usual.removeprefix("sqlite:///")} else name

    @property
    def store_option(self) -> str:
        """Return the option by which a suggested command means the same store, with a space before it."""
        from redrive._internal.masking import mask

        return "" if self.url is None else f" --store {shlex.quote(mask(self.url))}"

    def results_of(self, store: Store) -> Path:
        """Return the directory of results and live output of flows."""
        return store.results if self.settings.result_files is None else Path(self.settings.result_files)

    def again_without(self, *options: str) -> str:
        """Return the command as it was typed, without some of its flags; see `again_with`."""
        left_out = [word for word in self.words if word in options]
        words = [word for word in self.words if word not in options]
        return _shown(words) or f"run the same command{' without ' if left_out else ' again'}{' '.join(left_out)}"

    def again_with(self, option: str, value: object = None) -> str:
        """Return the command as it was typed, with one more option.

        One with a secret in it is not shown but described: with a mask in its place, it would do something else.
        """
        words = [*self.words]
        while option in words:
            place = words.index(option)
            del words[place : place + (1 if value is None else 2)]
        words = [word for word in words if not word.startswith(f"{option}=")]
        added = [option, *([] if value is None else [str(value)])]
        return _shown([*words, *added]) or command_text(*added)


def command_text(*added: str) -> str:
    """Describe a command that cannot be printed: the typed one, with these words added."""
    return f"run the same command with {shlex.join(added)}"


def _shown(words: list[str]) -> str | None:
    """Return the command of these words, as a shell takes it; None if part of it would be masked."""
    from redrive._internal.masking import mask

    command = shlex.join(["redrive", *words])
    # Word by word, too: quotes of the shell may hide a secret's shape, or make one.
    return command if mask(command) == command and all(mask(word) == word for word in words) else None


def _check_redaction(settings: Settings) -> None:
    from redrive.dlq.redact import Redactor

    try:
        Redactor(settings.redact)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"letters.redact is not valid: {error}") from None


def _must_exist(url: str | None) -> None:
    from redrive._internal.database_url import STORE_FORMS, wrong_path
    from redrive.store.store import DEFAULT

    path = Path(DEFAULT) if not url else _sqlite_path(url)
    if path is None or path.exists():
        return
    if url and (wrong := wrong_path(url, STORE_FORMS)):
        raise CommandRefused(f"the store cannot be opened: {wrong}")
    here = Path.cwd()
    near = (
        next((place / DEFAULT for place in here.parents if os.path.exists(place / DEFAULT)), None) if not url else None
    )
    advice = (
        f"There is one at {near}: pass --store {near}"
        if near
        else "Change to the directory of your pipeline, or pass --store or set REDRIVE_STORE"
    )
    raise CommandRefused(f"there is no store at {path}. {advice}")


def _sqlite_path(url: str) -> Path | None:
    if "://" not in url:
        return Path(url)
    scheme, _, path = url.partition(":///")
    return Path(path.partition("?")[0]) if scheme.startswith("sqlite") and path else None


def seconds(option: str, text: str, *, most: float = YEAR) -> float:
    """Return a time span in seconds, parsed as in `redrive.toml`; a number without a unit is in seconds."""
    try:
        value: str | float = float(text)
    except ValueError:
        value = text
    return duration(Located(value, (option,)), most=most)
