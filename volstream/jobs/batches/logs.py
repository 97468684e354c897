"""Stores and reads the output of a job's functions: a file per batch, below the warehouse.

A file has a line of JSON for each call that printed something. The newest attempt at a batch replaces the
file. How much of a call's and a batch's output is kept is decided in ``printing``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from volstream.functions.printing import TruncatedLog
from volstream.tables.delta.places import WrittenFile, files, make_folder, open_below, remove_file, replace_file

#: Maximum number of files per job, regardless of their size.
_MAX_FILES = 1000

_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class LogLine:
    """A line that a function printed, or a note about missing lines.

    Attributes:
        batch: id of the batch.
        files: paths with which the function was called, or none for output of its setup.
        stream: ``stdout``, ``stderr`` or ``log``, or None for a note about missing lines.
    """

    batch: str
    files: Sequence[str]
    time: datetime
    stream: str | None
    text: str


def write(location: str, batch: str, entries: Iterable[str], max_bytes: int) -> None:
    """Stores the output of an attempt at a batch, replacing that of earlier attempts.

    Args:
        entries: as encoded by :meth:`CapturedOutput.encoded`.
    """
    log = TruncatedLog(max_bytes)
    lost = 0
    for entry in entries:
        decoded = json.loads(entry)
        lost += decoded.get("lost", 0)
        if "files" in decoded:
            log.add(entry, failed=decoded["failed"])
    log.dropped += lost
    ordered = sorted(log.encoded(), key=_began)
    make_folder(location)
    replace_file(f"{location}/{batch}{_SUFFIX}", "".join(f"{line}\n" for line in ordered).encode())


def read(location: str, limit: int, *, batch: str | None = None, path: str | None = None) -> Sequence[LogLine]:
    """Returns the last lines of the newest batches: batch by batch, in the order of printing.

    Args:
        limit: maximum number of lines.
        batch, path: restrict the result to this batch, and to calls with this file.
    """
    newest: list[LogLine] = []
    warehouse = _warehouse_of(location)
    for file in _files(location):
        name = file.name.removesuffix(_SUFFIX)
        if (batch is None or batch == name) and len(newest) < limit:
            with suppress(FileNotFoundError), open_below(warehouse, file.path) as opened:
                lines = _lines(name, opened.read(), path)
                newest = [*lines[-(limit - len(newest)) :], *newest]
    return newest


def trim(location: str, max_bytes: int, before: datetime) -> None:
    """Removes files older than ``before``, and the oldest files beyond ``max_bytes``."""
    remaining = max_bytes
    for number, file in enumerate(_files(location)):
        remaining -= file.size
        if (remaining < 0 and number) or number >= _MAX_FILES or file.written_on < before:
            remove_file(_warehouse_of(location), file.path)


def _warehouse_of(location: str) -> str:
    """Returns the warehouse of a job's logs. The warehouse may be a link. Links below it are not followed."""
    return location.rsplit("/", 2)[0]


def _files(location: str) -> Sequence[WrittenFile]:
    """Returns a job's files, newest first, with their paths in the warehouse."""
    warehouse = _warehouse_of(location)
    found = [file for file in files(warehouse, location[len(warehouse) + 1 :]) if not file.path.endswith(".new")]
    return sorted(found, key=lambda file: (file.written_on, file.path), reverse=True)


def _lines(batch: str, content: bytes, path: str | None) -> list[LogLine]:
    printed: list[LogLine] = []
    entries: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]
    began = next((_time(entry["lines"][0][0]) for entry in entries if "lines" in entry), datetime.now(UTC))
    for entry in entries:
        if "lost" in entry:
            if path is None:
                text = f"({entry['lost']} calls printed more, which was not kept: see log_batch_bytes)"
                printed.append(LogLine(batch, (), began, None, text))
        elif path is None or path in entry["files"]:
            call = (batch, entry["files"])
            if entry["dropped"]:
                text = f"({entry['dropped']} lines before these were not kept: see log_file_bytes)"
                printed.append(LogLine(*call, _time(entry["lines"][0][0]), None, text))
            printed += [LogLine(*call, _time(time), stream, text) for time, stream, text in entry["lines"]]
    return printed


def _began(entry: str) -> float:
    """Returns the time of an entry's first line, or 0 for the note about lost entries, which sorts first."""
    lines = json.loads(entry).get("lines")
    return float(lines[0][0]) if lines else 0.0


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
