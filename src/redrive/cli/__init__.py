"""The command line: `redrive`."""

import sys

from redrive._internal.interrupts import Terminated, end_at_once, end_in_order, interrupt_behind


def main() -> None:
    """Run the program; ends the process."""
    end_in_order()  # first of all: a scheduler may stop a command that still imports
    code: int | str | None = 0
    try:
        from redrive.cli.app import app

        app()
    except (KeyboardInterrupt, Terminated) as interrupt:
        code = say_interrupted(interrupt)
    except Exception as error:
        wrapped = interrupt_behind(error)
        if wrapped is None:
            raise
        code = say_interrupted(wrapped)
    except SystemExit as ended:
        code = ended.code
    end_at_once(code if isinstance(code, int) else int(code is not None))
    sys.exit(code)


def say_interrupted(interrupt: BaseException) -> int:
    """Print what ended the command, and return its exit code: 75 after a signal, 130 after Ctrl-C."""
    is_signal = isinstance(interrupt, Terminated)
    how = f"stopped by {interrupt}" if is_signal else "interrupted"
    sys.stderr.write(f"redrive: {how}; finished work is kept. Run the same command again to resume\n")
    return 75 if is_signal else 130
