"""Writes the page of errors from the table: `python -m tests.packs.page`."""

from __future__ import annotations

import re
from pathlib import Path

from tests.packs.table import Case, read_argued, read_cases

PAGE = Path(__file__).parents[2] / "docs" / "client-errors.md"

INTRO = """\
# Errors of client libraries

What redrive says about {cases} failures of {libraries} client libraries, for a call: `redrive.classify(error)`. The
kinds are those of [Verdicts](verdicts.md).

- **Provoked** ({provoked}): the real client talks to a server on loopback that refuses, resets, closes, stays silent,
  cuts its answer off, or answers as shown; or a database in a file does what is said.
- **Constructed** ({constructed}): the real class with the arguments that the library gives it, where the failure cannot
  be provoked without the real service.

The expectations, what an experienced engineer would do with each failure, were written first, and the rules followed.
**redrive agrees in {agreeing} of {cases}**; the others are [listed below](#where-redrive-differs) with the reason.
Of the failures that every client meets, {common}, it is
**{common_agreeing} of {common_cases}** that were provoked.
`make packs` installs all of these libraries and tests the whole table; `make test` does so for the light ones.

An error of any other library is judged by its status, by its `retryable` flag and by its cause. What remains is unknown
until you [add a rule](verdicts.md#your-own-rules).
"""


COMMON = {
    "closed port": "a closed port",
    "connection reset": "a reset connection",
    "timeout": "a timeout",
    "HTTP 503": "a 503",
}
"""Failures that every client meets, and their words."""


def render() -> str:
    """The page, as the table has it."""
    cases, argued = read_cases(), read_argued()
    kinds = {case: argued[case.key].got if case.key in argued else case.expected for case in cases}
    libraries = list(dict.fromkeys(case.library for case in cases))
    constructed = sum(case.constructed for case in cases)
    common = {case: kind for case, kind in kinds.items() if case.failure in COMMON and not case.constructed}
    *words, last = COMMON.values()
    intro = INTRO.format(
        common=f"{', '.join(words)} and {last}",
        common_agreeing=sum(case.expected == kind for case, kind in common.items()),
        common_cases=len(common),
        cases=f"{len(cases):,}",
        libraries=len(libraries),
        provoked=len(cases) - constructed,
        constructed=constructed,
        agreeing=f"{sum(case.expected == kind for case, kind in kinds.items()):,}",
    )
    differences = [
        "## Where redrive differs",
        "",
        "| library | failure | expected | verdict | why |",
        "|---|---|---|---|---|",
    ]
    for case, kind in kinds.items():
        if case.key in argued:
            cells = (case.library, _shown(case), case.expected, kind, argued[case.key].why)
            differences.append(f"| {' | '.join(cells)} |")
    sections = [
        _section(library, {case: kind for case, kind in kinds.items() if case.library == library})
        for library in libraries
    ]
    return "\n".join([intro, "\n".join(differences) + "\n", *sections])


def _section(library: str, kinds: dict[Case, str]) -> str:
    lines = [f"## {library}", "", "| verdict | provoked | constructed |", "|---|---|---|"]
    for kind in dict.fromkeys(kinds.values()):
        provoked, constructed = (
            "; ".join(_shown(case) for case in kinds if kinds[case] == kind and case.constructed is made)
            for made in (False, True)
        )
        lines.append(f"| {kind} | {provoked} | {constructed} |")
    return "\n".join(lines) + "\n"


def _shown(case: Case) -> str:
    text = case.failure
    if case.constructed:
        # The module is the library's; a placeholder says nothing.
        text = re.sub(r"\b(?:\w+\.)+(?=[A-Z]\w*\b)", "", text).replace('("x")', "").replace('"x", ', "")
        return f"`{text}`".replace("|", "\\|")
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(render())
