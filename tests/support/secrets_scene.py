"""The scene of `leaky_work`: databases with passwords, a service that echoes requests, receivers of alerts."""

import contextlib
import json
import os
import pty
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psycopg

import redrive
from redrive.testing import Answer, FaultyServer
from tests.support import planted_secrets as planted
from tests.support.warm_python import warm_python

HERE = Path(__file__).parent
WORK = str(HERE / "secrets_program.py")
NOWHERE = "postgresql://etl:{}@127.0.0.1:1/lake?connect_timeout=1"

SETTINGS = """
[store]
url = "$LEAKY_STORE"

[letters]
redact = ["ssn"]

[alerts]
persist = "1s"
recovery = "1s"
storm = 1000
exit_wait = "3s"
slots = ["{slots}"]
lags = ["{work}:lag"]

[[tables]]
name = "orders"
url = "{tables}"

[channels]
slack = {{ slack = "$LEAKY_SLACK" }}
pager = {{ pagerduty = "{url}/v2/enqueue?routing_key={pager}" }}
hub = {{ webhook = "{hub}" }}
apprise = {{ apprise = "{apprise}" }}
lamp = {{ command = ["sh", "-c", "cat >> {here}/lamp.txt; env | grep REDRIVE_ALERT >> {here}/lamp.txt", "{lamp}"] }}
slack_down = {{ slack = "{url}/down/services/T0123ABC/B0123ABC/{slack_down}" }}
pager_down = {{ pagerduty = "{url}/down/enqueue?routing_key={pager_down}" }}
hub_down = {{ webhook = "{hub_down}" }}
apprise_down = {{ apprise = "{apprise_down}" }}
lamp_down = {{ command = ["sh", "-c", "echo ze''bralamp $0 $LEAKY_SLACK; exit 3", "{lamp_down}"] }}

[routes]
P1 = ["slack", "pager", "hub", "lamp", "slack_down", "pager_down", "hub_down", "lamp_down", "log"]
P2 = ["slack", "hub", "log"]
P3 = ["slack", "hub", "log"]

[pipelines.torn]                        # each message by apprise takes a process
routes = {{ P1 = ["apprise", "apprise_down", "slack"] }}
"""


def echo(status, *, reason="", bare=True):
    """A server that says too much: what it was sent, the credential also in plain words, and secrets of its own."""

    def answer(request):
        said = f"{planted.marker('a body')} {request.target} {dict(request.headers)}"
        if bare:
            given = request.query.get("api_key") or (request.headers.get("Authorization") or "").partition(" ")[2]
            said = f"{said}: nobody knows {given}"
        return Answer(
            status,
            json={"message": said, "errors": [{"reason": reason}], "detail": planted.text("a body")},
            headers={"Set-Cookie": f"session={planted.secret('a body', 'cookie')}"},
        )

    return answer


@dataclass
class Scene:
    """Where everything is."""

    here: Path
    server: FaultyServer
    store: str
    environment: dict[str, str]

    def python(self, *words):
        """Run a program; what it printed, and what it complained about."""
        done = subprocess.run(
            warm_python(*words),
            env=self.environment,
            cwd=self.here,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.stdout, done.stderr

    def commands(self, *commands):
        """What each of these commands says in a pipe, on both streams."""
        streams = self.python(str(HERE / "secrets_commands.py"), json.dumps(commands))
        said = [re.split(r"^=== \d+$", stream, flags=re.MULTILINE)[1:] for stream in streams]
        return ["\n".join(both) for both in zip(*said, strict=True)]

    def terminal(self, *commands):
        """What each of them says on a wide terminal."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            warm_python(HERE / "secrets_commands.py", "-"),
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=theirs,
            cwd=self.here,
            env={**self.environment, "COLUMNS": "400", "TERM": "xterm", "NO_COLOR": "1"},
        )
        os.close(theirs)
        process.stdin.write(json.dumps(commands).encode() + b"\n")
        process.stdin.close()
        heard = b""
        with contextlib.suppress(OSError):  # Linux says so when the other side is closed
            while part := os.read(ours, 65_536):
                heard += part
        os.close(ours)
        process.wait(100)
        both = re.split(r"^=== \d+\r?$", heard.decode(), flags=re.MULTILINE)[1:]
        return ["\n".join(pair) for pair in zip(both[::2], both[1::2], strict=True)]


@contextlib.contextmanager
def scene(here, postgres_url):
    """A store and a warehouse with passwords of their own, a partner, and receivers of alerts."""
    place = postgres_url.rpartition("@")[2].rpartition("/")[0]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for role in ("keeper", "writer"):
            connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{planted.key(role)}'")
        connection.execute("CREATE DATABASE leaky_store OWNER keeper")
        connection.execute("CREATE DATABASE leaky_warehouse OWNER writer")
    store = f"postgresql://keeper:{planted.key('keeper')}@{place}/leaky_store"
    warehouse = f"postgresql://writer:{planted.key('writer')}@{place}/leaky_warehouse"
    with psycopg.connect(warehouse, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id text PRIMARY KEY, fee numeric CHECK (fee > 0), ssn text, remark text)"
        )
    with redrive.connect(store, migrate=True):
        pass
    with FaultyServer() as server:
        server.on("/*", Answer(202, json={"status": "success"}))
        server.on("/down/*", echo(500, bare=False))
        for path, status in (("/broken", 503), ("/refused", 401), ("/invalid", 422), ("/limited", 429)):
            server.on(path, echo(status))
        server.on("/used-up", echo(403, reason="quotaExceeded"))
        to = "{}://etl:{}@" + server.url.removeprefix("http://")
        (here / "redrive.toml").write_text(
            SETTINGS.format(
                here=here,
                work=WORK,
                url=server.url,
                slots=NOWHERE.format(planted.key("slots")),
                tables=NOWHERE.format(planted.key("tables")),
                hub=to.format("http", planted.key("hub")) + f"/hub?token={planted.key('hub', 'token')}",
                hub_down=to.format("http", planted.key("hub down"))
                + f"/down/hub?token={planted.key('hub down', 'token')}",
                apprise=to.format("json", planted.key("apprise")) + f"/{planted.key('apprise', 'path')}",
                apprise_down=to.format("json", planted.key("apprise down"))
                + f"/down/{planted.key('apprise down', 'path')}",
                pager=planted.secret("pager", "pagerduty"),
                pager_down=planted.secret("pager down", "pagerduty"),
                lamp=planted.key("lamp"),
                lamp_down=planted.key("lamp down"),
                slack_down=planted.key("slack down"),
            )
        )
        ragged, no_text = (planted.line(place).replace('"', "'") for place in ("a ragged line", "a line of no text"))
        lines = ["id,fee,ssn,remark", "1,1.5,,", f'2,1.5,,"{ragged}",5', f"3,1.5,,{no_text}\xff"]
        (here / "orders.csv").write_bytes("\n".join(lines).encode("latin-1"))
        (here / "broken.py").write_text(
            "from tests.support import planted_secrets as planted\n\nraise ValueError(planted.text('an import'))\n"
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")},
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "REDRIVE_STORE_PATIENCE": "1",
            "LEAKY_STORE": store,
            "LEAKY_WAREHOUSE": warehouse,
            "LEAKY_REFUSED": warehouse.replace(planted.key("writer"), "{}"),
            "LEAKY_PARTNER": server.url,
            "LEAKY_SLACK": f"{server.url}/services/T0123ABC/B0123ABC/{planted.key('slack')}",
            "LEAKY_LOGS": str(here),
        }
        yield Scene(here, server, store, environment)
