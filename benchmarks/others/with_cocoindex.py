"""CocoIndex: an app that declares a row of SQLite for each file. Runs in its own environment.

    python -m benchmarks.others.with_cocoindex FOLDER STATE

CocoIndex removes rows that are no longer declared, and does not reprocess files whose content is the same.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cocoindex as coco
from cocoindex.connectors import localfs, sqlite

from benchmarks.functions import summary_of

_FOLDER, _STATE = map(Path, sys.argv[1:])
_ROWS = coco.ContextKey[sqlite.ManagedConnection]("rows")


@dataclass
class _Row:
    path: str
    sha256: str
    words: int
    first_line: str


@coco.lifespan
async def _lifespan(builder: coco.EnvironmentBuilder) -> AsyncIterator[None]:
    builder.settings.db_path = _STATE / "cocoindex"
    builder.provide_with(_ROWS, sqlite.managed_connection(_STATE / "rows.sqlite", load_vec=False))
    yield


@coco.fn(memo=True)
async def _process(file: localfs.File, table: sqlite.TableTarget[_Row]) -> None:
    summary = summary_of(await file.read())
    table.declare_row(row=_Row(path=file.file_path.path.as_posix(), **asdict(summary)))


@coco.fn
async def _main(folder: Path) -> None:
    schema = await sqlite.TableSchema.from_class(_Row, primary_key=["path"])
    table = await sqlite.mount_table_target(_ROWS, "summaries", schema)
    await coco.mount_each(_process, localfs.walk_dir(folder, recursive=True).items(), table)


if __name__ == "__main__":
    coco.App(coco.AppConfig(name="summaries"), _main, folder=_FOLDER).update_blocking()
