"""CSV and TSV files as a source: `csv("deliveries/*.csv.gz")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redrive.rows.batch import Record
from redrive.rows.sources.csv.encoding import UTF_8, is_utf_16, known_encoding, undecodable
from redrive.rows.sources.csv.reader import CUT_OFF, CsvOptions, CsvReading, columns_of, read_context
from redrive.rows.sources.csv.records import CsvDialect, record_at
from redrive.rows.sources.csv.scanner import TOO_LARGE
from redrive.rows.sources.files.files import (
    Files,
    Paths,
    add_partition,
    at_same_file,
    names_of,
    partitions_of,
    with_partitions,
)
from redrive.rows.sources.files.unfit_files import FileFitCheck, refuse_file
from redrive.rows.sources.source import Misfit, Reading


def csv(
    path: Paths,
    *,
    delimiter: str | None = None,
    quote: str | None = '"',
    header: bool = True,
    columns: Sequence[str] | None = None,
    encoding: str = "utf-8",
    null: Sequence[str] = ("",),
    skip: int = 0,
    max_record_bytes: int = 128 << 20,
) -> CsvSource:
    """Read rows from CSV files, compressed with gzip or zstd or not; every value is a text, or None.

    path       a file, a glob ("in/**/*.csv"), or a list of them; all have the same columns
    delimiter  one ASCII character; default: a tab in a .tsv file and a comma in any other
    quote      one ASCII character, doubled within a field; None if quotes have no meaning
    header     whether the first record names the columns
    columns    the names of the columns in a file without a header; default: column_1, column_2 …
    encoding   UTF-8, any encoding that contains ASCII, or UTF-16
    null       texts that are read as None, unless they are quoted: `,,` is None, `,"",` is ""
    skip       lines before the header that are not part of the table
    max_record_bytes  maximum size of a record; the letter of a larger one has its beginning

    A line ends with a line feed, a carriage return, or both. A record ends where Python's `csv` module ends it. What is
    not a row becomes a letter with its bytes, and reading continues after it.
    """
    if header and columns is not None:
        raise ValueError("columns names those of a file without a header: add header=False, or leave it out")
    if not isinstance(skip, int) or skip < 0:
        raise ValueError(f"skip must be a number of lines from 0 up, not {skip!r}")
    if not isinstance(max_record_bytes, int) or max_record_bytes < 1:
        raise ValueError(f"max_record_bytes must be a number of bytes from 1 up, not {max_record_bytes!r}")
    separator = None if delimiter is None else _sign("delimiter", delimiter)
    quotes = None if quote is None else _sign("quote", quote)
    if quotes is not None and quotes in ((b",", b"\t") if separator is None else (separator,)):
        raise ValueError(f"delimiter and quote must differ, and both are {quote!r}")
    known = known_encoding(encoding, (separator or b",", quotes or b""))
    options = CsvOptions(
        delimiter=separator,
        quote=quotes,
        null=_null(null, quote, known),
        encoding=known,
        has_header=bool(header),
        columns=None if columns is None else _columns(columns),
        skip=skip,
        most=max_record_bytes,
    )
    return CsvSource(Files(path, example="*.csv"), options)


class CsvSource:
    """See `Source`."""

    of_text = True
    """Every value is a text; see `Outgoing.of_text`."""

    def __init__(self, files: Files, options: CsvOptions) -> None:
        self.name = files.name
        self._files = files
        self._options = options

    def __repr__(self) -> str:
        return f"<csv {self.name!r}>"

    def identity(self) -> dict[str, Any]:
        return {**self._units(), "files": self._files.identity()}

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        units = {key: value for key, value in identity.items() if key != "files"}
        if units != self._units():
            was, now = (" in ".join(map(str, item.values())) for item in (units, self._units()))
            return f"it was taken over {was}, not over {now}"
        return self._files.difference(identity["files"])

    def compared_options(self) -> dict[str, Any]:
        """See `ComparesOptions`."""
        options = self._options
        delimiter, quote = (None if sign is None else sign.decode() for sign in (options.delimiter, options.quote))
        return {
            "delimiter": delimiter,
            "quote": quote,
            "header": options.has_header,
            "columns": None if options.columns is None else list(options.columns),
            "encoding": options.encoding,
            "null": sorted(options.null),
            "skip": options.skip,
            **self._files.compared_options(),
        }

    def open(self, position: Any | None, identity: Mapping[str, Any]) -> Reading:
        return self.open_fitting(position, identity, None)

    def open_fitting(self, position: Any | None, identity: Mapping[str, Any], misfit: Misfit | None) -> Reading:
        """See `SetsFilesAside`. The first file that fits names the columns, and one that has others is set aside."""
        names = names_of(identity["files"])
        partitions = partitions_of(names, self._files.patterns)
        fit = FileFitCheck(misfit, names, partitions, lambda name: columns_of(name, self._options))
        reading = CsvReading(identity["files"], position, self._options, fit)
        return with_partitions(at_same_file(reading, position, identity["files"]), partitions)

    def again(self, raw: Any, context: Mapping[str, Any] | None = None) -> Record | list[Record]:
        refuse_file(raw)
        return add_partition(self._again(raw, context), context)

    def _again(self, raw: Any, context: Mapping[str, Any] | None) -> Record | list[Record]:
        if isinstance(raw, Mapping):
            if set(raw) == {CUT_OFF}:
                raise ValueError(
                    "the line was truncated at the end of its stream; load the whole file, or edit the record"
                )
            if set(raw) == {TOO_LARGE}:
                raise ValueError(
                    "the letter holds only the beginning of the record; "
                    "run the pipeline again with a larger max_record_bytes, or edit the record"
                )
            return dict(raw)
        if not isinstance(raw, str | bytes):
            raise ValueError(f"a line of a CSV file is a text, bytes or a record, not a {type(raw).__name__}")
        columns, dialect, encoding = self._format_of(raw, context)
        lines = raw.encode(UTF_8, "surrogatepass") if isinstance(raw, str) else raw
        records = _records(lines, columns, dialect, encoding)
        return records[0] if len(records) == 1 else records

    def _format_of(self, raw: str | bytes, context: Mapping[str, Any] | None) -> tuple[Sequence[str], CsvDialect, str]:
        """Return the columns, the dialect and the encoding of a letter.

        A line is taken apart as its file was written when the letter was made, whatever the files are now. The encoding
        and what stands for None are those of today: these are what an operator changes to fix a letter.
        """
        # A text was decoded before, and perhaps edited by an operator.
        encoding = UTF_8 if isinstance(raw, str) else self._options.of_bytes
        if context is not None:
            columns, delimiter, quote, of_bytes = read_context(context)
            encoding = encoding if isinstance(raw, str) or of_bytes is None else of_bytes
            null = self._options.null_bytes(encoding)
            return columns, CsvDialect(delimiter, quote, null, self._options.has_header), encoding
        if self._options.columns is not None:
            return self._options.columns, self._options.dialect(self._files.patterns[0], encoding), encoding
        raise ValueError(
            "the letter is a line of text without the header of its file (an older version of redrive made it, or its "
            "fields were edited into a line): "
            'edit the record into fields, such as {"id": "7"}'
        )

    def _units(self) -> dict[str, Any]:
        """Return what the positions are counted in: those of UTF-16 are not the file's own."""
        kind: dict[str, Any] = {"kind": "csv"}
        return {**kind, "encoding": self._options.encoding} if is_utf_16(self._options.encoding) else kind


def _records(lines: bytes, columns: Sequence[str], dialect: CsvDialect, encoding: str) -> list[Record]:
    """Return the rows of some lines; raise ValueError for the first line that is not a row."""
    data = lines if lines.endswith((b"\n", b"\r")) else lines + b"\n"
    records: list[Record] = []
    at = 0
    while at < len(data):
        record = record_at(data, at, dialect, len(columns), final=True)
        assert record is not None
        wrong = record.error or undecodable(data[at : record.end], encoding)
        if wrong:
            raise ValueError(wrong)
        at = record.end
        if record.fields is not None:
            values = [field.value(dialect, encoding) for field in record.fields]
            records.append(dict(zip(columns, values, strict=True)))
    if not records:
        raise ValueError("there is no row in it")
    return records


def _sign(option: str, value: str) -> bytes:
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n":
        raise ValueError(f"{option} must be one ASCII character, and no line end, not {value!r}")
    return value.encode()


def _columns(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or not columns or not all(isinstance(name, str) and name for name in columns):
        raise ValueError(f"columns must be a list of names, not {columns!r}")
    if len(set(columns)) < len(columns):
        raise ValueError("columns must not name one twice")
    return tuple(columns)


def _null(null: Sequence[str], quote: str | None, encoding: str) -> frozenset[str]:
    if isinstance(null, str) or not all(isinstance(text, str) for text in null):
        raise TypeError(f"null must be a list of texts, such as ('', 'N/A'), not {null!r}")
    for text in null:
        if set(text) & {"\r", "\n", quote}:
            raise ValueError(f"null cannot be {text!r}: a text with a quote or a line end in it is always quoted")
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            raise ValueError(f"null cannot be {text!r}: there is no such text in {encoding}") from None
    return frozenset(null)
