"""The benchmark of letters in words: its tables, what they mean, and how redrive stands to its targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import measure
from record import Figure, Table, Target, record

TARGETS = {"to_floor": 0.33, "to_naive": 10, "causes_to_group_by": 20}

Column = tuple[str, str, int]
"""A heading, the figure under it, and its digits."""
SECTIONS: dict[str, tuple[str, tuple[Column, ...]]] = {
    "put": (
        "Putting letters",
        (
            *(("letters", "letters", 0), ("µs per letter", "us_per_letter", 1), ("letters per s", "letters_per_s", 0)),
            *(("of the floor", "to_floor", 2), ("× naive", "to_naive", 1)),
        ),
    ),
    "stream": (
        "Streaming letters of the past week, in one call",
        (
            *(("letters", "streamed", 0), ("µs per letter", "us_per_letter", 1)),
            *(("peak MB", "peak_mb", 0), ("of it since the first tenth", "growth_mb", 1)),
        ),
    ),
    "causes": (
        "Causes",
        (
            *(("in the table", "in_table", 0), ("counted", "counted", 0), ("ms", "ms", 1)),
            *(("GROUP BY ms", "by_hand_ms", 1), ("× GROUP BY", "ratio", 1)),
        ),
    ),
    "find": (
        "Finding",
        (("in the table", "in_table", 0), ("ms", "ms", 2), ("by hand ms", "by_hand_ms", 2), ("× by hand", "ratio", 2)),
    ),
    "work": (
        "Replay and storage",
        (
            *(("in the table", "in_table", 0), ("letters", "touched", 0), ("µs per letter", "us_per_letter", 1)),
            *(("letters per s", "letters_per_s", 0), ("naive µs", "naive_us_per_letter", 1), ("× naive", "ratio", 1)),
        ),
    ),
}
GLOSSARY = {
    "put_many": "a generator of NewLetter, made of records that are at hand, through store.dlq.put_many",
    "making NewLetters": "what of that goes into making the NewLetter objects",
    "put_many, all stored before": "the same letters again: none is new, each is counted at the stored one",
    "floor": "the same columns and bytes, ready-made, by the bare driver into a table without index or constraint: "
    "SQLite executemany, PostgreSQL COPY of lines of text, 10,000 a transaction; it counts no causes and duplicates",
    "naive": "one INSERT and one COMMIT per letter, ready-made, into an empty table with the indexes of redrive's; "
    "measured on a sample on an idle disk and extrapolated",
    "GROUP BY": "fingerprint, count(*), min, max over the span, grouped, in the same table; both must count the same",
    "by hand": "a SELECT of the same letters by the plain driver, its rows not made into anything",
    "naive replay": "one UPDATE and one COMMIT per letter, on the sample that the naive way put",
}
FOOTNOTES = (
    "× and of the floor: speed as a multiple of the other's. Putting: redrive and the floor take turns, block by "
    "block, into tables that grow alike; a size that takes seconds is put into several fresh databases, and the best "
    "counts. Asking: the median of several rounds in turn, after one that does not count.",
    "Both databases are durable and otherwise as they come: SQLite with a write-ahead log and synchronous=FULL, "
    "PostgreSQL with fsync and synchronous_commit on. They stand in the temporary directory: TMPDIR chooses the disk.",
)


def report(document: dict[str, Any]) -> str:
    databases = document["databases"]
    tables = [
        section_table(section, name, [row for row in document["rows"] if row["section"] == section])
        for section in SECTIONS
        for name in ([None] if section == "stream" else databases)
    ]
    return "\n\n".join(
        [
            measure.heading(document["environment"]),
            ", ".join(f"{name} {version}" for name, version in databases.items()),
            *tables,
            measure.glossary("Rows and columns:", GLOSSARY),
            *map(measure.paragraph, FOOTNOTES),
            *(measure.paragraph(verdict(one)) for one in document["headline"]),
        ]
    )


def section_table(section: str, database: str | None, rows: Sequence[dict[str, Any]]) -> str:
    title, columns = SECTIONS[section]
    cells = [
        (
            row["name"] if database else row["database"],
            *(measure.number(row[figure], digits) for _, figure, digits in columns),
        )
        for row in rows
        if database in (None, row["database"])
    ]
    shown = f"{title}, {database}" if database else title
    return measure.table(shown, ("", *(heading for heading, *_ in columns)), cells)


def verdict(end: dict[str, Any]) -> str:
    naive = f" (target {TARGETS['to_naive']})" if end["database"] == "PostgreSQL" else ""
    memory = "too few letters to tell how memory grows"
    if end["growth_mb"] is not None:
        memory = f"memory grows by {end['growth_mb']:.1f} MB from a tenth of the letters to all"
    return (
        f"{end['database']}, {end['letters']:,} letters: put_many at {end['to_floor']:.2f} of the floor "
        f"(target {TARGETS['to_floor']:.2f}) and {end['to_naive']:.1f} × naive{naive}; causes of today "
        f"{end['causes_to_group_by']:.1f} × GROUP BY (target {TARGETS['causes_to_group_by']}); {memory}"
    )


# ── for the record ────────────────────────────────────────────────────────────────────────────────────────────────────


def headline(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At the largest size, what the targets are about."""
    largest = max(row["letters"] for row in rows)
    wanted = [row for row in rows if row["letters"] == largest]
    return [
        {
            "database": put["database"],
            "letters": largest,
            "to_floor": put["to_floor"],
            "to_naive": put["to_naive"],
            "causes_to_group_by": causes["ratio"],
            "growth_mb": stream["growth_mb"],
        }
        for put in wanted
        if put["section"] == "put" and put["name"] == "put_many"
        for causes in wanted
        if causes["database"] == put["database"] and causes["section"] == "causes" and causes["name"] == "today"
        for stream in wanted
        if stream["database"] == put["database"] and stream["section"] == "stream"
    ]


def recorded(about: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """At the largest size; the smaller ones are in the document."""
    largest = max(row["letters"] for row in rows)
    here = [row for row in rows if row["letters"] == largest]
    made = {"put": put_figures, "stream": stream_figures, "causes": asked_figures, "find": asked_figures}
    tables = []
    for database in dict.fromkeys(row["database"] for row in here):
        for section, (title, _) in SECTIONS.items():
            found = [row for row in here if (row["database"], row["section"]) == (database, section)]
            figures = [figure for row in found for figure in made.get(section, work_figures)(row)]
            tables.append(Table(f"{title}, {database}", figures))
    targets = [target for end in headline(rows) for target in targets_of(end)]
    return record(about, tables, targets=targets, rows=GLOSSARY, notes=FOOTNOTES)


def put_figures(row: dict[str, Any]) -> Iterator[Figure]:
    yield Figure(row["name"], "each", "µs", row["us_per_letter"], row["spread"])
    ratios = {"of the floor": row["to_floor"], "× naive": row["to_naive"]}
    yield Figure(row["name"], "rate", "letters/s", row["letters_per_s"], ratios=ratios)


def stream_figures(row: dict[str, Any]) -> Iterator[Figure]:
    name = f"{row['streamed']:,} letters in one call"
    yield Figure(name, "each", "µs", row["us_per_letter"])
    yield Figure(name, "peak memory", "MB", row["peak_mb"])
    yield Figure(name, "of it since the first tenth", "MB", row["growth_mb"])


def asked_figures(row: dict[str, Any]) -> Iterator[Figure]:
    other = "GROUP BY" if row["section"] == "causes" else "by hand"
    yield Figure(row["name"], "redrive", "ms", row["ms"], row["spread"], {f"× {other}": row["ratio"]})
    yield Figure(row["name"], other, "ms", row["by_hand_ms"])


def work_figures(row: dict[str, Any]) -> Iterator[Figure]:
    yield Figure(row["name"], "each", "µs", row["us_per_letter"], ratios={"× naive": row["ratio"]})
    yield Figure(row["name"], "rate", "letters/s", row["letters_per_s"])


def targets_of(end: dict[str, Any]) -> Iterator[Target]:
    place = f"{end['database']}, {end['letters']:,} letters"
    floor, group = "of the bare bulk insert's speed", "× the speed of GROUP BY"
    yield Target(f"{place}: put_many", end["to_floor"], "at least", TARGETS["to_floor"], floor)
    if end["database"] == "PostgreSQL":
        naive = "× the speed of INSERT and COMMIT for each"
        yield Target(f"{place}: put_many", end["to_naive"], "at least", TARGETS["to_naive"], naive)
    causes = end["causes_to_group_by"]
    yield Target(f"{place}: causes of today", causes, "at least", TARGETS["causes_to_group_by"], group)
