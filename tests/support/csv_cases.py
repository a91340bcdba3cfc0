"""Generated CSV files, each known by its number: all line ends, quotes, sizes around the reader's limits, damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.corruption import corrupt

LINE_ENDS = [b"\n", b"\r\n", b"\r"]
# What a file is made of, what it should not be made of, and what a parser may take for something else.
PIECES = [
    b",",
    b'"',
    b"\n",
    b"\r",
    b"\r\n",
    b'""',
    b'","',
    b'"\n',
    b'\n"',
    b'"\r',
    b'\r"',
    b"a",
    b"NA",
    b"x\x01",
    b"\x00",
]
PIECES += ["é".encode(), b"\xc3", b"\xff", b"\xef\xbb\xbf", b"1,2,3\n", b'"1","2","3"\r', b" ", b"\t", b"#", b"\\"]
FIELDS = [
    b"",
    b"1",
    b"x y",
    b"NA",
    b'5" pipe',
    b"\\",
    b" ",
    b"\x00",
    "é中".encode(),
    b'""',
    b'"x"',
    b'"p""q"',
    b'"a,b"',
]
FIELDS += [b'"p\nq"', b'"p\r\nq"', b'"p\rq"', b'"\n"', b'"dear\nsir,madam\n5, ""6"""', b'"\r\n\r\n,"', b'"""\n"""']
BROKEN = [b'"', b'"open', b'"x"y', b'"x" ', b"1,2", b"\xff", b'"p\nq"z', b'"a\nb,c\nd', b'x"']
ENCODINGS = ["utf-8"] * 6 + ["cp1252", "latin-1", "shift_jis", "utf-16", "utf-16-le"]


@dataclass(frozen=True)
class CsvCase:
    """One file, and how it is read.

    text         the bytes of the records, as the oracle is given them: UTF-8 where the file is UTF-16
    content      the file
    block        bytes that the reader takes at a time
    batch        rows of a batch
    batch_bytes  bytes of a batch
    """

    number: int
    text: bytes
    content: bytes
    width: int
    delimiter: bytes
    quote: bytes | None
    has_header: bool
    encoding: str
    null: tuple[str, ...]
    max_record_bytes: int
    block: int
    batch: int
    batch_bytes: int

    @property
    def columns(self) -> list[str]:
        return [f"c{number}" for number in range(self.width)]

    @property
    def text_encoding(self) -> str:
        return "utf-8" if self.encoding.startswith("utf-16") else self.encoding

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `rows.csv`."""
        columns = {} if self.has_header else {"columns": self.columns}
        return {
            "delimiter": self.delimiter.decode(),
            "quote": None if self.quote is None else self.quote.decode(),
            "header": self.has_header,
            "encoding": self.encoding,
            "null": self.null,
            "max_record_bytes": self.max_record_bytes,
            **columns,
        }


def make_case(number: int) -> CsvCase:
    """Return the file of this number."""
    random = Random(number)
    width = random.choice([1, 2, 2, 2, 3, 3, 4])
    block = random.choice([3, 4, 5, 7, 16, 64, 64, 1 << 20])
    body = random.choice([_noise, _table, _table, _table, _around_a_limit])(random, width, block)
    if random.random() < 0.5:
        body = corrupt(random, body, PIECES)
    has_header = random.random() < 0.3
    header = b",".join(b"c%d" % column for column in range(width)) + random.choice(LINE_ENDS)
    text = header + body if has_header else body
    encoding = random.choice(ENCODINGS)
    delimiter, quote = b",", b'"'
    if random.random() < 0.1:
        delimiter, quote = random.choice([(b";", b"'"), (b"\t", b'"'), (b"|", b'"')])
        text = text.translate(bytes.maketrans(b',"', delimiter + quote))
        encoding = "utf-8" if encoding == "shift_jis" else encoding  # its characters may end with a "|"
    if encoding.startswith("utf-16"):
        text = text.decode("utf-8", "replace").lstrip("\ufeff").encode()
        content = text.decode().encode(encoding)
    elif random.random() < 0.1:
        encoding, content = "utf-8", b"\xef\xbb\xbf" + text
    else:
        text = content = _without_mark(text)
    return CsvCase(
        number=number,
        text=text,
        content=content,
        width=width,
        delimiter=delimiter,
        quote=None if random.random() < 0.05 else quote,
        has_header=has_header,
        encoding=encoding,
        null=random.choice([("",), ("",), ("", "NA"), ("NA",), ()]),
        max_record_bytes=random.choice([1, 5, 20, 60, 200, 128 << 20, 128 << 20, 128 << 20]),
        block=block,
        batch=random.choice([1, 2, 7, 7, 1_000, 1_000, 1_000]),
        batch_bytes=random.choice([1, 30, 200, *[32 << 20] * 5]),
    )


def _without_mark(text: bytes) -> bytes:
    """Return text that does not begin like another format."""
    marks = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
    return b"1" + text if text.startswith(marks) else text


def _noise(random: Random, width: int, block: int) -> bytes:
    return b"".join(random.choices(PIECES, k=random.randint(0, 60)))


def _table(random: Random, width: int, block: int) -> bytes:
    """Mostly rows of the right width, with the same line end or different ones."""
    one_line_end = random.choice(LINE_ENDS)
    lines = []
    for _ in range(random.randint(0, random.choice([4, 12, 40]))):
        fields = random.choices(FIELDS, k=width)
        fault = random.random()
        if fault < 0.05:
            fields = random.choices(FIELDS, k=random.randint(0, 5))
        elif fault < 0.1:
            fields[random.randrange(width)] = random.choice(BROKEN)
        lines.append(b",".join(fields) + (one_line_end if random.random() < 0.9 else random.choice(LINE_ENDS)))
    text = b"".join(lines)
    return text if random.random() < 0.7 else text.rstrip(b"\r\n")


def _around_a_limit(random: Random, width: int, block: int) -> bytes:
    """A record that ends a few bytes around the end of a block, or of several, and what follows it."""
    size = min(block, 4_096) * random.choice([1, 1, 2, 4]) + random.randint(-3, 3)
    text: Callable[[int], bytes] = random.choice([lambda size: b"x" * size, lambda size: b"y\n" * (size // 2)])
    tail = b"," * (width - 1) + random.choice(LINE_ENDS)
    quoted = random.random() < 0.7
    filling = text(max(0, size - len(tail) - 2 * quoted))
    first = b'"' + filling + b'"' if quoted else filling.replace(b"\n", b"z")
    return first + tail + _table(random, width, block)
