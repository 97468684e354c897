"""The plain loop: a script written without a framework. Two processes, and a manifest with time and size.

It uses only the standard library::

    python -m benchmarks.raw FOLDER RESULTS.jsonl [--slow]

The results, JSON lines with each file's time and size, are the manifest. They are rewritten as a whole, under another name,
so that a crash leaves the old ones. It does not handle concurrent runs, or functions that fail.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from benchmarks.functions import Summary, burn, summary_of

PROCESSES = 2

#: Number of files that a process takes at a time.
_CHUNK = 64

_State = dict[str, dict[str, Any]]


def update(folder: Path, results: Path, *, slow: bool = False) -> int:
    """Brings ``results`` up to date with the files in ``folder``; returns how many were processed."""
    known = _read(results)
    listed = dict(listing(folder))
    work = [
        (str(folder), path, size, modified, slow)
        for path, (size, modified) in listed.items()
        if path not in known or (known[path]["size"], known[path]["modified"]) != (size, modified)
    ]
    if not work and len(known) == len(listed):
        return 0
    kept = {path: row for path, row in known.items() if path in listed}
    if work:
        with Pool(PROCESSES) as pool:
            for row in pool.imap_unordered(_process, work, _CHUNK):
                kept[row["path"]] = row
    _write(results, kept)
    return len(work)


def listing(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields (path, (size, time of the last change)) of every file."""
    pending = [""]
    while pending:
        directory = pending.pop()
        with os.scandir(folder / directory) as entries:
            for entry in entries:
                path = f"{directory}{entry.name}"
                if entry.is_dir():
                    pending.append(f"{path}/")
                else:
                    status = entry.stat()
                    yield path, (status.st_size, status.st_mtime_ns)


def rows(results: Path) -> dict[str, Summary]:
    """Returns the rows in ``results``, by path."""
    return {path: Summary(row["sha256"], row["words"], row["first_line"]) for path, row in _read(results).items()}


def _process(task: tuple[str, str, int, int, bool]) -> dict[str, Any]:
    folder, path, size, modified, slow = task
    if slow:
        burn()
    summary = summary_of(Path(folder, path).read_bytes())
    return {"path": path, "size": size, "modified": modified, **asdict(summary)}


def _read(results: Path) -> _State:
    if not results.exists():
        return {}
    with results.open(encoding="utf-8") as lines:
        return {row["path"]: row for row in map(json.loads, lines)}


def _write(results: Path, state: _State) -> None:
    temporary = results.with_suffix(".new")
    with temporary.open("w", encoding="utf-8") as lines:
        lines.writelines(f"{json.dumps(row)}\n" for row in state.values())
    temporary.rename(results)


if __name__ == "__main__":
    update(Path(sys.argv[1]), Path(sys.argv[2]), slow="--slow" in sys.argv)
