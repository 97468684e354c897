"""CocoIndex: an app that declares a row of SQLite for each file. Runs in its own environment.

    python -m benchmarks.others.with_cocoindex FOLDER STATE

CocoIndex removes rows that are no longer declared, and does not reprocess files whose content is the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import cocoindex as coco
from cocoindex.connectors import localfs, sqlite

from benchmarks.functions import summary_of
from benchmarks.others.cocoindex_app import update


@dataclass
class _Row:
    path: str
    sha256: str
    words: int
    first_line: str


@coco.fn(memo=True)
async def _process(file: localfs.File, table: sqlite.TableTarget[_Row]) -> None:
    summary = summary_of(await file.read())
    table.declare_row(row=_Row(path=file.file_path.path.as_posix(), **asdict(summary)))


if __name__ == "__main__":
    update("summaries", _Row, ["path"], _process)
