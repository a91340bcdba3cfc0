"""A fresh installation: the wheel in a separate environment with its requirements only."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.docs_pages import ROOT


def build_wheel(directory: Path) -> Path:
    """The wheel as it is published, built without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


def bare_environment(directory: Path, wheel: Path) -> Path:
    """An empty environment in which the wheel alone is installed; its interpreter."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    pip(python, "--no-deps", "--no-index", wheel)
    return python


def pip(python: Path, *words: object) -> None:
    """Install something there."""
    command = [sys.executable, "-m", "pip", "--quiet", "--python", python, "install", *words]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def lend(python: Path, extras: set[str]) -> set[str]:
    """Link what the wheel requires from the environment of the tests, file by file; the names of what was lent.

    What the wheel does not ask for stays out, whatever else the tests have: a forgotten requirement is missed.
    """
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (ours,) = (Distribution.at(path) for path in site.glob("redrive-*.dist-info"))
    lent = {}
    for one in _required(ours, extras, {"redrive"}):
        lent[canonicalize_name(one.name)] = one
    for one in lent.values():
        for file in one.files or ():
            if ".." not in file.parts:
                link = site / file
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    os.symlink(one.locate_file(file), link)
    return set(lent)


def _required(asking: Distribution, extras: set[str], known: set[str]) -> Iterator[Distribution]:
    """What a distribution requires with these extras, and what that requires in turn."""
    for text in asking.requires or ():
        wanted = Requirement(text)
        holds = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        name = canonicalize_name(wanted.name)
        if not holds:
            continue
        if name == canonicalize_name(asking.name):  # an extra that is made of others
            yield from _required(asking, set(wanted.extras), known)
        elif (key := f"{name}[{','.join(sorted(wanted.extras))}]") not in known:
            known.add(key)
            found = distribution(name)
            yield found
            yield from _required(found, set(wanted.extras), known)
