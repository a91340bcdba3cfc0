"""The line of each key of a TOML document."""

import tomllib
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.config.lines import lines

DOCUMENT = dedent(
    """\
    top = 1  # a comment = 2
    "quoted key" = 'a # b'
    dotted . 'k' = 3
    dotted.other = 4
    text = '''
    not = "a key"
    [not.a.table]
    '''
    quotes = \"\"\"a \"\" b \\\"\"\" c
    ""\"""
    list = [ # begins
        1, [2,
        3],
        { x = "}", y.z = [
            4] },
    ]
    moment = 1979-05-27 07:32:00.5

    [a.b]  # before [a]
    c = {}
    [a]
    d = 1
    [[items]]
    name = "one"
    [[items.parts]]
    [items.sub]
    [[items]]
    [items.sub]
    [[items.parts]]
    [[items.parts]]
    size = 1
    """
)

WHERE = {
    "top": 1,
    "quoted key": 2,
    "dotted": 3,
    "dotted.k": 3,
    "dotted.other": 4,
    "text": 5,
    "quotes": 9,
    "list": 11,
    "list.0": 12,
    "list.1": 12,
    "list.1.0": 12,
    "list.1.1": 13,
    "list.2": 14,
    "list.2.x": 14,
    "list.2.y": 14,
    "list.2.y.z": 14,
    "list.2.y.z.0": 15,
    "moment": 17,
    "a.b": 19,
    "a.b.c": 20,
    "a": 21,
    "a.d": 22,
    "items": 23,
    "items.0": 23,
    "items.0.name": 24,
    "items.0.parts": 25,
    "items.0.parts.0": 25,
    "items.0.sub": 26,
    "items.1": 27,
    "items.1.sub": 28,
    "items.1.parts": 29,
    "items.1.parts.0": 29,
    "items.1.parts.1": 30,
    "items.1.parts.1.size": 31,
}


def test_every_form_of_a_key_has_its_line():
    assert {".".join(map(str, key)): line for key, line in lines(DOCUMENT).items()} == WHERE


@pytest.mark.parametrize("text", ["", "\n\n", "# only = this\n", " \t# and this"])
def test_document_without_keys_has_no_lines(text):
    assert lines(text) == {}


# ── documents of all kinds, whose lines are known because they are counted while they are written ─────────────────────

SCALARS = [
    *("0", "-3.5e2", "0xff", "true", "inf", "1979-05-27 07:32:00.5", "1979-05-27T07:32:00Z", "07:32:00"),
    *('""', "''", '"# = ] } , ."', "'c:\\d'", r'"a \" ] = \\"', '"x = [1, 2]"'),
    *('"""one line"""', '"""\nx = 1\n[y]\n"""', "'''\nx = 1\n[[y]]'''", '""""quoted""""', "'''''two'''"),
    *('"""a \\\n   b"""', '"""\\""" = 1\n"""', '""""""', "''''''", '"""x"""""'),
]
GAPS = ["\n", "\n\n", " # x = [\n", "  # ''' \"\"\"\n\n# [a]\n\t"]
SPACES = ["", " ", "\t "]


class Writer:
    """Writes a document, and notes what stands where."""

    def __init__(self, draw):
        self.draw, self.text, self.where, self.named = draw, "", {}, 0

    def choose(self, options):
        return self.draw(st.sampled_from(options))

    def number(self, most):
        return self.draw(st.integers(0, most))

    def note(self, key):
        self.where.setdefault(key, self.text.count("\n") + 1)

    def name(self):
        """An unused name, and one way to write it."""
        self.named += 1
        name = self.choose(["n{}", "{}", "-{}", "a b{}", "x.y{}", "# [{}]", "é = {}", '"{}', "'{}", ""]).format(
            self.named
        )
        name = name or f"_{self.named}"
        if name.isascii() and name.replace("-", "").replace("_", "").isalnum() and self.number(3):
            return name, name
        if "'" not in name and self.number(1):
            return name, f"'{name}'"
        return name, '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("é", "\\u00e9") + '"'

    def statement(self, table, depth=0, below=()):
        """One key and its value, the key perhaps of several names."""
        names = [*below, *(self.name() for _ in range(1 + self.number(2) // 2 + self.number(2) // 2))]
        key = table
        for name, _ in names:
            key = (*key, name)
            self.note(key)
        self.text += f"{self.choose(SPACES)}.{self.choose(SPACES)}".join(written for _, written in names)
        self.text += f"{self.choose(SPACES)}={self.choose(SPACES)}"
        self.value(key, depth)
        return names

    def value(self, key, depth):
        kind = self.number(4) if depth < 3 else 0
        if kind == 4:
            self.inline_table(key, depth)
        elif kind == 3:
            self.list(key, depth)
        else:
            self.text += self.choose(SCALARS)

    def list(self, key, depth):
        self.text += "["
        count = self.number(3)
        for place in range(count):
            self.text += self.choose([*SPACES, *GAPS])
            self.note((*key, place))
            self.value((*key, place), depth + 1)
            self.text += self.choose([*SPACES, *GAPS])
            self.text += "," if place < count - 1 or self.number(1) else ""
        self.text += self.choose([*SPACES, *GAPS]) + "]"

    def inline_table(self, key, depth):
        self.text += "{" + self.choose(SPACES)
        count = self.number(3)
        for place in range(count):
            self.statement(key, depth + 1)
            self.text += self.choose(SPACES) + ("," if place < count - 1 else "") + self.choose(SPACES)
        self.text += "}"

    def body(self, table):
        for _ in range(self.number(3)):
            self.text += self.choose(SPACES)
            names = self.statement(table)
            self.text += self.choose(GAPS)
            if len(names) > 1:  # one more key of the same table
                self.statement(table, below=names[:-1])
                self.text += self.choose(GAPS)

    def header(self, key, written, *, many=False):
        self.text += self.choose(SPACES)
        self.where[key] = self.text.count("\n") + 1
        gap = self.choose(SPACES)
        self.text += f"{'[[' if many else '['}{gap}{written}{gap}{']]' if many else ']'}" + self.choose(GAPS)

    def table(self):
        name, written = self.name()
        inner, inner_written = self.name()
        if self.number(1):  # [a.b], perhaps before [a]
            self.note((name,))
            self.header((name, inner), f"{written} . {inner_written}")
            self.body((name, inner))
            if not self.number(1):
                return
        self.header((name,), written)
        self.body((name,))

    def array_of_tables(self):
        (name, written), (inner, inner_written), (sub, sub_written) = (self.name() for _ in range(3))
        for place in range(1 + self.number(2)):
            self.note((name,))
            self.header((name, place), written, many=True)
            self.body((name, place))
            for inner_place in range(self.number(2)):
                self.note((name, place, inner))
                self.header((name, place, inner, inner_place), f"{written}.{inner_written}", many=True)
                self.body((name, place, inner, inner_place))
            if self.number(1):
                self.header((name, place, sub), f"{written} .{sub_written}")
                self.body((name, place, sub))


@st.composite
def documents(draw):
    writer = Writer(draw)
    writer.text += writer.choose(["", *GAPS])
    writer.body(())
    for _ in range(writer.number(4)):
        (writer.table if writer.number(1) else writer.array_of_tables)()
    return writer.text, writer.where


def keys_of(value, key=()):
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield (*key, name)
        yield from keys_of(one, (*key, name))


@given(documents())
def test_every_key_of_any_document_has_its_line(document):
    text, where = document
    assert set(keys_of(tomllib.loads(text))) == set(where)  # or the writer is wrong
    assert lines(text) == where


@given(documents())
def test_other_line_ends_change_nothing(document):
    text, where = document
    assert lines(text.replace("\n", "\r\n")) == where
