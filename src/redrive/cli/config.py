"""`redrive config`: the settings in effect, and where each comes from."""

from __future__ import annotations

from redrive.cli.command import command, noun
from redrive.cli.output import Column
from redrive.cli.session import Session
from redrive.config import FILE, origins

app = noun("Show the settings and where each comes from.", bare="show")


@command(app)
def show(session: Session) -> None:
    """Print the settings file, and every setting with the line or the variable it comes from.

    Defaults are left out. Addresses of channels and of the heartbeat are masked.

    Examples: redrive config show; redrive config show --json
    """
    found, out = origins(), session.out
    file, problem = session.settings.file, session.problem()
    if out.json:
        listed = [setting._asdict() for setting in found]
        out.document({"file": None if file is None else str(file), "settings": listed, "problem": problem})
    else:
        out.table(_COLUMNS, [[setting.name, _shown(setting.value), setting.source] for setting in found])
        out.say(f"read {file}" if file else f"no {FILE} found; settings that are not listed have their defaults")
    if problem is not None:
        out.say(f"warning: other commands reject these settings: {problem}")


_COLUMNS = (Column(title="setting"), Column(title="value", least=20, wrap=True), Column(title="source", least=20))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
