"""Pages as HTML: escaped strictly, with names that cannot mislead, and numbers, sizes and times as people read them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from volstream.inspection.tables import Thumbnail
from volstream.model.documents import to_json
from volstream.model.files import printable
from volstream.model.text import counted, first_line, one_line, visible
from volstream.model.units import about, format_size

#: Files that pages refer to.
STATIC = Path(__file__).parent / "static"


def render(template: str, **values: Any) -> str:
    """Returns a page. Text in ``values`` is escaped, with control and direction characters shown."""
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("volstream.console"),
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
        "when": when,
        "value": value,
        "json": to_json,
        "counted": counted,
        "stamp": lambda moment: moment.timestamp(),
    }
    environment.globals |= {"url": url, "now": lambda: datetime.now(UTC)}
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
        return f"{round(value):,}".replace(",", "\u202f")
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


def value(found: Any) -> Any:
    """Returns a value of a table's row, whatever its type is."""
    if found is None:
        return Markup('<span class="none">null</span>')
    if isinstance(found, Thumbnail):
        return Markup('<img class="picture" alt="" src="{}">').format(found)
    if isinstance(found, datetime):
        return when(found) if found.tzinfo is not None else found.isoformat(" ", "seconds")
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, float):
        return f"{found:g}"
    if isinstance(found, timedelta):
        return f"{found.total_seconds():g} s"
    if isinstance(found, str) and "\n" in found:
        return Markup('<span class="lines">{}</span>').format(block(found))
    return to_json(found) if isinstance(found, Mapping | list | tuple) else found


def url(*parts: str, **query: Any) -> str:
    """Returns the path of a page from its parts, which may be any text, with a query of those values that are there."""
    path = "".join(f"/{quote(part.encode('utf-8', 'surrogateescape'), safe='')}" for part in parts) or "/"
    given = {
        name: str(one).encode("utf-8", "surrogateescape")
        for name, one in query.items()
        if one is not None and one != ""
    }
    return f"{path}?{urlencode(given)}" if given else path
