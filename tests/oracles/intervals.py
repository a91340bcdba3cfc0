"""What the text of an interval says, read word by word; and texts of intervals, good, odd and bad."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from itertools import product
from random import Random

HOURS = 3_600_000_000
UNITS = {
    **dict.fromkeys(["y", "yr", "yrs", "year", "years"], (12, 0, 0)),
    **dict.fromkeys(["decade", "decades"], (120, 0, 0)),
    **dict.fromkeys(["century", "centuries"], (1_200, 0, 0)),
    **dict.fromkeys(["millennium", "millennia"], (12_000, 0, 0)),
    **dict.fromkeys(["mon", "mons", "month", "months"], (1, 0, 0)),
    **dict.fromkeys(["w", "week", "weeks"], (0, 7, 0)),
    **dict.fromkeys(["d", "day", "days"], (0, 1, 0)),
    **dict.fromkeys(["h", "hr", "hrs", "hour", "hours"], (0, 0, HOURS)),
    **dict.fromkeys(["m", "min", "mins", "minute", "minutes"], (0, 0, HOURS // 60)),
    **dict.fromkeys(["s", "sec", "secs", "second", "seconds"], (0, 0, 1_000_000)),
    **dict.fromkeys(["ms", "msec", "msecs", "millisecond", "milliseconds"], (0, 0, 1_000)),
    **dict.fromkeys(["us", "usec", "usecs", "microsecond", "microseconds"], (0, 0, 1)),
}

GOOD = [
    *("1:02", "01:02:03", "-1:02:03", "1:2:3", "100:00:00", "02:03:04.5", "02:03:04.123456", "1 day", "1 day 2 hours"),
    *("1 day 02:03:04", "1 day -2:03:04", "-1 days -02:03:04", "@ 1 day", "@ 1 day 2 hours ago", "1 day ago"),
    *("1 year 2 mons", "1 year 2 months 3 days 04:05:06.7", "2 weeks", "1h30m", "1h 30m", "90 min", "1.5 hours"),
    *("1.5 days", "1.5 years", "-1.5 hours", "10 ms", "7 us", "1 DAY", " 1 day ", "1 second 2 minutes", "1 decade"),
]
"""Texts that both databases take."""
POSTGRES = [
    *("P1Y2M3DT4H5M6.7S", "P1W", "PT36H", "PT1.5H", "P-1Y-2M3DT-4H-5M-6S", "P1M", "PT1M", "PT0S"),
    *("1-2", "-1-2", "1-2 3 4:05:06", "+1-2 -3 +4:05:06", "3 4:05:06", "-3 -4:05:06", "1 day, 2:03:04"),
    *("-1 days +02:03:04", "+1 year -2 mons +3 days -04:05:06", "@ 1 year 2 mons -3 days 4 hours 5 mins 6.5 secs ago"),
    *("@ 0", "+1 day"),
]
DUCKDB = ["-1 day 02:03:04", "-1 year 2 months 03:04:05"]
BAD = [
    *("1:02:03:04", "02:03:04 3 days", "00:00:01,250", "10:20:30 5 minutes", "05:30:00 p.m.", "12:00:00 a.m."),
    *("1 day 2:3:4:5", "1:2:3.4.5", "01:02:03;", "1 hour 30:00", "1.02:03:04", "1,5 hours", "1.5:00:00", "1.5 months"),
    *("1 day 02:03:04 ago", "2 hours 02:00:00", "1 day 1 day", "1 year-2 months", "1 day 2", "1 day 0.5", "1M", "7"),
    *(
        "1 year 2m",
        "1-2 days",
        "1 year 2-3",
        "1 hour:30",
        "1 day;",
        "1 day,",
        "0.0005 ms",
        "1.5 us",
        "1h30",
        "05:30 PM",
    ),
    *("10:20:30 EST", "10:20:30+02", "1-2 3", "-3 4:05:06", "-1-2 3 4:05:06", "1 day @ 2 hours", "P1DT12:00:00"),
    *("P20260701T000000", "2026-07-01 10:20:30", "1 day 02:03:04 5 minutes", "01:02:03,5", "12:30.5", "1 day 12:30.5"),
    *("0.1 years", "01:02:03.1234567", "{1 day}", "1 day 10", "00:01:02:03.500", "1d02:03:04;", "1 quarter 2 days x"),
]
_PIECES = ["1 day", "02:03:04", "1:02", "3 hours", "5 min", "1.5", "7", "PM", "ago", "-", "+", ",", ";", ":", ".", "@"]
_PIECES += ["P1D", "T1H", "1-2", "p.m.", "UTC", "2 mons", "0.25 weeks", "h", "m", "1,250", "-2 days", "y", "30:00"]


def texts(seed: int = 7, count: int = 4_000) -> list[str]:
    """Return texts of intervals: those above, those with something more behind or before, and pieces at random."""
    random = Random(seed)
    known = [*GOOD, *POSTGRES, *DUCKDB, *BAD]
    longer = [f"{text}{gap}{piece}" for text, gap, piece in product(known, ("", " "), _PIECES)]
    longer += [f"{piece}{gap}{text}" for text, gap, piece in product(GOOD, ("", " "), _PIECES)]
    units = sorted(UNITS)
    for _ in range(count):
        longer.append(random.choice(("", " ")).join(random.choices(_PIECES, k=random.randint(2, 5))))
        parts = []
        for unit in random.sample(units, random.randint(1, 4)):
            number = random.choice((random.randint(0, 999), round(random.random() * 10 ** random.randint(0, 5), 4)))
            parts.append(f"{random.choice(('', '', '-'))}{number} {unit}")
        longer.append(" ".join(parts) + random.choice(("", "", " 01:02:03.5", " -1:02", " ago")))
    return list(dict.fromkeys([*known, *longer]))


def says(text: str) -> tuple[int, int, int] | None:
    """Return months, days and microseconds that a text says; None where readers may differ."""
    head, *others = [part.strip() for part in text.split(",")]
    for other in others:  # a comma stands between a unit and the next part
        if not head[-1:].isalpha() or not other:
            return None
        head = f"{head} {other}"
    words = head.split()
    is_turned = words[-1:] in (["ago"], ["AGO"])
    if is_turned:
        words.pop()
    if words[:1] == ["@"]:
        words.pop(0)
    elif words and words[0].startswith("@"):
        words[0] = words[0][1:]
    if words == ["0"] and text == "@ 0":
        return 0, 0, 0
    if not words:
        return None
    if words[0].startswith("P"):
        found = None if is_turned or len(words) > 1 else _iso(words[0])
    elif "-" in words[0][1:]:
        found = None if is_turned or "@" in text else _standard(words)
    else:
        found = _spelled(" ".join(words), is_turned=is_turned)
        if found is None and not is_turned:
            found = _standard(words)
    if found is None or any(part != int(part) for part in found):
        return None
    months, days, microseconds = (int(part) for part in found)
    sign = -1 if is_turned else 1
    return sign * months, sign * days, sign * microseconds


def _number(text: str) -> Decimal | None:
    try:
        return (
            Decimal(text)
            if text[-1:].isdigit() and text.lstrip("+-")[0] != "." and "e" not in text.lower() and "_" not in text
            else None
        )
    except InvalidOperation:
        return None


def _add(total: list[Decimal], number: Decimal, unit: tuple[int, int, int]) -> bool:
    months, days, microseconds = (number * each for each in unit)
    whole = int(days)
    total[0] += months
    total[1] += whole
    total[2] += microseconds + (days - whole) * 24 * HOURS
    return months == int(months)


def _clock(text: str) -> Decimal | None:
    sign = -1 if text.startswith("-") else 1
    parts = text.lstrip("+-").split(":")
    if any(len(part.partition(".")[0]) > 2 for part in parts[1:]):
        return None
    whole = parts[:-1] if len(parts) == 3 else parts
    if len(parts) not in (2, 3) or len(text) - len(text.lstrip("+-")) > 1 or not all(part.isdigit() for part in whole):
        return None
    seconds = _number(parts[2].removesuffix(".")) if len(parts) == 3 and parts[2][:1].isdigit() else Decimal(0)
    if seconds is None or (len(parts) == 3 and not parts[2][:1].isdigit()) or int(parts[1]) > 59 or seconds >= 60:
        return None
    return sign * (int(parts[0]) * HOURS + int(parts[1]) * HOURS // 60 + seconds * 1_000_000)


def _spelled(text: str, *, is_turned: bool) -> list[Decimal] | None:
    """Numbers with their units, and one time of day at the end."""
    total, seen, short = [Decimal(0)] * 3, [], False
    head, _, last = text.rpartition(" ")
    clock = _clock(last)
    if clock is not None:
        if is_turned:
            return None
        text = head.strip()
        total[2] += clock
    while text:
        digits = len(text) - len(text.lstrip("+-0123456789."))
        number, text = _number(text[:digits]), text[digits:].lstrip()
        letters = len(text) - len(text.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
        word, text = text[:letters], text[letters:]
        unit = None if word == "M" else UNITS.get(word.lower())
        if number is None or unit is None or unit in seen or text[:1] in ("+", "-"):
            return None
        if clock is not None and unit[2]:
            return None
        seen.append(unit)
        short = short or word == "m"
        if not _add(total, number, unit):
            return None
        text = text.lstrip()
    if short and any(months for months, _, _ in seen):
        return None
    return total if seen or clock is not None else None


def _standard(words: list[str]) -> list[Decimal] | None:
    """`1-2`, `3 4:05:06`, and both; a minus before the first part only is for all of them, or not."""
    total, signed = [Decimal(0)] * 3, []
    words = list(words)
    if "-" in words[0][1:]:
        first = words.pop(0)
        sign = -1 if first.startswith("-") else 1
        years, _, months = first.lstrip("+-").partition("-")
        if not (years.isdigit() and months.isdigit() and int(months) < 12):
            return None
        total[0] += sign * (int(years) * 12 + int(months))
        signed.append(first)
    if words:
        if len(words) != 2 or not words[0].lstrip("+-").isdigit() or (clock := _clock(words[1])) is None:
            return None
        total[1] += int(words[0])
        total[2] += clock
        signed += words
    is_unclear = signed[0].startswith("-") and any(word[0] not in "+-" for word in signed[1:])
    return None if is_unclear else total


def _iso(word: str) -> list[Decimal] | None:
    total = [Decimal(0)] * 3
    date, has_time, time = word[1:].partition("T")
    if (has_time and not time) or word == "P":
        return None
    for text, letters, units in ((date, "YMWD", ["year", "mon", "week", "day"]), (time, "HMS", ["h", "min", "s"])):
        at = 0
        while text:
            digits = len(text) - len(text.lstrip("-0123456789."))
            letter, number = text[digits : digits + 1], _number(text[:digits])
            place = letters.find(letter, at) if letter else -1
            if number is None or place < 0 or not _add(total, number, UNITS[units[place]]):
                return None
            at, text = place + 1, text[digits + 1 :]
    return total
