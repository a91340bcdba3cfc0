"""The encodings of CSV: which can be read, and which records are not what the encoding allows."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from redrive._internal.optional import require_extra
from redrive.errors import SourceError
from redrive.rows.sources.csv.scanner import BadRecord, RecordBlock
from redrive.rows.sources.files.files import Stream, too_short

with require_extra("rows"):
    import numpy as np

UTF_8 = "utf-8"
BOM = codecs.BOM_UTF8
_UTF_16 = ("utf-16", "utf-16-le", "utf-16-be")
_UTF_16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SKIP = 1 << 20
_UTF_32_BOMS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)  # the first begins as one of UTF-16 does


class FileBytes(Protocol):
    """A file's bytes; see `Stream`."""

    name: str
    position: int

    @property
    def fault(self) -> str | None: ...

    @property
    def damage(self) -> str | None: ...

    def read(self, most: int) -> bytes: ...

    def seek(self, position: int) -> None: ...

    def progress(self) -> int: ...

    def close(self) -> None: ...


def known_encoding(encoding: str, signs: Sequence[bytes]) -> str:
    """Return the name of an encoding in Python; one in which records cannot be separated is rejected.

    signs  the delimiter and the quote
    """
    try:
        name = codecs.lookup(encoding).name
        if name in ("utf-8-sig", *_UTF_16):
            return name.removesuffix("-sig")
        ascii_kept = all(_keeps(bytes([byte]), name) for byte in range(128)) and _keeps(b"+AGE- \\u0061 ~~", name)
    except (LookupError, TypeError):
        raise ValueError(f"{encoding!r} is not an encoding that Python knows") from None
    signs = (*signs, b"\r", b"\n")
    # The second byte of a Chinese or Japanese character may look like a sign of ASCII, such as "|".
    if not ascii_kept or any(_swallows(bytes([first]), sign, name) for first in range(128, 256) for sign in signs):
        raise ValueError(f"CSV in {encoding} cannot be taken apart by its bytes: convert the file to UTF-8 first")
    return name


def is_utf_16(encoding: str) -> bool:
    """Return whether the text must be converted before it is taken apart."""
    return encoding in _UTF_16


def open_text(name: str, encoding: str) -> FileBytes:
    """Return the bytes of a file; UTF-16, by option or by its first bytes, is converted to UTF-8."""
    stream = Stream(name)
    head = stream.read(4)
    if head:
        stream.seek(0)
    if head in _UTF_32_BOMS and not is_utf_16(encoding):
        stream.close()
        raise SourceError(f"{name} is UTF-32: convert it to UTF-8 first, as with iconv -f UTF-32 -t UTF-8")
    if encoding == UTF_8 and head.startswith(_UTF_16_BOMS):
        encoding = "utf-16"
    return Utf16Stream(stream, encoding) if is_utf_16(encoding) else stream


class Utf16Stream:
    """A stream of UTF-16 as UTF-8; its positions are those of the latter. Half a character stays half a one."""

    def __init__(self, stream: Stream, encoding: str) -> None:
        self.name = stream.name
        self.position = 0
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self._rest = b""
        self._ended = False
        self._fault: str | None = None

    @property
    def fault(self) -> str | None:
        return self._stream.fault or self._fault

    @property
    def damage(self) -> str | None:
        return self._stream.damage

    def read(self, most: int) -> bytes:
        pieces = [self._rest]
        size = len(self._rest)
        while size < most and not self._ended:
            piece = self._decoded(self._stream.read(most))
            pieces.append(piece)
            size += len(piece)
        data = b"".join(pieces)
        data, self._rest = data[:most], data[most:]
        self.position += len(data)
        return data

    def seek(self, position: int) -> None:
        """Go forward to a position."""
        while self.position < position and self.read(min(_SKIP, position - self.position)):
            pass
        if self.position < position:
            raise too_short(self.name, position)

    def progress(self) -> int:
        return self._stream.progress()

    def close(self) -> None:
        self._stream.close()

    def _decoded(self, data: bytes) -> bytes:
        self._ended = not data
        try:
            return self._decoder.decode(data, final=self._ended).encode(UTF_8, "surrogatepass")
        except UnicodeDecodeError:
            self._fault = "the UTF-16 text ends in the middle of a character"
            return b""


def undecodable(raw: bytes, encoding: str) -> str | None:
    """Return what is wrong with the bytes of a record, where something is."""
    try:
        raw.decode(encoding)
    except UnicodeDecodeError as error:
        column = error.start - max(raw.rfind(b"\n", 0, error.start), raw.rfind(b"\r", 0, error.start))
        name = "UTF-8" if encoding == UTF_8 else encoding
        return f"not {name}: byte 0x{raw[error.start]:02x} at column {column}"
    return None


def mark_undecodable(block: RecordBlock, encoding: str) -> None:
    """Mark the records that the encoding does not allow."""
    if block.data.isascii():
        return
    try:
        str(memoryview(block.data)[: block.rest], encoding)
    except UnicodeDecodeError:
        high = np.flatnonzero(np.frombuffer(block.data, np.uint8) >= 128)
        for record in block.good_at(high):
            if wrong := undecodable(block.raw(record), encoding):
                block.bad[record] = BadRecord(wrong)


def _keeps(text: bytes, encoding: str) -> bool:
    """Return whether this ASCII is the same in the encoding."""
    try:
        return text.decode(encoding) == text.decode("ascii")
    except UnicodeDecodeError:
        return False


def _swallows(first: bytes, sign: bytes, encoding: str) -> bool:
    """Return whether a byte makes one character of itself and the sign after it."""
    try:
        return not (first + sign).decode(encoding).endswith(sign.decode("ascii"))
    except UnicodeDecodeError:
        return False
