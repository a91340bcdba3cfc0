"""How long every regular expression of the package takes on texts that are made to hang it.

For each pattern the slowest of its hostile texts counts, in milliseconds of CPU time, at 1 KB, 10 KB, 100 KB and 1 MB.
A pattern is linear where a text ten times as long takes about ten times as long. `mask` is all of masking together.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from redrive._internal.masking import mask
from redrive.dlq.fingerprint import template
from tests.support.patterns import attacks, cpu_seconds, patterns

SIZES = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}


def slowest(run, makers, size):
    return max(cpu_seconds(run, make(size)) for make in makers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Leave out 1 MB.")
    sizes = list(SIZES)[: 3 if parser.parse_args().quick else 4]
    found, _ = patterns()
    runs = {one.place: (one.run, attacks(one.pattern)) for one in found}
    masked = [make for one in found if one.place.startswith("masking") for make in attacks(one.pattern)]
    runs |= {"mask": (mask, masked), "template": (template, masked)}
    print(f"{'pattern':<50}" + "".join(f"{size:>12}" for size in sizes))
    for place, (run, makers) in runs.items():
        if makers and place != "dlq.fingerprint:_TOKEN" and place != "dlq.fingerprint:_ADDRESS":  # see 2,000 characters
            times = [slowest(run, makers, SIZES[size]) * 1_000 for size in sizes]
            print(f"{place:<50}" + "".join(f"{ms:>9,.2f} ms" for ms in times), flush=True)


if __name__ == "__main__":
    main()
