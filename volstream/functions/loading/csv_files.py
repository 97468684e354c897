"""Rows of csv files, as texts."""

from __future__ import annotations

import csv
import io
import re
import threading
import uuid
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from volstream.base.model.names import folded, free
from volstream.base.model.text import counted, shortened
from volstream.base.model.units import format_size
from volstream.functions.loading.columns import Chunk, TextColumn, present
from volstream.functions.loading.content import MAX_RECORD_BYTES, Part, not_encoded, texts
from volstream.functions.loading.options import LoadOptions, RecognizedFormat
from volstream.functions.loading.texts import Notation
from volstream.functions.rejection import FileRejectedError

#: Maximum characters of the first row, after any number of empty lines.
_HEAD_CHARACTERS = 1 << 20

#: A row that is appended to a file. Random, so that no file contains it, with characters that are not a
#: delimiter or quote.
_END = "".join(chr(0xE000 + digit) for digit in uuid.uuid4().bytes)

#: Number of lines that are encoded at once.
_LINES = 10_000

#: Maximum number of rows in memory after reading: short rows take many times the memory of their text.
_ROWS = 100_000

#: Maximum number of values in a row: a file that consists of delimiters would take minutes and gigabytes.
_MAX_VALUES = 10_000


def chunks(source: Part, what: RecognizedFormat, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a csv file. Quoted values may contain line ends. An empty value is NULL unless it is
    quoted.

    A row with too few values lacks the last ones. Values beyond the last column are rescued.

    Raises:
        FileRejectedError: it is not a csv file.
    """
    blocks = texts(source, options.encoding)
    begin = next(blocks, "")
    dialect = Dialect.of(options, what.delimiter, begin)
    head, blank, is_all = _first_row(dialect.rows(chain([begin], blocks)), dialect, options)
    if head is None:
        return
    _check_width(len(head))
    names = _unique(head) if options.header else [f"_c{number}" for number in range(len(head))]
    if is_all:  # PyArrow rejects a file that ends with its header
        yield Chunk(0, [TextColumn(name, pa.array([], pa.string())) for name in names])
        return
    notation = Notation.of(options)
    ragged = _Ragged(names, dialect, notation)
    content = source.open()
    if dialect.has_other_lines or options.encoding != "utf-8":
        content = Encoded(dialect.rows(texts(source, options.encoding)), at_once=_LINES if dialect.has_other_lines else 1)
    try:
        skipped = blank + 1 if options.header else 0
        for batch in map(ragged.without_end, _ArrowReader(dialect, len(names)).batches(content, _END, skipped, ragged)):
            for part in (batch.slice(at, _ROWS) for at in range(0, batch.num_rows, _ROWS)):
                columns = [TextColumn(*pair, notation) for pair in zip(names, part.columns, strict=True)]
                yield Chunk(part.num_rows, columns, is_part=ragged.has_rows)
            yield from ragged.pop_chunks()
    except pa.ArrowInvalid as error:
        raise _rejection(str(error), options.encoding) from None
    yield from ragged.pop_chunks()
    if not ragged.has_ended:
        raise unclosed_quote()


class _Ragged:
    """Rows with more or fewer values than columns, which PyArrow passes on as text.

    Attributes:
        has_ended: the row :data:`_END` was read. It is not part of the file, and no quote before it is open.
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
        """Returns rows without the row :data:`_END`, which is among them in a file of one column."""
        if len(self._names) > 1 or not batch.num_rows or batch.column(0)[-1].as_py() != _END:
            return batch
        self.has_ended = True
        return batch.slice(0, batch.num_rows - 1)

    @property
    def has_rows(self) -> bool:
        """Returns whether :meth:`pop_chunks` would yield rows."""
        return bool(self._texts)

    def pop_chunks(self) -> Iterator[Chunk]:
        """Yields the rows since the last call. Missing values are NULL."""
        while self._texts:
            count = next(iter(self._texts))
            rows = self._texts.pop(count)
            _check_width(count)
            content = BOM_UTF8 + "".join(f"{row}\n" for row in rows).encode()
            (batch,) = _ArrowReader(self._dialect, count).batches(io.BytesIO(content), block_bytes=len(content) + 1)
            values = [*batch.columns[: len(self._names)], *[pa.nulls(batch.num_rows, pa.string())] * (len(self._names) - count)]
            columns = [TextColumn(*pair, self._notation) for pair in zip(self._names, values, strict=True)]
            surplus: dict[int, dict[str, str]] = {}
            for number in range(len(self._names), count):
                for at, value in present(batch.column(number)).items():
                    surplus.setdefault(at, {})[free(f"_c{number}", self._names)] = value
            yield Chunk(batch.num_rows, columns, surplus, is_part=self.has_rows)


@dataclass(frozen=True)
class _ArrowReader:
    """Reads rows of texts with PyArrow.

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

        The content must end with a line end, or with a row ``end``. Otherwise PyArrow takes a last empty
        value after a quoted one for quoted.
        """
        # Numbers as names, because the file's names may be repeated.
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
    """Content that can be ended early.

    PyArrow's read-ahead thread continues to read after the caller has stopped requesting rows, and aborts the
    process if Python exits meanwhile.

    Args:
        tail: follows the content.
    """

    def __init__(self, content: Any, tail: bytes) -> None:
        self._content = content
        self._tail = tail
        self._lock = threading.Lock()
        self._ended = False
        self._end_seen = threading.Event()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]  # PyArrow passes a number
        with self._lock:
            room, parts = size, list[bytes]()
            while room and not self._ended and (part := self._content.read(room)):
                parts.append(part)
                room -= len(part)
            # With the last rows: a small file is read at once.
            if room >= len(self._tail) and not self._ended:
                parts.append(self._tail)
                self._tail = b""
            block = b"".join(parts)
        if not block:
            self._end_seen.set()
        return block

    def end(self) -> None:
        """Ends the content, and waits briefly for the read-ahead thread to see the end."""
        with self._lock:
            self._ended = True
        self._end_seen.wait(0.2)


def _first_row(blocks: Iterator[str], dialect: Dialect, options: LoadOptions) -> tuple[list[str] | None, int, bool]:
    """Returns the values of the first row, if there is one, the number of empty lines before it, and whether
    it is a header without further rows.

    Raises:
        FileRejectedError: it does not end, or not soon enough.
    """
    head, before, is_cut = "", 0, False
    for block in blocks:
        head += block
        if not head.strip("\r\n"):
            at = head.rfind("\n") + 1 or len(head) - 1  # a line end may continue in the next block
            before += len(head[:at].splitlines())
            head = head[at:]
        elif is_cut := len(head) >= _HEAD_CHARACTERS:
            break
    lines, reader = dialect.reader(head)
    try:
        for blank, row in enumerate(reader, before):
            if row:
                rest = lines.read()
                if is_cut and not rest:
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
    """Returns the names of a header. Empty and repeated names, regardless of case, get their position."""
    filled = [written.strip() or f"_c{number}" for number, written in enumerate(names)]
    used = {folded(name) for name in filled}
    unique: dict[str, str] = {}
    for number, name in enumerate(filled):
        distinct = free(f"{name}{number}", used, key=folded) if folded(name) in unique else name
        used.add(folded(distinct))
        unique[folded(distinct)] = distinct
    return [*unique.values()]


def _rejection(reason: str, encoding: str) -> FileRejectedError:
    if "invalid UTF8" in reason:
        return not_encoded(encoding, reason.partition(": CSV")[0].removeprefix("In "))
    if "straddling" in reason:
        return too_large_row()
    return FileRejectedError(f"The file cannot be read as csv: {reason}.")


# The format of a csv file: which lines are rows, and where values begin and end. Pure.

#: The position after each line.
_ENDS = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")

#: Excel's first line that names the delimiter.
_SEP = re.compile(r'"?sep=([^"\r\n])"?\r?\n', re.IGNORECASE)

#: Common delimiters, by frequency.
_DELIMITERS = ",;\t|"

#: Number of values up to which a first row may have the delimiter by chance, as in ``name;amount (EUR,
#: net)``.
_FEW = 2

#: Common prefixes of comment lines.
_COMMENTS = ("#", "//", "--", "%")

#: Letters in numbers and times, and patterns that distinguish these from names.
_IN_VALUES, _DIGIT, _LETTER = re.compile(r"(?<=\d)(T(?=\d)|Z$|[eE](?=[+-]?\d))"), re.compile(r"\d"), re.compile(r"[^\W\d]|_")

#: Number of rows that are inspected to find out whether the first row is a header.
_SAMPLED = 100

#: Replaces a NULL that is written with the escape: an empty value alone in a row would not be a row. Random,
#: so that no file contains it.
NULL = uuid.uuid4().hex


@dataclass(frozen=True)
class Dialect:
    """The format of a csv file.

    Attributes:
        quote: around values. If None, quotes are ordinary characters.
        escape: makes the next character an ordinary one. None without an escape.
        nulls: unquoted values that are NULL, besides empty ones.
        lead, footer: number of lines before the header, and at the end.
        comment: prefix of lines that are not rows, if there are any.
        may_guess: the first row may be rejected because it is not a header.
        is_named: the delimiter was named, not assumed.
    """

    delimiter: str
    quote: str | None
    escape: str | None
    nulls: Sequence[str]
    lead: int
    footer: int
    comment: str | None
    may_guess: bool
    is_named: bool

    @classmethod
    def of(cls, options: LoadOptions, delimiter: str, begin: str) -> Dialect:
        """Returns the dialect of a file with this beginning, where a line ``sep=;`` names its delimiter, as
        in Excel."""
        named = _SEP.match(begin)
        return cls(
            delimiter=delimiter if named is None else named[1],
            quote=None if options.quote == "none" else options.quote,
            # A doubled quote, as in Spark.
            escape=None if options.escape == options.quote else options.escape,
            nulls=options.null_values,
            lead=max(options.skip_rows or 0, int(named is not None)),
            footer=options.skip_footer,
            comment=options.comment_prefix,
            may_guess=options.skip_rows is None,
            is_named=named is not None or options.delimiter is not None,
        )

    @property
    def has_other_lines(self) -> bool:
        """Returns whether :meth:`rows` may change the text."""
        return bool(self.lead or self.footer or self.comment or self._escaped_nulls)

    def reader(self, text: str) -> tuple[io.StringIO, Any]:
        """Returns the lines of a text, and a reader of them from the standard library."""
        # Process-wide; 131,072 by default.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_BYTES))
        lines = io.StringIO(text, newline="")
        return lines, csv.reader(
            lines,
            delimiter=self.delimiter,
            quotechar=self.quote,
            escapechar=self.escape,
            quoting=csv.QUOTE_NONE if self.quote is None else csv.QUOTE_MINIMAL,
        )

    def rows(self, blocks: Iterable[str]) -> Iterator[str]:
        """Yields the rows of a text, as text, with empty lines.

        Raises:
            FileRejectedError: a row is too large, or a quote is never closed.
        """
        if not self.has_other_lines:
            yield from blocks
            return
        queue: deque[tuple[str, bool]] = deque()  # with whether it is a row, not an empty line
        count, row, is_quoted = 0, "", False
        for line in islice(_lines(blocks), self.lead, None):
            if not row and self.comment is not None and line.startswith(self.comment):
                continue
            is_quoted, continues = self._state_after(line, begins=not row, is_quoted=is_quoted)
            row += line
            if continues:
                _check_size(row)
                continue
            is_row = bool(row.strip("\r\n"))
            queue.append((self._nulls_at_edges.sub(lambda match: match[1] or NULL, row) if self._escaped_nulls else row, is_row))
            count += is_row  # empty lines at the end are no footer
            row = ""
            while count > self.footer:
                text, is_row = queue.popleft()
                count -= is_row
                yield text
        if row:
            raise unclosed_quote()

    def check_first(self, rest: str, first: Sequence[str], before: int) -> None:
        """Raises FileRejectedError if, compared to the rows after it, the first row seems to be a comment or
        a title, or to have another delimiter.

        Args:
            rest: the text after the first row, or its beginning.
            before: number of lines up to the end of the first row.
        """
        if not self.is_named and len(first) <= _FEW:
            self._check_delimiter(self.delimiter.join(first), [line for line in rest.splitlines()[:_SAMPLED] if line.strip()])
        _, reader = self.reader(rest)
        after: list[tuple[int, int]] = []
        with suppress(csv.Error):  # PyArrow reads the rows
            after += ((_width(row), reader.line_num) for row in islice(reader, _SAMPLED) if row)
        widths = [count for count, _ in after]
        usual, width = max(widths, key=widths.count, default=0), _width(first)
        is_comment = self.comment is None and first[0].startswith(_COMMENTS)
        is_title = width * 2 <= usual and (len(first) < usual or usual > 2)
        if not widths or not (is_title or (is_comment and (width == 1 or width != usual))):
            return
        end = next(end for count, end in after if count == usual) if width < usual else 1
        remedy = f"skip lines (skip_rows={before + end - 1})"
        if is_comment:
            remedy += f" or comments (comment_prefix={first[0][0]})"
        raise FileRejectedError(
            f"The first row of the file, {shortened(self.delimiter.join(first))}, seems to be a "
            f"{'comment' if is_comment else 'title'}: it has {counted(width, 'value')}, most rows after it have {usual}. "
            f"To read the file, {remedy}; skip_rows=0 takes this row as it is."
        )

    def check_names(self, first: Sequence[str]) -> None:
        """Raises FileRejectedError if the first row has no column name: its values are numbers, times, or
        empty.

        Numbers from 0 on are names, which pandas writes.
        """
        values = [_IN_VALUES.sub("", value) for value in first if value.strip()]
        if values != [str(number) for number in range(len(values))] and all(
            _DIGIT.search(value) and not _LETTER.search(value) for value in values
        ):
            raise FileRejectedError(
                f"The first row of the file, {shortened(self.delimiter.join(first))}, seems to be no header: it has numbers and "
                "times alone. Say that there is no header (header=false, --no-header); skip_rows=0 takes this row as names."
            )

    def _check_delimiter(self, first: str, lines: Sequence[str]) -> None:
        """Raises FileRejectedError if another delimiter occurs as often in most lines as in the first."""
        for other in _DELIMITERS:
            count = 0 if other == self.delimiter else first.count(other)
            if count and 10 * sum(line.count(other) == count for line in lines) >= 9 * len(lines) > 0:
                raise FileRejectedError(
                    f"The values of the file seem to be separated by {other!r}, not by {self.delimiter!r}: {shortened(first)}. "
                    f"To read the file, name the delimiter (delimiter={other!r}), also if it is {self.delimiter!r}."
                )

    def _state_after(self, line: str, *, begins: bool, is_quoted: bool) -> tuple[bool, bool]:
        """Returns whether a quoted value, and whether the row, continues after a line.

        Args:
            begins: the row begins with this line.
            is_quoted: a quoted value continues in this line.
        """
        plain = line if self._escaped is None else self._escaped.sub("xx", line)
        at = -1 if self.quote is None else plain.find(self.quote)
        while self.quote is not None and at >= 0:
            if not is_quoted:
                is_quoted = begins if at == 0 else plain[at - 1] == self.delimiter
            elif plain.startswith(self.quote, at + 1):
                at += 1
            else:
                is_quoted = False
            at = plain.find(self.quote, at + 1)
        return is_quoted, is_quoted or (line.endswith(("\n", "\r")) and not plain.endswith(("\n", "\r")))

    @cached_property
    def _escaped(self) -> re.Pattern[str] | None:
        """An escape and the character after it."""
        return None if self.escape is None else re.compile(re.escape(self.escape) + ".", re.DOTALL)

    @property
    def plain_nulls(self) -> Sequence[str]:
        """The NULLs in the text of :meth:`rows`."""
        return ["", NULL, *(null for null in self.nulls if null not in self._escaped_nulls)]

    @cached_property
    def _escaped_nulls(self) -> Sequence[str]:
        r"""The NULLs, such as ``\N``, that PyArrow would not recognize, because they begin with the
        escape."""
        return [null for null in self.nulls if self.escape is not None and null.startswith(self.escape)]

    @cached_property
    def _nulls_at_edges(self) -> re.Pattern[str]:
        """Matches such NULLs and, first, quoted values as its group."""
        no_edge, escape = f"[^{re.escape(self.delimiter)}\r\n]", re.escape(self.escape or "")
        quoted = "(?!)" if self.quote is None else "{0}(?:[^{0}{1}]|{0}{0}|{1}.)*{0}".format(re.escape(self.quote), escape)
        nulls = "|".join(map(re.escape, self._escaped_nulls))
        return re.compile(f"(?<!{no_edge})(?:({quoted})|(?:{nulls})(?!{no_edge}))", re.DOTALL)


def _width(row: Sequence[str]) -> int:
    """Returns the number of values in a row, without the empty values at its end."""
    return max((at for at, value in enumerate(row, start=1) if value.strip()), default=0)


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Yields the lines of a text, with their ends."""
    tail = ""
    for block in blocks:
        *whole, tail = _ENDS.split(tail + block)
        if not tail and whole and whole[-1].endswith("\r"):  # perhaps half a line end
            tail = whole.pop()
        yield from whole
        _check_size(tail)
    if tail:
        yield tail


def _check_size(row: str) -> None:
    if len(row) > MAX_RECORD_BYTES:
        raise too_large_row()


def too_large_row() -> FileRejectedError:
    """Returns the error for a row that is too large for memory."""
    return FileRejectedError(f"A row of the file is larger than {format_size(MAX_RECORD_BYTES)}, or a quote is never closed.")


def unclosed_quote() -> FileRejectedError:
    """Returns the error for a file that ends within a quoted value."""
    return FileRejectedError("A quote in the file is never closed.")


class Encoded:
    """Text as a binary UTF-8 file, with a byte order mark: PyArrow drops the first one.

    Args:
        at_once: number of pieces of the text that are encoded together.
    """

    def __init__(self, pieces: Iterator[str], at_once: int) -> None:
        self._pieces = pieces
        self._at_once = at_once
        self._rest = BOM_UTF8

    def read(self, size: int) -> bytes:
        """Returns up to ``size`` bytes, or none at the end."""
        while len(self._rest) < size and (text := "".join(islice(self._pieces, self._at_once))):
            self._rest += text.encode()
        block, self._rest = self._rest[:size], self._rest[size:]
        return block
