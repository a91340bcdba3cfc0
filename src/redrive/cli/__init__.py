"""The command line: `redrive`."""

import sys

from redrive.interrupts import Terminated, end_in_order


def main() -> None:
    """Run the program; ends the process."""
    end_in_order()  # first of all: a scheduler may stop a command that still imports
    try:
        from redrive.cli.app import app

        app()
    except (KeyboardInterrupt, Terminated) as interrupt:
        sys.exit(say_interrupted(interrupt))


def say_interrupted(interrupt: BaseException) -> int:
    """Say what ended the command, and return its exit code: 75 where it was told to end, 130 after a Ctrl-C."""
    told = isinstance(interrupt, Terminated)
    how = f"stopped by {interrupt}" if told else "interrupted"
    sys.stderr.write(f"redrive: {how}; what was done before is kept, and running the same again is safe\n")
    return 75 if told else 130
