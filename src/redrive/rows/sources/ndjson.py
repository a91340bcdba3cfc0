"""Lines of JSON objects, one record each."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Record, Unreadable
from redrive.rows.sources.csv_structure import BEGINNING, TOO_LARGE
from redrive.rows.sources.files import Files, Paths, Stream, at_same_file, damaged, names_of, size_of
from redrive.rows.sources.json_numbers import has_long_number, is_exact, loads
from redrive.rows.sources.odd_files import check_that_one_is_good, is_odd, refuse_file, set_aside
from redrive.rows.sources.partitions import add_partition, partitions_of, with_partitions
from redrive.rows.sources.source import Reading

_BLOCK = 1 << 20
_MOST_AT_ONCE = 32 << 20
_BATCH_BYTES = 32 << 20  # a batch of large lines is cut shorter: memory stays flat
_SIDE_BY_SIDE = re.compile(rb"\}\s*\{")
_LINE_END = re.compile(rb"\r\n?|\n")
_JSON_SIGNS = '{}[]":,\\ \t\r\n0'


def ndjson(path: Paths, *, encoding: str = "utf-8", max_record_bytes: int = 128 << 20) -> Ndjson:
    """Read files in which every line is a JSON object; a path, a glob, or several; plain, gzip or zstd.

    A line that is none is handed out as it is. Numbers are kept exactly: integers as ints of any size, others as
    floats, or as Decimals where a float would change them. A key that comes twice in an object has its last value; NaN
    and Infinity are taken, as Python's json does.

    path              a file, a glob ("in/**/*.ndjson"), or a list of them
    encoding          UTF-8, or any other in which the signs of JSON are those of ASCII
    max_record_bytes  size of the longest line that is read; of a longer one the letter holds the beginning
    """
    if not isinstance(max_record_bytes, int) or max_record_bytes < 1:
        raise ValueError(f"max_record_bytes must be a number of bytes from 1 up, not {max_record_bytes!r}")
    return Ndjson(Files(path, example="*.ndjson"), _known(encoding), max_record_bytes)


class Ndjson:
    """See `Source`."""

    def __init__(self, files: Files, encoding: str, most: int) -> None:
        self.name = files.name
        self._files = files
        self._encoding = encoding
        self._most = most

    def __repr__(self) -> str:
        return f"<ndjson {self.name!r}>"

    def identity(self) -> dict[str, Any]:
        return {"kind": "ndjson", "encoding": self._encoding, "files": self._files.identity()}

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        if identity.get("kind") != "ndjson":
            return f"it was taken over {identity.get('kind')}, not over ndjson"
        if identity["encoding"] != self._encoding:
            return f"its encoding was {identity['encoding']}, and here it is {self._encoding}"
        return self._files.difference(identity["files"])

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> Reading:
        names = names_of(identity["files"])
        partitions = partitions_of(names, self._files.patterns)
        reading = NdjsonReading(names, position, self._encoding, self._most)
        return with_partitions(at_same_file(reading, position, identity["files"]), partitions)

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record | list[Record]:
        refuse_file(raw)
        return add_partition(self._again(raw), context)

    def _again(self, raw: Any) -> Record:
        if isinstance(raw, Mapping):
            if set(raw) == {TOO_LARGE}:
                raise ValueError(
                    "the letter holds only the beginning of the record; "
                    "run the pipeline again with a larger max_record_bytes, or edit the record"
                )
            return dict(raw)
        if not isinstance(raw, bytes | str):
            raise TypeError(f"a line of JSON is bytes or text, not a {type(raw).__name__}")
        return _record(raw if isinstance(raw, str) else _decoded(raw, self._encoding))


class NdjsonReading:
    """See `Reading`."""

    columns: tuple[str, ...] | None = None

    def __init__(self, names: Sequence[str], position: Mapping[str, Any] | None, encoding: str, most: int) -> None:
        self.total: int | None = size_of(names)
        self._encoding = encoding
        self._most = most
        self._names = names
        check_that_one_is_good(names, lambda name: _Lines(name, most).close())
        self._left = list(names)
        self._done = 0
        self._lines: _Lines | None = None
        if position is not None:
            self._skip_to(position)

    def read(self, most: int) -> Batch | None:
        while True:
            if self._lines is None or self._lines.ended:
                if self._lines is not None and self._lines.fault is not None:
                    raise damaged(self._lines.name, self._lines.fault, self._lines.place[1] - 1)
                self._leave()
                if not self._left:
                    return None
                try:
                    self._lines = _Lines(self._left[0], self._most)
                except SourceError as error:
                    if not is_odd(self._left[0], error, self._names):
                        raise
                    return self._set_aside(error)
            start = self._lines.place
            try:
                batch = self._take(self._lines, most)
            except BaseException:
                self._lines.place = start  # nothing of it was handed out
                raise
            if batch is not None:
                return batch

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _skip_to(self, position: Mapping[str, Any]) -> None:
        name = position["file"]
        if name not in self._left:
            raise SourceError(f"{name}, where to go on, is not among the files")
        while self._left[0] != name:
            self._done += size_of([self._left.pop(0)])
        if position["ended"]:
            self._done += size_of([self._left.pop(0)])
        else:
            self._lines = _Lines(name, self._most)
            self._lines.place = (position["byte"], position["line"])

    def _leave(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None
            self._done += size_of([self._left.pop(0)])

    def _set_aside(self, error: SourceError) -> Batch:
        name = self._left.pop(0)
        self._done += size_of([name])
        return set_aside(name, error, {"file": name, "byte": 0, "line": 1, "ended": True}, done=self._done)

    def _take(self, lines: _Lines, most: int) -> Batch | None:
        """A batch; None where there were only empty lines, or none at all."""
        first = lines.place[1]
        rows, numbers, unreadable = _parsed(lines.take(most), first, self._encoding, lines.most)
        byte, line = lines.place
        ended = lines.ended and lines.fault is None  # a run that goes on behind damage must meet it again
        if not rows and not unreadable:
            return None
        return Batch(
            Received(rows),
            lambda place: f"line {numbers[place]}",
            {"file": lines.name, "byte": byte, "line": line, "ended": ended},
            lines.name,
            unreadable,
            done=self._done + lines.progress(),
        )


class _Beginning(bytes):
    """The beginning of a line that is longer than the source takes."""

    size: int
    """Bytes of the whole line."""

    @classmethod
    def of(cls, line: bytes, size: int, most: int) -> _Beginning:
        made = cls(line[: min(BEGINNING, most)])
        made.size = size
        return made


class _Lines:
    """The lines of a file, ended by LF, CR LF or CR alone, as those of a CSV file are: in JSON no text has a bare CR.

    ended  whether all of them were taken
    fault  why the file ends too early, once its end was reached; what is left of a line there is not given
    """

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.most = most
        self._stream = Stream(name)
        self.place = (0, 1)

    @property
    def place(self) -> tuple[int, int]:
        """The byte and the number of the line that comes next."""
        return self._place

    @place.setter
    def place(self, place: tuple[int, int]) -> None:
        self._place = place
        self.ended = False
        self.fault: str | None = None
        self._ready: list[bytes] = []
        self._size = 0
        self._tail = b""
        self._final = False
        self._has_long = False

    def take(self, most: int) -> list[bytes]:
        """The next lines, with their ends."""
        if not self._ready and not self._tail and not self._final:
            self._stream.seek(self._place[0])
        while len(self._ready) < most and self._size < _BATCH_BYTES and not self._final:
            self._more()
        lines, self._ready = self._ready[:most], self._ready[most:]
        size = self._bytes_of(lines)
        self._size -= size
        self.ended = self._final and not self._ready
        self._place = (self._place[0] + size, self._place[1] + len(lines))
        return lines

    def progress(self) -> int:
        """How many bytes of the file, as it lies on the disk, were read."""
        return self._stream.progress()

    def close(self) -> None:
        self._stream.close()

    def _more(self) -> None:
        # Twice as much where a line is longer than what is there, so that its start is not copied too often.
        wanted = max(_BLOCK, min(len(self._tail), _MOST_AT_ONCE))
        at_start = self._stream.position == 0
        data = self._stream.read(wanted)
        self._final = len(data) < wanted
        if at_start and data.startswith(codecs.BOM_UTF8):
            data = data.removeprefix(codecs.BOM_UTF8)
            self._place = (len(codecs.BOM_UTF8), self._place[1])
        self._split(self._tail + data)
        if len(self._tail) > self.most and not self._final:
            self._pass_over()

    def _split(self, data: bytes) -> None:
        lines = data.splitlines(keepends=True)
        last = lines[-1] if lines else b""
        if self._final:
            self.fault = self._stream.fault
            is_part = self.fault is not None and not last.endswith((b"\r", b"\n"))
        else:
            is_part = not last.endswith(b"\n")  # also behind a CR, whose LF may follow
        self._tail = lines.pop() if lines and is_part else b""
        self._size += sum(map(len, lines))
        if lines and max(map(len, lines)) > self.most:
            lines = [self._beginning(one, len(one)) if len(one) > self.most else one for one in lines]
        self._ready += lines

    def _pass_over(self) -> None:
        """Read to the end of a line that is too long, and keep its beginning: memory stays flat."""
        beginning, size, data, ends = self._tail, len(self._tail), b"", 0
        is_over = beginning.endswith(b"\r")
        while not is_over and not self._final:
            data = self._stream.read(_BLOCK)
            self._final = len(data) < _BLOCK
            found = _LINE_END.search(data)
            is_over, ends = found is not None, len(data) if found is None else found.end()
            size += ends
        if is_over and ends == len(data) and (data or beginning).endswith(b"\r"):
            data += self._stream.read(1)
            if data[ends:] == b"\n":
                ends, size = ends + 1, size + 1
        fault = self._stream.fault if self._final else None
        if is_over or fault is None:
            self._ready.append(self._beginning(beginning, size))
            self._size += size
        self._tail = data[ends:]
        if self._final:
            self._split(self._tail)

    def _beginning(self, line: bytes, size: int) -> _Beginning:
        self._has_long = True
        return _Beginning.of(line, size, self.most)

    def _bytes_of(self, lines: Sequence[bytes]) -> int:
        left_out = (one.size - len(one) for one in lines if isinstance(one, _Beginning)) if self._has_long else ()
        return sum(map(len, lines)) + sum(left_out)


def _parsed(
    lines: Sequence[bytes], first: int, encoding: str, most: int
) -> tuple[list[Record], Sequence[int], list[Unreadable]]:
    """The records with the numbers of their lines, and the lines that hold none."""
    if encoding == "utf-8" and _Beginning not in set(map(type, lines)):
        try:
            found = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            pass
        else:
            are_objects = all(type(one) is dict for one in found)
            if are_objects and (not has_long_number(b"".join(lines)) or all(map(is_exact, lines, found))):
                return found, range(first, first + len(found)), []
    return _parsed_one_by_one(lines, first, encoding, most)


def _parsed_one_by_one(
    lines: Sequence[bytes], first: int, encoding: str, most: int
) -> tuple[list[Record], Sequence[int], list[Unreadable]]:
    rows: list[Record] = []
    numbers: list[int] = []
    unreadable: list[Unreadable] = []
    for number, ended in enumerate(lines, first):
        if isinstance(ended, _Beginning):
            error = f"the record has {ended.size:,} bytes, and max_record_bytes is {most:,}"
            unreadable.append(Unreadable({TOO_LARGE: bytes(ended)}, error, f"line {number}"))
            continue
        line = ended.rstrip(b"\r\n")
        if not line.strip():
            continue
        try:
            rows.append(_record_of(line, encoding))
            numbers.append(number)
        except ValueError as wrong:
            unreadable.append(Unreadable(line, str(wrong), f"line {number}", rows=_rows_in(line)))
    return rows, numbers, unreadable


def _rows_in(line: bytes) -> int:
    """How many rows a line that is no record counts as: an array by its items, objects side by side one by one."""
    if line.lstrip().startswith(b"["):
        with suppress(ValueError):
            return max(1, len(orjson.loads(line)))
    return 1 + len(_SIDE_BY_SIDE.findall(line))


def _record_of(line: bytes, encoding: str) -> Record:
    if encoding == "utf-8":
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:  # also for what Python's json takes, and to have its words
            pass
        else:
            if not has_long_number(line) or is_exact(line, found):
                return _object(found)
    return _record(_decoded(line, encoding))


def _record(text: str) -> Record:
    try:
        return _object(loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON at column {error.colno}: {error.msg.removesuffix(' at')}") from None
    except RecursionError:
        raise ValueError("no JSON that can be read: it is nested too deep") from None


def _object(found: Any) -> Record:
    if type(found) is not dict:
        raise ValueError(f"a record is a JSON object, not {_NAMES.get(type(found), 'a number')}")
    return found


_NAMES = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def _decoded(line: bytes, encoding: str) -> str:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"no {encoding}: byte 0x{line[error.start]:02x} at place {error.start + 1}") from None


def _known(encoding: str) -> str:
    """The encoding by the name that Python gives it; lines must be told by their bytes."""
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")
        told_by_bytes = _JSON_SIGNS.encode(name) == _JSON_SIGNS.encode()
    except (LookupError, TypeError):
        raise ValueError(f"{encoding!r} is no encoding that Python knows") from None
    if not told_by_bytes:
        raise ValueError(f"lines in {encoding} cannot be told by their bytes: convert the file to UTF-8 first")
    return name
