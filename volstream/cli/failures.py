"""Failed files in a terminal: by cause, a block for each file, as wide as the terminal. Pure."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from volstream.base.model.paths import printable
from volstream.base.model.text import counted, one_line
from volstream.base.model.work import FailureState
from volstream.ops.inspection.details import common_message, group_id

#: A line of a traceback.
_PLACE = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def by_cause(failures: Sequence[Mapping[str, Any]], width: int, most: int | None) -> str:
    """Returns failures for people, the most frequent cause first.

    Args:
        most: files of a cause that are named; None: all.
        failures: see :func:`volstream.ops.inspection.details.explained`.
        width: of the terminal; names and commands are not broken.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for failure in failures:
        groups.setdefault((failure["job"], group_id(failure["kind"], failure["message"], failure["path"])), []).append(failure)
    ordered = sorted(groups.values(), key=lambda group: -len(group))
    return "\n\n".join("\n".join(_lines(group, width, most)) for group in ordered)


def _lines(group: Sequence[Mapping[str, Any]], width: int, most: int | None) -> Iterator[str]:
    first, why = group[0], common_message((failure["message"], failure["path"]) for failure in group)
    yield from _wrapped(f"{counted(len(group), first['unit'])} of job {first['job']}: {why}", width, "")
    if places := _PLACE.findall(first["traceback"] or ""):
        path, line, name = places[-1]
        yield f"  at {printable(path)}:{line} in {name}; all of the traceback: --format json"
    remedy = first["remedy"]
    if len(group) > 1:
        path, retry = shlex.quote(first["path"]), f"volstream retry {first['job']}"
        if first["state"] != FailureState.SKIPPED:
            remedy = remedy.replace(f"{retry} {path}", retry)
        for before in (f"{retry} ", f"skip {first['job']} ", "--file "):
            remedy = remedy.replace(f"{before}{path}", f"{before}PATH")
    yield from _wrapped(remedy, width, "  ")
    # One more is named rather than counted.
    named = group if most is None or len(group) <= most + 1 else group[:most]
    for failure in named:
        yield f"    {printable(failure['path'])}"
        said = f"{failure['state']} ({failure['kind']}), {counted(failure['attempts'], 'failed attempt')}: {failure['next']}"
        yield from _wrapped(said, width, "        ")
    if len(named) < len(group):
        yield f"    and {len(group) - len(named):,} more: volstream list failures --job {first['job']} --all"


def _wrapped(text: str, width: int, indent: str) -> Sequence[str]:
    return textwrap.wrap(
        one_line(text),
        max(40, width),
        initial_indent=indent,
        subsequent_indent=indent or "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
