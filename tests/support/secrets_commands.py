"""Commands of the command line, one after the other in one process. Run by `test_no_secrets`."""

import json
import sys

from redrive.cli.app import app

for number, words in enumerate(json.loads(sys.stdin.readline() if sys.argv[1] == "-" else sys.argv[1])):
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"\n=== {number}\n")
        stream.flush()
    try:
        app(words)
    except SystemExit as end:
        sys.stderr.write(f"exit code {end.code}\n")
