"""``sql``: statements in, tables or JSON out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from volstream.base.model.text import to_json, visible
from volstream.cli.options import check_made, with_csv
from volstream.cli.output import Output
from volstream.errors import InvalidValueError, VolstreamError

if TYPE_CHECKING:
    from volstream.api.session import Session

#: In a statement that may make the first object of a home, and with it the home.
_CREATES = re.compile(r"\bcreate\b", re.IGNORECASE)

#: Maximum number of rows shown as text; JSON has all.
_SHOWN_ROWS = 1000


class _SqlCommand(click.Command):
    """A statement may begin with a comment, which would be an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f" {arg}" if re.match(r"--\s", arg) else arg for arg in args])


@click.command("sql", cls=_SqlCommand)
@click.argument("statement", required=False)
@click.option("-f", "--file", "file", type=click.Path(exists=True, dir_okay=False), help="Run the statements of a file.")
@with_csv
def sql_command(session: Session, output: Output, statement: str | None, file: str | None, form: str) -> None:
    """Run SQL on tables, streams and DIRECTORY(VOLUME v).

    Without a statement it reads standard input, or opens a prompt on a terminal; `-` always reads standard input.
    """
    from volstream.sql.tokens import split

    if statement is not None and file is not None:
        raise click.UsageError("Give a statement or a file, not both.")
    if file is not None:
        script = Path(file).read_text(encoding="utf-8")
    elif statement is None and sys.stdin.isatty():
        if output.as_json or not sys.stdout.isatty():
            raise click.UsageError("Give a statement, -f FILE, or statements on standard input.")
        from volstream.cli.prompt import run_prompt

        check_made(session)

        run_prompt(session, output, lambda text: _run(session, output, text))
        return
    elif statement in (None, "-"):
        script = sys.stdin.read()
    else:
        script = statement or ""
    statements = split(script)
    if not statements:
        raise InvalidValueError("The input has no statement.")
    if not any(_CREATES.search(text) for text in statements):
        check_made(session)
    if form == "csv":
        if len(statements) > 1:
            raise InvalidValueError("A csv has the rows of one statement.", "Give one at a time, or --format json.")
        _write_csv(session, statements[0])
    elif len(statements) == 1:
        _run(session, output, statements[0])
    else:
        _run_script(session, output, script, statements)


#: Text of csv that needs quotes.
_QUOTED = re.compile(r'[",\r\n]')

#: NULL as the only value of a row: readers skip empty lines.
_ALONE = '""'


def _write_csv(session: Session, statement: str) -> None:
    """Writes the rows of a statement to standard output, with a head; NULL is empty, and values that csv lacks are JSON. On a
    terminal, control characters are escaped."""
    from volstream.api.objects.sql import rows

    columns, result = rows(session, statement)
    exact = visible if sys.stdout.isatty() else str
    for values in chain([columns], ([row[column] for column in columns] for row in result)):
        sys.stdout.write(f"{','.join(exact(_in_csv(value)) for value in values) or _ALONE}\n")
    sys.stdout.flush()


def _in_csv(value: Any) -> str:
    """Returns a value of csv. Empty text is quoted, NULL is not, which Python's writer does only from 3.12 on."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else to_json(value)
    if text is not value and text.startswith('"'):
        text = json.loads(text)
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if not text or _QUOTED.search(text) else text


def _run_script(session: Session, output: Output, script: str, statements: Sequence[str]) -> None:
    """Runs several statements: as JSON, their results are a list in one document, which ends at a failed statement."""
    separator = "["
    try:
        for number, statement in enumerate(statements, 1):
            try:
                _run(session, output, statement, separator)
                separator = ", "
            except VolstreamError:
                line = script[: script.index(statement)].count("\n") + 1
                output.message(f"Statement {number} of {len(statements)}, at line {line}:")
                raise
    finally:
        if output.as_json:
            sys.stdout.write("]\n" if separator == ", " else "[]\n")
            sys.stdout.flush()


def _run(session: Session, output: Output, statement: str, before: str | None = None) -> None:
    """Runs one statement; its rows are streamed, so that memory does not grow with them.

    Args:
        before: for one of several statements, the JSON text before its rows.
    """
    from volstream.api.objects.sql import rows

    columns, result = rows(session, statement)
    if output.as_json:
        sys.stdout.write(before or "")
        separator = "["
        for row in result:
            sys.stdout.write(f"{separator}{to_json(row)}")
            separator = ", "
        sys.stdout.write("[]" if separator == "[" else "]")
        sys.stdout.write("\n" if before is None else "")
        sys.stdout.flush()
        return
    shown: list[Mapping[str, Any]] = []
    for row in result:
        if len(shown) == _SHOWN_ROWS:
            output.message(f"The first {_SHOWN_ROWS} rows; --format json prints all.")
            break
        shown.append(row)
    if columns:
        output.table(shown, columns, "No rows.", exact=True)
