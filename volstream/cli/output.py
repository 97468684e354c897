"""Shows results: formatted with rich, or as one JSON document. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from shutil import get_terminal_size
from typing import Any

from volstream.base.model.paths import printable
from volstream.base.model.text import json_document, one_line, to_json, visible
from volstream.errors import VolstreamError

#: Bytes of a binary value that a cell shows; of a longer one only the number. JSON has them all.
_SHOWN_BYTES = 64

#: Minimum width of a column with its padding, in characters. With less, rich omits columns.
_COLUMN_WIDTH = 7


#: Columns that a table keeps in a narrow terminal, in which it is then broken.
_LEAST_COLUMNS = 4


@dataclasses.dataclass(frozen=True)
class Output:
    """A command's output. ``as_json``: one document on stdout, whatever the command."""

    as_json: bool

    @classmethod
    def for_errors(cls, arguments: Sequence[str]) -> Output:
        """Returns the output for errors that happen before the options are parsed."""
        return cls("--format=json" in arguments or ("--format", "json") in pairwise(arguments))

    def result(self, value: Any, text: str | None) -> None:
        """Prints a command's result: ``value`` as JSON, or ``text``; None: it is printed otherwise."""
        if self.as_json:
            self._write(to_json(value))
        elif text is not None:
            self._write(text)

    def part(self, text: str) -> None:
        """Prints a part of a result as soon as it is known. As JSON, the result is one document."""
        if not self.as_json:
            self._write(text)

    def table(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        empty: str,
        *,
        everything: Any = None,
        exact: bool = False,
        words: bool = False,
        fit: bool = False,
    ) -> None:
        """Prints rows as a table of ``columns``, or all of their values (or ``everything``) as JSON.

        Args:
            exact: with all digits of numbers and times.
            words, fit: see :func:`arranged`.
        """
        if self.as_json:
            self._write(to_json(rows if everything is None else everything))
        elif not rows:
            self.message(empty)
        else:
            console = _console()
            _print(console, arranged(rows, columns, console.width, exact=exact, words=words, fit=fit))

    def details(self, values: Mapping[str, Any], documents: Collection[str] = ()) -> None:
        """Prints one object's attributes; those named in ``documents`` follow the others, as text or JSON that can be copied."""
        if self.as_json:
            self._write(to_json(values))
            return
        from rich.table import Table

        grid = Table.grid(padding=(0, 2))
        for key, value in values.items():
            if key not in documents:
                grid.add_row(key, _cell(value))
        _print(_console(), grid)
        for key in values:
            if key in documents:
                value = values[key]
                self._write(f"\n{key}:\n{value.rstrip() if isinstance(value, str) else json_document(value, indent=2)}")

    def message(self, text: str) -> None:
        """Prints a line to stderr."""
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()

    def error(self, error: VolstreamError) -> None:
        """Prints an error and its remedy to stderr."""
        if self.as_json:
            said = {"error": {"type": type(error).__name__, "message": error.message, "remedy": error.remedy}}
            self.message(to_json(said))
        else:
            self.message(f"Error: {error.message}" + (f"\n  {error.remedy}" if error.remedy else ""))

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{visible(text)}\n")
        sys.stdout.flush()


def arranged(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    width: int,
    *,
    exact: bool = False,
    words: bool = False,
    fit: bool = False,
) -> Any:
    """Returns rows as a table; if that would break words, row by row with a line for each column.

    Args:
        fit: the last columns that the width has no room for are left out, but not the first four.
        words: the heading of ``last_run`` is "last run"; otherwise it is the column's exact name.
    """
    from rich.console import Group
    from rich.table import Table

    headings = [column.replace("_", " ") if words else column for column in columns]
    spare = len(columns) - _LEAST_COLUMNS if fit else 0
    while len(columns) * _COLUMN_WIDTH <= width or spare > 0:
        table = _table(rows, columns, headings, exact=exact)
        size = _measured(table)
        if size.maximum <= width or (spare <= 0 and size.minimum <= width):
            return table
        if spare <= 0:
            break
        columns, headings, spare = columns[:-1], headings[:-1], spare - 1

    records: list[Any] = []
    for number, row in enumerate(rows, start=1):
        grid = Table.grid(padding=(0, 2))
        for column, heading in zip(columns, headings, strict=True):
            grid.add_row(_cell(heading), _cell(row.get(column), exact=exact))
        records += [f"Row {number}", grid, ""]
    return Group(*records)


def _measured(table: Any) -> Any:
    """Returns the least and the greatest width that a table takes."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=10_000)
    return Measurement.get(console, console.options, table)


def _console() -> Any:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, but a reader such as head ending early is not an error

    # A pipe has no width but that of COLUMNS, so nothing may be truncated.
    return Console() if sys.stdout.isatty() else Piped(width=get_terminal_size((10_000, 25)).columns, soft_wrap=True)


def _print(console: Any, renderable: Any) -> None:
    console.print(renderable, crop=False, highlight=False, markup=False)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], headings: Sequence[str], *, exact: bool) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, heading in zip(columns, headings, strict=True):
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(_cell(heading), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column), exact=exact) for column in columns))
    return table


def _time(moment: datetime, *, exact: bool) -> str:
    unit = "microseconds" if exact and moment.microsecond else "seconds"
    if moment.tzinfo is not None:  # else it is local already, and may be in an hour that its zone leaves out
        with suppress(OverflowError, ValueError):  # near the limits of datetime it has no local equivalent
            plain = datetime.fromisoformat(moment.isoformat(timespec="microseconds"))  # it may be one of pandas
            moment = plain.astimezone().replace(tzinfo=None)
    return moment.isoformat(" ", unit)


def _cell(value: Any, *, exact: bool = False) -> Any:
    from rich.text import Text

    return Text(shown(value, exact=exact), overflow="fold")


def shown(value: Any, *, exact: bool = False) -> str:
    """Returns a value as text on one line: lists and dicts as JSON, times in local time, bytes as SQL's literal.

    Args:
        exact: with all digits; else numbers have six, and times are in seconds.
    """
    match value:
        case None:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case datetime():
            text = _time(value, exact=exact)
        case float():
            text = f"{value:g}" if not exact or float(f"{value:g}") == value else repr(value)
        case str():
            text = printable(value)
        case Mapping() | list() | tuple():
            text = to_json(value)
        case bytes() | bytearray() if len(value) > _SHOWN_BYTES:
            text = f"({len(value)} bytes)"
        case bytes() | bytearray():
            text = f"X'{value.hex()}'"
        case _:
            text = str(value)
    return one_line(text)


def in_a_line(details: Mapping[str, Any]) -> str:
    """Returns details as text on one line, without those that are None."""
    return ", ".join(f"{key}={shown(value)}" for key, value in details.items() if value is not None)


def done_of(job: Mapping[str, Any]) -> str | None:
    """Formats how many of its volume's files a job is through with, from its status; None: it is not about files."""
    excluded = " (or excluded)" if job.get("where") else ""
    return None if job.get("done") is None else f"{job['done']} of {job['files']}{excluded}"
