"""Benchmarks as they are run by hand, but for their databases: those stand in memory, where there is room."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def bench():
    """Run a program of `bench/`, and give back what it printed."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        Path(scratch).chmod(0o755)  # PostgreSQL runs as another user

        def run(program, *options):
            command = [sys.executable, "-W", "error", BENCH / program, *options]
            kept_there = {**os.environ, "TMPDIR": scratch}
            return subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=240, env=kept_there
            ).stdout

        yield run
