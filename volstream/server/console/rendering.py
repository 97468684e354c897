"""Pages as HTML: escaped strictly, with names that cannot mislead, and numbers, sizes and times as people read them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from volstream.base.model.paths import may_be_picture, printable
from volstream.base.model.text import counted, first_line, one_line, to_json, visible
from volstream.base.model.units import about, format_duration, format_size
from volstream.base.model.work import shown_counts
from volstream.ops.inspection.tables import OutputFile, Thumbnail

#: Larger files are not fetched for a thumbnail, bytes.
_LARGEST_THUMBNAIL = 4 << 20

#: The least height of a bar, as a part of the chart's.
_LEAST_HEIGHT = 0.06

#: Files that pages refer to.
STATIC = Path(__file__).parent / "static"


def render(template: str, **values: Any) -> str:
    """Returns a page. Text in ``values`` is escaped, with control and direction characters shown."""
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("volstream.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_final,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "block": block,
        "first_line": first_line,
        "bytes": lambda size: "—" if size is None else format_size(size),
        "number": number,
        "seconds": seconds,
        "duration": format_duration,
        "when": when,
        "value": value,
        "json": to_json,
        "counted": counted,
        "counts": lambda sums: shown_counts(sums) or "—",
        "stamp": lambda moment: moment.timestamp(),
    }
    environment.globals |= {
        "url": url,
        "now": lambda: datetime.now(UTC),
        "may_be_thumbnail": may_be_thumbnail,
        "stacked": stacked,
    }
    return environment


def _final(value: Any) -> Any:
    """Converts what a template prints: text that is not HTML cannot carry characters that mislead."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else one_line(printable(str(value)))


def block(text: str) -> Markup:
    """Returns text of several lines, such as a traceback."""
    return Markup(escape(visible(printable(text))))  # it is escaped


def number(value: float | None) -> str:
    """Returns a number with its thousands apart, or a dash."""
    if value is None:
        return "—"
    if isinstance(value, int) or abs(value) >= 100:
        return Markup(f"{round(value):,}".replace(",", "&#8239;"))  # digits only
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def seconds(value: float | None) -> str:
    """Returns a duration for people, or a dash."""
    if value is None:
        return "—"
    return f"{value:.1f} s" if value < 10 else about(value)


def when(moment: datetime | None, missing: str = "—") -> Markup:
    """Returns a time: in UTC, for a script to convert to the reader's zone."""
    if moment is None:
        return Markup(escape(missing))  # it is escaped
    utc = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%S}Z", f"{utc:%Y-%m-%d %H:%M:%S} UTC", f"{utc:%Y-%m-%d %H:%M} UTC"
    )


def value(cell: Any) -> Any:
    """Returns a value of a table's row, whatever its type is."""
    if cell is None:
        return Markup('<span class="none">null</span>')
    if isinstance(cell, OutputFile):
        return output_file(cell)
    if isinstance(cell, list) and cell and isinstance(cell[0], OutputFile):
        return Markup(" ").join(output_file(one) for one in cell)
    if isinstance(cell, Thumbnail):
        return Markup('<img class="picture" alt="" src="{}">').format(cell)
    if isinstance(cell, datetime):
        return when(cell) if cell.tzinfo is not None else cell.isoformat(" ", "seconds")
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return f"{cell:g}"
    if isinstance(cell, timedelta):
        return f"{cell.total_seconds():g} s"
    if isinstance(cell, str) and "\n" in cell:
        return Markup('<span class="lines">{}</span>').format(block(cell))
    return to_json(cell) if isinstance(cell, Mapping | list | tuple) else cell


class StackedBar(NamedTuple):
    """A bar of a chart of height 1: of the kind, upwards from those of the kinds before."""

    kind: str
    at: int
    top: float
    height: float
    number: float


def stacked(series: Mapping[str, Sequence[float]]) -> list[StackedBar]:
    """Returns the bars of a chart: those of all kinds at one place upon each other, the highest of height 1, none invisible."""
    places = list(zip(*series.values(), strict=True))
    most = max(map(sum, places), default=0) or 1
    bars = []
    for at, numbers in enumerate(places):
        heights = [max(number / most, _LEAST_HEIGHT) if number else 0 for number in numbers]
        room = max(1.0, sum(heights))
        bars += [
            StackedBar(kind, at, 1 - sum(heights[: of + 1]) / room, heights[of] / room, numbers[of])
            for of, kind in enumerate(series)
            if numbers[of]
        ]
    return bars


def output_file(file: Mapping[str, Any]) -> Markup:
    """Returns a link to a file that a function wrote, with its size, and the picture if it may be one."""
    volume, path, size = file["volume"], file["relative_path"], file["size"]
    picture = Markup('<img class="thumb" loading="lazy" alt="" src="{}">').format(url("volumes", volume, "content", path=path))
    shown = picture if may_be_thumbnail(path, size) else ""
    page, text = url("volumes", volume, "files", path=path), one_line(printable(path))
    return Markup('<a href="{}">{}{}</a> <span class="dim">{}</span>').format(page, shown, text, format_size(size))


def may_be_thumbnail(path: str, size: int | None = None) -> bool:
    """True if a file is by its name a picture, and not known to be too large to be fetched for a page with many."""
    return may_be_picture(path) and (size or 0) <= _LARGEST_THUMBNAIL


def url(*parts: str, **query: Any) -> str:
    """Returns the path of a page from its parts, which may be any text, with a query of those values that are there."""
    path = "".join(f"/{quote(part.encode('utf-8', 'surrogateescape'), safe='')}" for part in parts) or "/"
    present = {
        name: str(item).encode("utf-8", "surrogateescape") for name, item in query.items() if item is not None and item != ""
    }
    return f"{path}?{urlencode(present)}" if present else path
