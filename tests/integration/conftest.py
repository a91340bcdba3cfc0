"""What tests of whole programs share."""

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def open_directory():
    """A directory that others may enter; pytest's own are closed to everyone but root."""
    with tempfile.TemporaryDirectory(prefix="redrive-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
