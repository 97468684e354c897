"""The job's function: a log file becomes rows, one for each entry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from volstream import File

_ENTRY = re.compile(r"(?P<at>\S+Z) (?P<level>[A-Z]+) (?P<message>.*)")


@dataclass
class Entry:
    """A row of the table."""

    service: str
    line: int
    at: datetime
    level: str
    message: str


def parse(file: File) -> Iterator[Entry]:
    """Yields the entries of ``SERVICE/DAY.log``. A line that does not begin with a time belongs to the entry before it, as
    those of a traceback do."""
    service = file.relative_path.partition("/")[0]
    entry: Entry | None = None
    with file.open() as lines:
        for number, raw in enumerate(lines, 1):
            line = raw.decode("utf-8", errors="replace").rstrip("\n")
            if found := _ENTRY.fullmatch(line):
                if entry:
                    yield entry
                entry = Entry(service, number, datetime.fromisoformat(found["at"]), found["level"], found["message"])
            elif entry:
                entry.message += f"\n{line}"
            else:
                raise ValueError(f"line {number} is before the first entry: {line[:80]!r}")
    if entry:
        yield entry
