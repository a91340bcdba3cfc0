"""Messages to a program of the user: it gets all facts, and cannot block or harm the sender."""

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import pytest

from redrive.alerts.config.settings import Channel
from redrive.alerts.delivery.channels import DeliveryFailed, deliver
from redrive.alerts.delivery.message import compose, compose_many
from redrive.model.alerts import Facts, Severity, Subject, What
from tests.support.sample_alerts import SETTINGS, an_alert

OPENED = compose(What.OPENED, an_alert(urgency=Severity.P1), SETTINGS)
SOON = 1.0


def command(*words, timeout=30.0):
    return Channel(name="pager", kind="command", target=words, timeout=timeout)


def program(text, *words, timeout=30.0):
    return command(sys.executable, "-c", text, *words, timeout=timeout)


def failure(which, message=OPENED):
    with pytest.raises(DeliveryFailed) as caught:
        deliver(which, message)
    return caught.value


def gone(number):
    """Whether a process has ended, waiting a while for the system to notice."""
    for _ in range(500):
        try:
            # A zombie that nobody has buried is dead all the same.
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(number, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_command_gets_document_and_environment(tmp_path):
    text = """
import json, os, sys
given = {name: value for name, value in os.environ.items() if name.startswith("REDRIVE_ALERT_")}
json.dump({"document": json.load(sys.stdin), "environment": given, "words": sys.argv[2:]}, open(sys.argv[1], "w"))
"""
    deliver(program(text, str(tmp_path / "got"), "--now", "a b"), OPENED)
    got = json.loads((tmp_path / "got").read_text())
    assert got["document"] == OPENED.document()
    assert got["words"] == ["--now", "a b"]
    assert got["environment"] == {
        "REDRIVE_ALERT_URGENCY": "P1",
        "REDRIVE_ALERT_WHAT": "opened",
        "REDRIVE_ALERT_SUBJECT": "vendor",
        "REDRIVE_ALERT_TITLE": "P1 vendor: 5,400 of 180,000 rows rejected (3.0 %)",
        "REDRIVE_ALERT_KEY": "letters:vendor",
    }


def test_command_can_be_one_line(tmp_path):
    line = f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w')\" '{tmp_path}/it was here'"
    deliver(Channel(name="pager", kind="command", target=line, timeout=30.0), OPENED)
    assert (tmp_path / "it was here").exists()


def test_digest_sets_its_environment_variables(tmp_path):
    digest = compose_many("digest", [(What.OPENED, an_alert(id=number)) for number in (1, 2)], SETTINGS)
    deliver(
        program(
            "import os, sys; open(sys.argv[1], 'w').write(os.environ['REDRIVE_ALERT_SUBJECT'])", str(tmp_path / "x")
        ),
        digest,
    )
    assert (tmp_path / "x").read_text() == "digest"


def test_output_of_a_failed_command_is_quoted():
    failed = failure(program("import sys; print('calling'); sys.exit('the line is\\nbusy')"))
    assert failed.reason == "the command ended with exit code 1: calling the line is busy"
    assert not failed.permanent


def test_silent_failed_command_is_named_by_exit_code():
    assert failure(program("raise SystemExit(7)")).reason == "the command ended with exit code 7"


def test_killed_command_is_named_by_its_signal():
    failed = failure(program("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert failed.reason == "the command was ended by SIGSEGV"


@pytest.mark.parametrize("words", [("/no/such/program", "x"), (os.path.dirname(sys.executable),)])
def test_missing_command_is_transient(words):
    failed = failure(command(*words))
    assert not failed.permanent
    assert words[0] in failed.reason


def test_channel_without_command_is_permanent():
    assert failure(command()).permanent


def test_hanging_command_is_killed_with_its_children(tmp_path):
    text = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
print("waiting", flush=True)
time.sleep(600)
"""
    failed = failure(program(text, str(tmp_path / "child"), timeout=3.0))
    assert failed.reason == "the command did not end within 3 s and was killed: waiting"
    assert not failed.permanent
    assert gone(int((tmp_path / "child").read_text()))


def test_command_that_ignores_sigterm_is_killed(tmp_path):
    text = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""
    assert "was killed" in failure(program(text, str(tmp_path / "me"), timeout=SOON)).reason
    with contextlib.suppress(FileNotFoundError):  # killed before it could ignore anything
        assert gone(int((tmp_path / "me").read_text()))


def test_only_the_end_of_megabytes_of_output_is_kept():
    text = "import sys\nfor _ in range(2_000): sys.stdout.write('x' * 10_000)\nsys.exit('and this is why')"
    failed = failure(program(text))
    assert failed.reason.endswith("xand this is why")
    assert len(failed.reason) <= 500
    deliver(program("import sys\nfor _ in range(2_000): sys.stdout.write('x' * 10_000)"), OPENED)


LONG = compose_many(
    "digest",
    [(What.OPENED, an_alert(id=number, facts=Facts(error="e" * 4_000, sql="s" * 4_000))) for number in range(50)],
    SETTINGS,
)


def test_message_longer_than_a_pipe_arrives_whole_or_unread(tmp_path):
    assert len(json.dumps(LONG.document())) > 200_000
    deliver(program("pass"), LONG)
    deliver(program("import sys; sys.stdin.close()"), LONG)
    deliver(program("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())", str(tmp_path / "got")), LONG)
    assert json.loads((tmp_path / "got").read_text()) == LONG.document()


def test_leftover_child_of_a_command_blocks_no_delivery(tmp_path):
    text = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
"""
    deliver(program(text, str(tmp_path / "child")), OPENED)
    os.kill(int((tmp_path / "child").read_text()), 9)


def test_title_of_any_characters_fits_the_environment(tmp_path):
    odd = an_alert(title="a\x00b\n\ud800=\x1b[31m", subject=Subject(kind="service", name="x\x00y"))
    text = "import os, sys; open(sys.argv[1], 'w').write(os.environ['REDRIVE_ALERT_TITLE'])"
    deliver(program(text, str(tmp_path / "x")), compose(What.OPENED, odd, SETTINGS))
    assert (tmp_path / "x").read_text() == "P3 service xy: ab \ufffd="


SECRET = "hunter2-correct-horse"


@pytest.mark.parametrize(
    "words",
    [(f"--token={SECRET}",), ("-H", f"X-Custom: {SECRET}"), (f"https://hooks.example/{SECRET}?a=b",), (SECRET,)],
)
@pytest.mark.parametrize("before", [0, 270, 285, 290, 3_990])
def test_no_error_text_shows_command_arguments(words, before, caplog):
    text = f"import sys; print(sys.argv); print(*sys.argv[1:], 'y' * {before}); sys.exit(1)"
    which = program(text, *words)
    with caplog.at_level(1):
        failed = failure(which)
    for shown in [failed.reason, repr(failed), repr(which), caplog.text, *traceback.format_exception(failed)]:
        assert "hunter2" not in shown
        assert "correct-horse" not in shown
    assert failed.__context__ is None
