"""The reference pages are those generated from the code, and missing docstrings are reported."""

import subprocess
import sys

from tests.support.docs_pages import ROOT

GENERATE = ROOT / "docs" / "generate"

FORGETFUL = """
import redrive, typer.main
from redrive.cli.app import app

redrive.Sieve = type("Sieve", (), {})
redrive.__all__.append("Sieve")
redrive.Retry.__doc__ = None
redrive.connect.__doc__ = "Open a store."
redrive.Service.stats.__annotations__["return"] = "ServiceRunner"
redrive.Gate.judge.__doc__ = "The verdict of the gate."
program = typer.main.get_command(app)
program.get_command(None, "store").commands["info"].help = ""
program.get_command(None, "run").params[1].help = ""
typer.main.get_command = lambda _: program
"""


def checked(*, after=""):
    """The reference, compared with the code; a program may change the code before."""
    start = f"import runpy, sys; sys.argv = ['generate', '--check']; sys.path.insert(0, {str(GENERATE)!r})\n"
    end = f"\nrunpy.run_path({str(GENERATE / '__main__.py')!r}, run_name='__main__')"
    command = [sys.executable, "-W", "error", "-c", start + after + end]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_reference_equals_generated_text():
    done = checked()
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_and_outdated_docstrings_are_reported():
    done = checked(after=FORGETFUL)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    for sentence in [
        "redrive.Sieve has no entry; add it to docs/generate/plan.py",
        "redrive.Retry has no docstring",
        "redrive.connect does not say what patience is",
        "Service.stats names redrive.calls.fast_path.ServiceRunner, which has no entry",
        "redrive store info has no help",
        "redrive run does not say what --param is",
        "docs/reference/rows.md is out of date; write it anew: make docs",
        "+The verdict of the gate.",
    ]:
        assert sentence in said
