"""`python -m redrive.cli`."""

from redrive.cli import main

main()
