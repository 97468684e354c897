"""``top``: the overview of ``status``, live in a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import JobState
from volstream.base.model.text import one_line
from volstream.base.model.units import format_age
from volstream.cli.options import DURATION, common
from volstream.cli.output import Output, arranged, done_of
from volstream.errors import VolstreamError
from volstream.ops.inspection.status import Problem, problems

if TYPE_CHECKING:
    from volstream.api.session import Session

#: Columns in order of importance: a narrow terminal shows the first.
_JOBS = ("job", "state", "done", "failed", "files/s", "rows/s", "waiting_since", "outcome", "last_run", "trigger")
_OTHERS = {
    "volumes": ("volume", "files", "rejected", "last_listing", "queue", "added_by_listing", "removed_by_listing", "late_events"),
    "streams": ("stream", "unread", "unread_bytes", "source", "offset", "has_data"),
    "tables": ("table", "not_committed"),
}

#: Characters that a column needs on average.
_WIDTH = 11

#: Lines of a table besides its rows, lines at most of notes, and rows at least of a table.
_FRAME, _NOTES, _LEAST = 4, 4, 3


@dataclass(frozen=True)
class HomeFacts:
    """The facts of a home at one time.

    Attributes:
        at: seconds on a steady clock.
        status: of the home.
        done: by job, the files and rows that it has ever processed.
    """

    at: float
    time: datetime
    status: Mapping[str, Any]
    wrong: Sequence[Problem]
    done: Mapping[str, tuple[int, int]]


def look(session: Session) -> HomeFacts:
    """Returns the facts of now, those of ``status``. Starts nothing."""
    from volstream.ops.inspection.status import status

    overview = status(session.home)
    totals = {str(job.name): session.home.catalog.reports.totals(job.id) for job in session.jobs.list()}
    return HomeFacts(
        at=time.monotonic(),
        time=datetime.now().astimezone(),
        status=overview,
        wrong=problems(overview, {}),
        done={name: (total["succeeded"] + total["failed"], total["rows"]) for name, total in totals.items()},
    )


def rates(before: HomeFacts | None, now: HomeFacts) -> Mapping[str, tuple[float, float]]:
    """Returns files and rows per second between two looks, by job."""
    if before is None or now.at <= before.at:
        return {}
    seconds = now.at - before.at
    return {
        name: ((files - before.done[name][0]) / seconds, (rows - before.done[name][1]) / seconds)
        for name, (files, rows) in now.done.items()
        if name in before.done
    }


def picture(before: HomeFacts | None, now: HomeFacts, width: int, height: int, note: str | None = None) -> Any:
    """Returns the overview for a terminal of that size.

    Args:
        before: the look before, for rates; None: there was none.
        note: what to say besides, such as why the facts are old.
    """
    from rich.console import Group
    from rich.text import Text

    wrong = [*([(one_line(note), True)] if note else []), *((problem.line, problem.severe) for problem in now.wrong)]
    per_second = rates(before, now)
    jobs = [
        {**row, "done": done_of(row), "files/s": rate and round(rate[0], 1), "rows/s": rate and round(rate[1], 1)}
        for row, rate in ((row, per_second.get(row["job"])) for row in now.status["jobs"])
    ]
    jobs.sort(key=lambda row: (row["state"] != JobState.PAUSED, not row["failed"], -(row["files/s"] or 0)))
    others = [(now.status[kind], columns) for kind, columns in _OTHERS.items()]
    tables = [(rows, columns) for rows, columns in [(jobs, _JOBS), *others] if rows]
    shown = wrong if len(wrong) <= _NOTES else [*wrong[: _NOTES - 1], (f"and {len(wrong) - _NOTES + 1} more", False)]
    free = height - 2 - max(1, len(shown)) - (_FRAME + 1) * len(tables)
    parts: list[Any] = [Text(_heading(now), no_wrap=True, overflow="ellipsis", style="bold")]
    parts += [Text(text, no_wrap=True, overflow="ellipsis", style="red" if severe else "yellow") for text, severe in shown]
    parts += [] if wrong else [Text("Nothing is wrong.", style="green")]
    for number, (rows, columns) in enumerate(tables):
        maximum = max(_LEAST, free // (len(tables) - number))
        free -= min(len(rows), maximum)
        parts.append(arranged(rows[:maximum], columns[: max(2, width // _WIDTH)], width, cut=True, words=True))
        if len(rows) > maximum:
            parts.append(Text(f"and {len(rows) - maximum} more", style="dim"))
    return Group(*parts)


def _heading(now: HomeFacts) -> str:
    engine = now.status["engine"]
    running = f"engine {engine.state} ({engine.kind}, up {format_age(engine.up_seconds)})" if engine else "no engine"
    return f"{now.time:%H:%M:%S}  {running}  q: quit  {one_line(now.status['home'])}"


@click.command("top")
@click.option("--every", type=DURATION, metavar="2s", default="2s", show_default=True, help="Time between two updates.")
@common
def top_command(session: Session, output: Output, every: float) -> None:
    """Show volumes, streams and jobs live, until q is pressed. Starts nothing; without a terminal prints them once."""
    now = look(session)
    if output.as_json:
        output.result({**now.status, **{key: value for key, value in vars(now).items() if key != "status"}}, None)
    elif sys.stdin.isatty() and sys.stdout.isatty():
        with _keys() as pressed:
            _watch(session, now, every, pressed)
    else:
        from rich.console import Console

        wide = Console(width=200, soft_wrap=True)
        wide.print(picture(None, now, wide.width, sys.maxsize), highlight=False, markup=False)


def _watch(session: Session, now: HomeFacts, every: float, pressed: Callable[[float], str | None]) -> None:
    """Shows look after look, until q or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    # The terminal can be resized; COLUMNS and LINES cannot.
    console = Console(_environ={key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")})
    before: HomeFacts | None = None
    note: str | None = None
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while True:
                live.update(picture(before, now, console.width, console.height, note), refresh=True)
                if (pressed(every) or "").lower() == "q":
                    return
                try:
                    before, now, note = now, look(session), None
                except VolstreamError as error:  # the catalog may be back at the next look
                    note = f"Not updated since {now.time:%H:%M:%S}: {error.message}"
        except KeyboardInterrupt:
            return


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Yields a function that waits so many seconds for a key, while the terminal passes on keys one by one, and hides them."""
    import select
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    earlier = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str | None:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode("ascii", "replace") or "q" if ready else None  # nothing: the terminal is gone

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, earlier)
