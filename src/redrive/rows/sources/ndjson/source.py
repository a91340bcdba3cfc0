"""Lines of JSON objects, one record each."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any

from redrive.errors import SourceError
from redrive.rows.batch import Batch, Received, Record
from redrive.rows.sources.csv.scanner import TOO_LARGE
from redrive.rows.sources.files.files import (
    Files,
    Paths,
    Stream,
    add_partition,
    at_same_file,
    check_before_its_turn,
    damaged,
    names_of,
    partitions_of,
    size_of,
    with_partitions,
)
from redrive.rows.sources.files.unfit_files import (
    ONE_OBJECT_PER_LINE,
    START,
    check_that_one_is_good,
    is_odd,
    refuse_file,
    refuse_json_document,
    refuse_markup,
    refuse_utf_16,
    set_aside,
)
from redrive.rows.sources.ndjson.lines import LineStart, decoded, is_object, known_encoding, parsed, record
from redrive.rows.sources.source import Reading

_BLOCK = 1 << 20
_MOST_AT_ONCE = 32 << 20
_LINES_TO_FIND_OBJECT = 1_000
_BATCH_BYTES = 32 << 20  # a batch of large lines is cut shorter: memory stays flat
_LINE_END = re.compile(rb"\r\n?|\n")


def ndjson(path: Paths, *, encoding: str = "utf-8", max_record_bytes: int = 128 << 20) -> Ndjson:
    """Read files in which every line is a JSON object; a path, a glob, or several; plain, gzip or zstd.

    A line that is not an object becomes a letter; a file without any object is a `SourceError`. Numbers are exact:
    integers as ints of any size, others as floats, or as Decimals if a float would change them. A repeated key of an
    object has its last value; NaN and Infinity are accepted, as in Python's json.

    path              a file, a glob ("in/**/*.ndjson"), or a list of them
    encoding          UTF-8, or any other that contains ASCII
    max_record_bytes  maximum size of a line; the letter of a longer one has its beginning
    """
    if not isinstance(max_record_bytes, int) or max_record_bytes < 1:
        raise ValueError(f"max_record_bytes must be a number of bytes from 1 up, not {max_record_bytes!r}")
    return Ndjson(Files(path, example="*.ndjson"), known_encoding(encoding), max_record_bytes)


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

    def compared_options(self) -> dict[str, Any]:
        """See `ComparesOptions`. The encoding is part of the identity."""
        return self._files.compared_options()

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> Reading:
        names = names_of(identity["files"])
        partitions = partitions_of(names, self._files.patterns)
        reading = NdjsonReading(identity["files"], position, self._encoding, self._most)
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
        return record(raw if isinstance(raw, str) else decoded(raw, self._encoding))


class NdjsonReading:
    """See `Reading`."""

    columns: tuple[str, ...] | None = None

    def __init__(
        self, files: Sequence[Mapping[str, Any]], position: Mapping[str, Any] | None, encoding: str, most: int
    ) -> None:
        """`files` are those of the source's identity."""
        names = names_of(files)
        self._files = {file["name"]: file for file in files}
        # As they were: a file may be moved or removed once it is open.
        self._sizes = {name: size_of([name]) for name in names}
        self.total: int | None = sum(self._sizes.values())
        self._encoding = encoding
        self._most = most
        self._names = names
        check_that_one_is_good(names, lambda name: self._open(name).close())
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
                check_before_its_turn(self._files[self._left[0]])
                try:
                    self._lines = self._open(self._left[0])
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

    def _open(self, name: str) -> _Lines:
        lines = _Lines(name, self._most)
        try:
            _refuse_other_format(lines, self._encoding)
        except BaseException:
            lines.close()
            raise
        return lines

    def _skip_to(self, position: Mapping[str, Any]) -> None:
        name = position["file"]
        if name not in self._left:
            raise SourceError(f"{name}, in which the run resumes, is not among the files")
        while self._left[0] != name:
            self._done += self._sizes[self._left.pop(0)]
        if position["ended"]:
            self._done += self._sizes[self._left.pop(0)]
        else:
            self._lines = _Lines(name, self._most)
            self._lines.place = (position["byte"], position["line"])

    def _leave(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None
            self._done += self._sizes[self._left.pop(0)]

    def _set_aside(self, error: SourceError) -> Batch:
        name = self._left.pop(0)
        self._done += self._sizes[name]
        return set_aside(name, error, {"file": name, "byte": 0, "line": 1, "ended": True}, done=self._done)

    def _take(self, lines: _Lines, most: int) -> Batch | None:
        """Return a batch; None if there were only empty lines, or none at all."""
        first = lines.place[1]
        rows, numbers, unreadable = parsed(lines.take(most), first, self._encoding, lines.most)
        byte, line = lines.place
        ended = lines.ended and lines.fault is None  # a run that resumes after damage must find it again
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

    def start(self) -> bytes:
        """Return the first bytes, which show what the file is."""
        start = self._stream.read(START)
        self._stream.seek(0)
        return start

    def take(self, most: int) -> list[bytes]:
        """Return the next lines, with their ends."""
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
        """Return how many bytes of the file, as it lies on the disk, were read."""
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
            is_part = not last.endswith(b"\n")  # also after a CR, whose LF may follow
        self._tail = lines.pop() if lines and is_part else b""
        self._size += sum(map(len, lines))
        if lines and max(map(len, lines)) > self.most:
            lines = [self._beginning(line, len(line)) if len(line) > self.most else line for line in lines]
        self._ready += lines

    def _pass_over(self) -> None:
        """Read to the end of a line that is too long, and keep its beginning: memory stays flat."""
        beginning, size, data, ends = self._tail, len(self._tail), b"", 0
        is_over = beginning.endswith(b"\r")
        while not is_over and not self._final:
            data = self._stream.read(_BLOCK)
            self._final = len(data) < _BLOCK
            match = _LINE_END.search(data)
            is_over, ends = match is not None, len(data) if match is None else match.end()
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

    def _beginning(self, line: bytes, size: int) -> LineStart:
        self._has_long = True
        return LineStart.of(line, size, self.most)

    def _bytes_of(self, lines: Sequence[bytes]) -> int:
        left_out = (line.size - len(line) for line in lines if isinstance(line, LineStart)) if self._has_long else ()
        return sum(map(len, lines)) + sum(left_out)


def _refuse_other_format(lines: _Lines, encoding: str) -> None:
    """Raise SourceError for a file that is not NDJSON: by its first bytes, or because no line of it is an object.

    Otherwise each of its lines would be a letter, and the run complete.
    """
    start = lines.start().removeprefix(codecs.BOM_UTF8)
    refuse_utf_16(lines.name, start)
    refuse_markup(lines.name, start, "NDJSON")
    refuse_json_document(lines.name, start)
    if any(is_object(line, encoding) for line in start.splitlines()[:-1]):
        return  # of nearly every file, its first line
    wrong = ""
    while not lines.ended:
        first, taken = lines.place[1], lines.take(_LINES_TO_FIND_OBJECT)
        if any(is_object(line, encoding) for line in taken):
            wrong = ""
            break
        unreadable = [] if wrong else parsed(taken, first, encoding, lines.most)[2]
        wrong = wrong or next((f"{bad.position}: {bad.error}" for bad in unreadable), "")
    if wrong and lines.fault is None:
        raise SourceError(f"{lines.name} is not NDJSON: no line is a JSON object ({wrong}). {ONE_OBJECT_PER_LINE}")
    lines.place = (0, 1)
