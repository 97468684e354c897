"""Rows of csv files, as texts."""

from __future__ import annotations

import csv
import io
import threading
import uuid
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from volstream.base.model.names import folded, free
from volstream.functions.loading.columns import Chunk, TextColumn, present
from volstream.functions.loading.content import MAX_RECORD_BYTES, Part, not_encoded, texts
from volstream.functions.loading.dialect import NULL, Dialect, Encoded, too_large_row, unclosed_quote
from volstream.functions.loading.formats import RecognizedFormat
from volstream.functions.loading.options import LoadOptions
from volstream.functions.loading.texts import Notation
from volstream.functions.rejection import FileRejectedError

#: Maximum characters of the first row, after any number of empty lines.
_HEAD_CHARACTERS = 1 << 20

#: A row that follows those of a file. Drawn by chance, so that no file has it, of characters that are no delimiter or quote.
_END = "".join(chr(0xE000 + digit) for digit in uuid.uuid4().bytes)

#: Lines that are encoded at once.
_LINES = 10_000

#: Rows in memory at a time after they were read: short ones take many times the memory of their text.
_ROWS = 100_000

#: Values of a row: a file of nothing but delimiters would take minutes and gigabytes.
_MAX_VALUES = 10_000


def chunks(source: Part, what: RecognizedFormat, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a csv file. Quoted values may contain line ends; an empty value is NULL unless it is quoted.

    A row with too few values lacks the last ones; what a row has beyond the last column is rescued.

    Raises:
        FileRejectedError: it is not such a file.
    """
    blocks = texts(source, options.encoding)
    begin = next(blocks, "")
    dialect = Dialect.of(options, what.delimiter, begin)
    head, blank, is_all = _first_row(dialect.rows(chain([begin], blocks)), dialect, options)
    if head is None:
        return
    _check_width(len(head))
    names = _unique(head) if options.header else [f"_c{number}" for number in range(len(head))]
    if is_all:  # PyArrow refuses a file that ends in its header
        yield Chunk(0, [TextColumn(name, pa.array([], pa.string())) for name in names])
        return
    notation = Notation.of(options)
    ragged = _Ragged(names, dialect, notation)
    content = source.open()
    if dialect.has_other_lines or options.encoding != "utf-8":
        content = Encoded(dialect.rows(texts(source, options.encoding)), at_once=_LINES if dialect.has_other_lines else 1)
    try:
        skipped = blank + 1 if options.header else 0
        for batch in map(ragged.without_end, _ReadAs(dialect, len(names)).batches(content, _END, skipped, ragged)):
            for part in (batch.slice(at, _ROWS) for at in range(0, batch.num_rows, _ROWS)):
                columns = [TextColumn(*pair, notation) for pair in zip(names, part.columns, strict=True)]
                yield Chunk(part.num_rows, columns, is_part=ragged.are_waiting)
            yield from ragged.taken()
    except pa.ArrowInvalid as error:
        raise _rejection(str(error), options.encoding) from None
    yield from ragged.taken()
    if not ragged.has_ended:
        raise unclosed_quote()


class _Ragged:
    """Rows with more or fewer values than there are columns, which PyArrow passes on as text.

    Attributes:
        has_ended: the row :data:`_END` was read, which is no part of the file: no quote before it is open.
    """

    def __init__(self, names: Sequence[str], dialect: Dialect, notation: Notation) -> None:
        self._names = names
        self._dialect = dialect
        self._notation = notation
        self._texts: dict[int, list[str]] = {}
        self.has_ended = False

    def __call__(self, row: pacsv.InvalidRow) -> str:
        if row.text == _END:
            self.has_ended = True
            return "skip"
        self._texts.setdefault(row.actual_columns, []).append(row.text)
        return "skip"

    def without_end(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows without the row :data:`_END`, which is one of them in a file of one column."""
        if len(self._names) > 1 or not batch.num_rows or batch.column(0)[-1].as_py() != _END:
            return batch
        self.has_ended = True
        return batch.slice(0, batch.num_rows - 1)

    @property
    def are_waiting(self) -> bool:
        """True if :meth:`taken` would yield rows."""
        return bool(self._texts)

    def taken(self) -> Iterator[Chunk]:
        """Yields the rows since the last call. What a row lacks is NULL."""
        while self._texts:
            count = next(iter(self._texts))
            rows = self._texts.pop(count)
            _check_width(count)
            content = BOM_UTF8 + "".join(f"{row}\n" for row in rows).encode()
            (batch,) = _ReadAs(self._dialect, count).batches(io.BytesIO(content), block_bytes=len(content) + 1)
            values = [*batch.columns[: len(self._names)], *[pa.nulls(batch.num_rows, pa.string())] * (len(self._names) - count)]
            columns = [TextColumn(*pair, self._notation) for pair in zip(self._names, values, strict=True)]
            surplus: dict[int, dict[str, str]] = {}
            for number in range(len(self._names), count):
                for at, value in present(batch.column(number)).items():
                    surplus.setdefault(at, {})[free(f"_c{number}", self._names)] = value
            yield Chunk(batch.num_rows, columns, surplus, is_part=self.are_waiting)


@dataclass(frozen=True)
class _ReadAs:
    """How PyArrow reads rows of texts.

    Attributes:
        width: number of columns.
    """

    dialect: Dialect
    width: int

    def batches(
        self,
        content: Any,
        end: str = "",
        skipped: int = 0,
        on_ragged: Callable[[pacsv.InvalidRow], str] | None = None,
        *,
        block_bytes: int = MAX_RECORD_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows after the ``skipped`` first lines, and the row ``end``. Raises ArrowInvalid.

        The content ends with a line end, or there is a row ``end``: else PyArrow takes a last empty value after a quoted one for
        quoted.
        """
        # Numbers as names: those of the file may be repeated.
        numbers = [str(number) for number in range(self.width)]
        ending = _Ending(content, f"\n{end}".encode() if end else b"")
        try:
            yield from pacsv.open_csv(
                ending,
                read_options=pacsv.ReadOptions(
                    use_threads=False, block_size=block_bytes, column_names=numbers, skip_rows_after_names=skipped
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=self.dialect.delimiter,
                    quote_char=self.dialect.quote or False,
                    escape_char=self.dialect.escape or False,
                    newlines_in_values=True,
                    invalid_row_handler=on_ragged,
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types=dict.fromkeys(numbers, pa.string()),
                    null_values=self.dialect.plain_nulls,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        finally:
            ending.end()


class _Ending(io.BufferedIOBase):
    """Content that can be ended early: PyArrow's read-ahead thread goes on reading after the caller has stopped asking for rows,
    and aborts the process if Python exits while it reads.

    Args:
        tail: follows the content.
    """

    def __init__(self, content: Any, tail: bytes) -> None:
        self._content = content
        self._tail = tail
        self._lock = threading.Lock()
        self._ended = False
        self._told = threading.Event()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        with self._lock:
            block: bytes = b"" if self._ended else self._content.read(size)
            if not block and not self._ended:
                block, self._tail = self._tail, b""
        if not block:
            self._told.set()
        return block

    def end(self) -> None:
        """Ends the content, and waits briefly for the read-ahead thread to see the end."""
        with self._lock:
            self._ended = True
        self._told.wait(0.2)


def _first_row(blocks: Iterator[str], dialect: Dialect, options: LoadOptions) -> tuple[list[str] | None, int, bool]:
    """Returns the values of the first row, None if there is none; the number of empty lines before it; and whether it is a header
    without a row after it.

    Raises:
        FileRejectedError: it does not end, or not soon enough.
    """
    head, before, goes_on = "", 0, False
    for block in blocks:
        head += block
        if not head.strip("\r\n"):
            at = head.rfind("\n") + 1 or len(head) - 1  # a line end may have its other half in the next block
            before += len(head[:at].splitlines())
            head = head[at:]
        elif goes_on := len(head) >= _HEAD_CHARACTERS:
            break
    lines, reader = dialect.reader(head)
    try:
        for blank, row in enumerate(reader, before):
            if row:
                rest = lines.read()
                if goes_on and not rest:
                    raise FileRejectedError(f"The first row of the file does not end within {_HEAD_CHARACTERS:,} characters.")
                blanks = "\r\n \t".replace(dialect.delimiter, "")
                while not rest.strip(blanks) and (block := next(blocks, "")):
                    rest = block
                if dialect.may_guess:
                    dialect.check_first(rest, row, dialect.lead + reader.line_num)
                row = ["" if value == NULL else value for value in row]
                if dialect.may_guess and options.header:
                    dialect.check_names(row)
                if not options.header or rest.strip(blanks):
                    return row, blank, False
                if any("\n" in value for value in row):
                    raise unclosed_quote()
                return row, blank, True
    except csv.Error as error:
        raise FileRejectedError(f"The first row of the file cannot be read as csv: {error}.") from None
    return None, 0, False


def _check_width(values: int) -> None:
    """Raises FileRejectedError if a row has too many values."""
    if values > _MAX_VALUES:
        raise FileRejectedError(f"A row of the file has {values:,} values; the limit is {_MAX_VALUES:,}.")


def _unique(names: Sequence[str]) -> list[str]:
    """Returns the names of a header; those that are empty or there already, in any case, get their position."""
    given = [written.strip() or f"_c{number}" for number, written in enumerate(names)]
    there = {folded(name) for name in given}
    unique: dict[str, str] = {}
    for number, name in enumerate(given):
        own = free(f"{name}{number}", there, key=folded) if folded(name) in unique else name
        there.add(folded(own))
        unique[folded(own)] = own
    return [*unique.values()]


def _rejection(reason: str, encoding: str) -> FileRejectedError:
    if "invalid UTF8" in reason:
        return not_encoded(encoding, reason.partition(": CSV")[0].removeprefix("In "))
    if "straddling" in reason:
        return too_large_row()
    return FileRejectedError(f"The file cannot be read as csv: {reason}.")
