"""Shared by all commands: common options, the session they open, and types of option values."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click

from volstream.base.definitions import NO_SCHEDULE, forms
from volstream.base.definitions.job import Scheduled
from volstream.base.definitions.options import Key
from volstream.base.model.names import Name
from volstream.base.model.paths import is_utf8, printable
from volstream.base.model.text import counted, nearest
from volstream.base.model.units import format_size
from volstream.base.model.work import ENDS, FailureKind
from volstream.base.threads import Stop, stop_on_signals
from volstream.cli.output import Output
from volstream.errors import InvalidValueError, NotFoundError

if TYPE_CHECKING:
    from volstream.api.session import Session
    from volstream.jobs.runs.lease import Observer, Progress

#: Where there is no terminal, a line of progress follows the last one after this long.
_QUIET_SECONDS = 10.0

# Follows a run: shows its progress on a terminal, and handles the signals that end it.


@contextmanager
def watched(
    output: Output, said: str = "Finishing the current batch. Interrupt again to end at once: the next run repeats that batch."
) -> Iterator[tuple[Stop, Observer]]:
    """Yields a stop signal for a run, and an observer that shows its progress.

    Args:
        said: what the first signal is answered with.
    """
    stop = Stop()
    with stop_on_signals(stop, first=lambda: output.message(said)), _progress(output) as observe:
        yield stop, observe


@contextmanager
def _progress(output: Output) -> Iterator[Observer]:
    """Shows a progress bar on a terminal: files, bytes, failures, rate, time left. Elsewhere it prints a line now and then."""
    if output.as_json:
        yield lambda _: None
        return
    if not interactive():
        shown_at = time.monotonic()

        def tell(progress: Progress) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at > _QUIET_SECONDS and progress.done_files < progress.files:
                shown_at = time.monotonic()
                output.message(f"{progress.done_files} of {counted(progress.files, 'file')}, {progress.failed} failed ...")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[more]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # above the bar; into a pipe it goes as it is
    ) as bar:
        task = bar.add_task("files", total=None, more="")

        def observe(progress: Progress) -> None:
            more = f"{format_size(progress.done_bytes)}  {progress.failed} failed"
            bar.update(task, total=progress.files, completed=progress.done_files, more=more)

        yield observe


# Completes names of objects in the shell: from the catalog alone, quickly, and silently if anything is wrong.

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(kind: str | None = None) -> Completer:
    """Returns a completer of names.

    Args:
        kind: of these objects; None: of those that the command's argument KIND says.
    """

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            names = _names(ctx.params.get("home"), kind or ctx.params.get("kind", ""))
        except Exception:  # noqa: BLE001  # a shell has no place for errors: it then completes nothing
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _names(home: Any, kind: str) -> Sequence[str]:
    from volstream.base import config
    from volstream.catalog import Catalog

    settings = config.load(home)
    if not settings.is_made:
        return []
    catalog = Catalog(settings.database_url)
    try:
        return [str(definition.name) for definition in catalog.by_kind[kind].list()]
    finally:
        catalog.close()


F = TypeVar("F", bound=Callable[..., Any])


def common(function: F) -> F:
    """Adds ``--home`` and ``--format``, and calls the command with an open session on an existing home, and its output."""
    return _with_home(function, must_exist=True)


def creating_home(function: F) -> F:
    """Adds the same as :func:`common`, for a command that creates the home if it does not exist."""
    return _with_home(function, must_exist=False)


def with_picture_formats(function: F) -> F:
    """Adds the same as :func:`common`, with formats of pictures; the command gets the chosen one as ``form``."""
    return _with_home(function, must_exist=True, more=("dot", "mermaid"))


def with_csv(function: F) -> F:
    """Adds the same as :func:`creating_home`, with the format csv; the command gets the chosen one as ``form``."""
    return _with_home(function, must_exist=False, more=("csv",))


def _with_home(function: F, *, must_exist: bool, more: Sequence[str] = ()) -> F:
    @click.option("--home", metavar="DIR", help="The home directory.  [env: VOLSTREAM_HOME]")
    @click.option("--format", "format_", type=click.Choice(["text", "json", *more]), default="text", show_default=True)
    @functools.wraps(function)
    def command(home: str | None, format_: str, **options: Any) -> Any:
        _check_text()
        with opened(home) as session, session.home.gateway.explaining():
            if must_exist:
                check_made(session)
            if more:
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


def _check_text() -> None:
    """Raises InvalidValueError for undecodable bytes, which neither catalog nor statements can hold; paths may have them."""
    context = click.get_current_context()
    for param in context.command.params:
        odd = [text for text in _texts(context.params.get(param.name or "")) if not is_utf8(text)]
        if odd and not isinstance(param.type, click.Path):
            raise InvalidValueError(f"{printable(odd[0])!r} is not valid UTF-8 text.")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | Mapping):
        for item in value.items() if isinstance(value, Mapping) else value:
            yield from _texts(item)


@contextmanager
def opened(home: str | None, **settings: Any) -> Iterator[Session]:
    """Opens a session on a home, in a process of volstream's own."""
    from volstream.api.session import Session
    from volstream.base import tracing
    from volstream.base.privacy import keep_private

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


DURATION = _Parsed("duration", forms.DURATION.parse)
TIMESTAMP = _Parsed("timestamp", forms.MOMENT.parse)
NUMBER = _Parsed("integer", forms.NUMBER.parse)
PAIR = _Parsed("pair", forms.PAIRS.parse)


class _Words(click.Choice[str]):
    """A choice of words, of which there may be more than it shows."""

    def __init__(self, words: Iterable[str], parse: Callable[[str], Any]) -> None:
        super().__init__([*words])
        self._others = _Parsed("word", parse)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._others.convert(value, param, ctx)


def _known(names: Collection[str]) -> Callable[[str], str]:
    """Returns what checks the name of an option that can be unset."""

    def parse(name: str) -> str:
        if name in names:
            return name
        hint = "For a job without a schedule: --manual." if name.replace("-", "_") in NO_SCHEDULE else nearest(name, [*names])
        raise InvalidValueError(f"There is no option {name!r} to unset.", hint)

    return parse


def choice(values: type[StrEnum]) -> click.Choice[str]:
    """Returns a choice of an enumeration's values: click would use the names of its members."""
    return click.Choice([value.value for value in values])


def existing(function: F) -> F:
    """Adds ``--or-replace`` and ``--if-not-exists``, which a command passes on as ``**existing``."""
    replace = click.option("--or-replace", is_flag=True, help="Replace an existing one.")
    keep = click.option("--if-not-exists", is_flag=True, help="Do nothing if it exists.")
    return replace(keep(function))


class Made:
    """What a command that creates an object found under its name, and says of it in the end."""

    def __init__(self, session: Session, kind: str, name: str) -> None:
        self._collection = session.by_kind[kind]
        self._session = session
        self._definitions = session.home.catalog.by_kind[kind]
        self._before = self._definitions.find(Name.parse(name))

    def said(self, made: Any, text: str, given: Mapping[str, Any]) -> str:
        """Returns ``text``, which says that an object was made; or that it existed, and how it differs from what was ``given``;
        or also what it replaced."""
        if self._before is None:
            return text
        title = f"{self._collection.kind} {made.name}"
        if made.id == self._before.id:
            known = self._definitions.definition(made)
            other = {option: (getattr(made, option, known[option]), value) for option, value in given.items() if option in known}
            differing = [f"{option} is {old}, not {new}" for option, (old, new) in other.items() if _differ(option, old, new)]
            return f"The {title} exists, unchanged{': ' if differing else ''}{', '.join(differing)}."
        [change, *_] = self._collection.history(str(made.name))
        if not change.changes:
            return f"{text} It replaces an identical one."
        text = f"{text} It replaces another: {change.text}."
        if stale := self._session.home.catalog.streams.list(source_id=self._before.id):
            text += f" Stale now: {', '.join(f'stream {stream.name}' for stream in stale)} (volstream heal JOB, or replace them)."
        if self._collection.can_revert(change):
            return f"{text} To put that back: volstream revert {title}."
        return f"{text} To put that back, create it again as it was."


def _differ(option: str, old: Any, new: Any) -> bool:
    """True if an option has another value. Where code is may be written in several ways."""
    if option in ENDS:
        return Name.parse(str(old)) != Name.parse(str(new))
    if option == "location":
        from volstream.files.storage import normalise_location

        new = normalise_location(str(new))
    plain = [[*value] if isinstance(value, tuple) else value for value in (old, new)]
    return option not in ("function", "environment") and plain[0] != plain[1]


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


def merged(pairs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Returns one mapping for the values of an option that takes ``KEY=VALUE``."""
    return {key: value for pair in pairs for key, value in pair.items()}


def described(definition: Mapping[str, Key], *, changes: bool = False) -> Callable[[F], F]:
    """Adds an option for each one that a definition describes. The command gets those that were given as ``given``, by name.

    Args:
        changes: the command changes an object: there are no defaults, and each option can be set and unset.
    """
    defaults = {
        key.word.replace("_", "-"): key
        for key in definition.values()
        if changes and not key.required and key.form is not forms.FLAG and key.name not in NO_SCHEDULE
    }

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def command(*arguments: Any, **options: Any) -> Any:
            values = {name: options.pop(name) for name in definition}
            given = {name: value for name, value in values.items() if value not in (None, ())}
            for name in given:
                if definition[name].form in forms.BY_ITEM:
                    given[name] = merged(given[name])
            for key in map(defaults.__getitem__, options.pop("unset", ())):
                if key.name in given:
                    raise click.UsageError(f"--{key.word} is both given and unset.")
                given[key.name] = key.default
            try:
                Scheduled(**{name: given[name] for name in NO_SCHEDULE if name in given})
            except InvalidValueError as error:
                raise click.UsageError(str(error)) from None
            return function(*arguments, given=given, **options)

        if defaults:
            names, help_ = _Words(defaults, _known(defaults)), "Give an option its default back. May be repeated."
            command = click.option("--unset", type=names, multiple=True, metavar="OPTION", help=help_)(command)
        for key in reversed([*definition.values()]):
            command = _option(key, changes)(command)
        return command  # type: ignore[return-value]  # the same command with other options

    return decorated


def _option(key: Key, changes: bool) -> Callable[[F], F]:
    """Returns the option of a command for one of a definition."""
    flag = key.option.flag or f"--{key.word.replace('_', '-')}"
    default = None if changes or key.required else key.default
    default = default.value if isinstance(default, StrEnum) else default
    help_ = key.option.help
    if key.form is forms.FLAG:
        alone = key.option.flag is not None or default is False
        spelled = flag if alone else f"{flag}/--no-{flag.removeprefix('--')}"
        return click.option(spelled, key.name, is_flag=True, default=default or None, show_default=not alone, help=help_)
    metavar = key.option.metavar or key.form.metavar
    if key.form in (forms.TEXTS, forms.RECEIVERS, *forms.BY_ITEM):
        help_ += f" Default: {' '.join(default)}" if default else ""
        kind = _Parsed("pair", key.form.parse) if key.form in forms.BY_ITEM else None
        return click.option(flag, key.name, type=kind, multiple=True, metavar=metavar, help=f"{help_} May be repeated.")
    required = key.required and not changes
    return click.option(
        flag,
        key.name,
        type=_type(key),
        show_default=default is not None,
        **({"required": True} if required else {"default": default}),  # a default of None would do for click
        metavar=None if key.form.values is not None else metavar,
        help=help_ or None,
        shell_complete=None if key.option.names is None else names_of(key.option.names),
    )


def _type(key: Key) -> click.ParamType[Any]:
    if key.form.values is not None and key.form.has_others:
        return _Words([value.value for value in key.form.values], key.form.parse)
    if key.form.values is not None:
        return choice(key.form.values)
    return click.STRING if key.form in (forms.TEXT, forms.NAME) else _Parsed(key.form.wanted, key.form.parse)
