"""What is kept of what a job's functions printed: a file for each batch, below the warehouse, and how it is read again.

A file has a line of JSON for each call that printed something. It is of the newest attempt at its batch: an earlier one is
replaced. How much of a call and of a batch is kept, ``printing`` decides where that is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from volstream.delta import folders
from volstream.delta.places import make_folder, replace_file
from volstream.functions.printing import Kept

#: Of a job, no more files than this are kept, however small they are.
_MAX_FILES = 1000

_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class LogLine:
    """A line that a function printed, or one that says what is missing before it.

    Attributes:
        batch: id of the batch.
        files: paths of the files that the function was called with; none: while it was set up.
        stream: ``stdout``, ``stderr`` or ``log``; None: the line says how many are not kept.
    """

    batch: str
    files: Sequence[str]
    time: datetime
    stream: str | None
    text: str


def location_of(warehouse: str, job_id: str) -> str:
    """The folder of a job."""
    return f"{warehouse}/_logs/{job_id}"


def write(location: str, batch: str, entries: Iterable[str], most_bytes: int) -> None:
    """Keeps what was printed in an attempt at a batch, in the place of what an earlier one printed.

    Args:
        entries: as :meth:`Printed.encoded` writes them.
    """
    kept = Kept(most_bytes)
    lost = 0
    for entry in entries:
        found = json.loads(entry)
        lost += found.get("lost", 0)
        if "files" in found:
            kept.add(entry, failed=found["failed"])
    kept.dropped += lost
    ordered = sorted(kept.encoded(), key=_began)
    make_folder(location)
    replace_file(f"{location}/{batch}{_SUFFIX}", "".join(f"{line}\n" for line in ordered).encode())


def read(location: str, most: int, *, batch: str | None = None, path: str | None = None) -> Sequence[LogLine]:
    """The last lines of the newest batches, in the order in which they were printed, a batch after the other.

    Args:
        most: so many lines.
        batch, path: of this batch, or of calls with this file.
    """
    found: list[LogLine] = []
    for file in folders.files(location):
        name = file.name.removesuffix(_SUFFIX)
        if (batch is None or batch == name) and len(found) < most:
            lines = _lines(name, folders.content(f"{location}/{file.name}"), path)
            found = [*lines[-(most - len(found)) :], *found]
    return found


def trim(location: str, most_bytes: int, before: datetime) -> None:
    """Removes what is older than ``before``, and the oldest beyond so many bytes."""
    left = most_bytes
    for number, file in enumerate(folders.files(location)):
        left -= file.size
        if (left < 0 and number) or number >= _MAX_FILES or file.written_on < before:
            folders.remove_file(f"{location}/{file.name}")


def _lines(batch: str, content: bytes, path: str | None) -> list[LogLine]:
    found: list[LogLine] = []
    entries: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]
    began = next((_time(entry["lines"][0][0]) for entry in entries if "lines" in entry), datetime.now(UTC))
    for entry in entries:
        if "lost" in entry:
            if path is None:
                text = f"({entry['lost']} calls printed more, which is not kept: see log_batch_bytes)"
                found.append(LogLine(batch, (), began, None, text))
        elif path is None or path in entry["files"]:
            of = (batch, entry["files"])
            if entry["dropped"]:
                text = f"({entry['dropped']} lines before these are not kept: see log_file_bytes)"
                found.append(LogLine(*of, _time(entry["lines"][0][0]), None, text))
            found += [LogLine(*of, _time(time), stream, text) for time, stream, text in entry["lines"]]
    return found


def _began(entry: str) -> float:
    """When the first line of an entry was printed; what was lost, before all."""
    lines = json.loads(entry).get("lines")
    return float(lines[0][0]) if lines else 0.0


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
