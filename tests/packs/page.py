"""Write the page of client errors from the table: `python -m tests.packs.page`."""

from __future__ import annotations

import re
from pathlib import Path

from tests.packs.table import Case, read_argued, read_cases

PAGE = Path(__file__).parents[2] / "docs" / "client-errors.md"

INTRO = """\
# Errors of client libraries

This page lists the verdict of redrive for {cases} failures of {libraries} client libraries. It is the result of
`redrive.classify(error)` for a call. The [verdicts](verdicts.md) page explains the kinds.

There are two ways to obtain an error:

- **Provoked** ({provoked}): the real client calls a server on the same machine that rejects, resets or closes the
  connection, sends nothing, truncates its response, or answers as shown. For a database in a file, the failure is
  produced in the file.
- **Constructed** ({constructed}): the library's own exception class, with the arguments that the library passes. It is
  used where the failure needs the real service.

The expected verdicts are what an experienced engineer would do with each failure. They were written before the rules.
**redrive agrees in {agreeing} of {cases} cases**; the others are
[listed below](#where-redrive-differs), with the reason. For {common}, which every client meets, it agrees in
**{common_agreeing} of {common_cases}** provoked cases.
`make packs` installs all of these libraries and tests the whole table; `make test` tests the small ones.

An error of any other library is classified by its status, its `retryable` flag and its cause. Otherwise it is unknown
until you [add a rule](verdicts.md#your-own-rules).
"""


COMMON = {
    "closed port": "a closed port",
    "connection reset": "a reset connection",
    "timeout": "a timeout",
    "HTTP 503": "a 503",
}
"""Failures that every client meets, and their names on the page."""


def render() -> str:
    """Return the text of the page."""
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
        "| library | failure | expected | verdict | reason |",
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
        # The module is the library's; a placeholder shows nothing.
        text = re.sub(r"\b(?:\w+\.)+(?=[A-Z]\w*\b)", "", text).replace('("x")', "").replace('"x", ', "")
        return f"`{text}`".replace("|", "\\|")
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(render())
