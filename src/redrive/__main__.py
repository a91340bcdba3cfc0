"""Run the command line as `python -m redrive`, which uses the redrive of this interpreter."""

from redrive.cli import main

if __name__ == "__main__":
    main()
