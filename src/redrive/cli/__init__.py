"""The command line: `redrive`."""


def main() -> None:
    """Run the program; ends the process."""
    from redrive.cli.app import app

    app()
