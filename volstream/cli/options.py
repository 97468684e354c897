"""Shared by all commands: common options, the session they open, and types of option values."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

import click

from volstream import tracing
from volstream.cli.output import Output
from volstream.errors import InvalidValueError, NotFoundError
from volstream.lifecycle.privacy import keep_private
from volstream.model.files import is_utf8, printable
from volstream.model.units import MAX_INTEGER, in_utc, parse_duration, parse_size
from volstream.model.work import FailureKind
from volstream.session import Session

F = TypeVar("F", bound=Callable[..., Any])


def common(function: F) -> F:
    """Adds ``--home`` and ``--format``, and calls the command with an open session on an existing home, and its output."""
    return _with_home(function, must_exist=True)


def founding(function: F) -> F:
    """Adds the same as :func:`common`, for a command that creates the home if it does not exist."""
    return _with_home(function, must_exist=False)


def pictured(function: F) -> F:
    """Adds the same as :func:`common`, with formats of pictures; the command gets the chosen one as ``form``."""
    return _with_home(function, must_exist=True, pictures=("dot", "mermaid"))


def _with_home(function: F, *, must_exist: bool, pictures: Sequence[str] = ()) -> F:
    @click.option("--home", metavar="DIR", help="The home directory.  [env: VOLSTREAM_HOME]")
    @click.option(
        "--format", "format_", type=click.Choice(["text", "json", *pictures]), default="text", show_default=True
    )
    @functools.wraps(function)
    def command(home: str | None, format_: str, **options: Any) -> Any:
        _check_text(options)
        with opened(home) as session, session.home.gateway.explaining():
            if must_exist:
                check_made(session)
            if pictures:
                options["form"] = format_
            return function(session, Output(format_ == "json"), **options)

    return command  # type: ignore[return-value]  # the same command with two more options


def check_made(session: Session) -> None:
    """Raises NotFoundError if a session's home does not exist."""
    if not session.home.settings.is_made:
        raise NotFoundError(
            f"There is no volstream home at {session.home.settings.home}.",
            "Create one with volstream init, or give another with --home or VOLSTREAM_HOME.",
        )


def _check_text(options: Mapping[str, Any]) -> None:
    """Raises InvalidValueError for undecodable bytes, which neither catalog nor statements can hold; paths may have them."""
    for param in click.get_current_context().command.params:
        given = options.get(param.name or "")
        texts = given if isinstance(given, tuple) else (given,)
        odd = [text for text in texts if isinstance(text, str) and not is_utf8(text)]
        if odd and not isinstance(param.type, click.Path):
            raise InvalidValueError(f"{printable(odd[0])!r} is not valid UTF-8 text.")


@contextmanager
def opened(home: str | None, **settings: Any) -> Iterator[Session]:
    """Opens a session on a home, in a process of volstream's own."""
    tracing.configure()
    try:
        with Session.builder.configs({"home": home, **settings}).create() as session:
            keep_private(session.home.settings)
            yield session
    finally:
        tracing.end()


class _Parsed(click.ParamType[Any]):
    """A value parsed by one of volstream's functions, whose errors click reports as usage errors."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except InvalidValueError as error:
            self.fail(str(error), param, ctx)


def _timestamp(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValueError(f"{text!r} is not a time.", "Write for example 2026-03-01T12:00:00+01:00.") from None
    return in_utc(moment)


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise InvalidValueError(f"{text!r} is not a whole number.") from None
    if abs(number) > MAX_INTEGER:
        raise InvalidValueError(f"{text!r} is too large a number.")
    return number


DURATION = _Parsed("duration", parse_duration)
SIZE = _Parsed("size", parse_size)
TIMESTAMP = _Parsed("timestamp", _timestamp)
NUMBER = _Parsed("integer", _number)


def choice(values: type[StrEnum]) -> click.Choice[str]:
    """Returns a choice of an enumeration's values: click by itself would use the names of its members."""
    return click.Choice([one.value for one in values])


def existing(function: F) -> F:
    """Adds ``--or-replace`` and ``--if-not-exists``."""
    replace = click.option("--or-replace", is_flag=True, help="Replace an existing one.")
    keep = click.option("--if-not-exists", is_flag=True, help="Do nothing if it exists.")
    return replace(keep(function))


def kinds(help_: str) -> Callable[[F], F]:
    """Adds ``--kind`` of failures."""
    values = [kind.value for kind in FailureKind if kind is not FailureKind.SET_UP]
    return click.option("--kind", "kinds", type=click.Choice(values), multiple=True, help=help_)


def like(help_: str) -> Callable[[F], F]:
    """Adds ``--like`` for the paths of failures."""
    return click.option("--like", metavar="PATTERN", help=help_)


def interactive() -> bool:
    """Returns whether standard error is a terminal."""
    return sys.stderr.isatty()


def parse_arguments(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parses KEY=VALUE pairs into a mapping."""
    arguments: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE.", param_hint="'--arg'")
        arguments[key] = value
    return arguments
