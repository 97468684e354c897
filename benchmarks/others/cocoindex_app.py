"""What the apps of CocoIndex share: a folder of files, and a database of SQLite in the state's folder."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import cocoindex as coco
from cocoindex.connectors import localfs, sqlite

_FOLDER, _STATE = map(Path, sys.argv[1:])
_ROWS = coco.ContextKey[sqlite.ManagedConnection]("rows")


@coco.lifespan
async def _lifespan(builder: coco.EnvironmentBuilder) -> AsyncIterator[None]:
    builder.settings.db_path = _STATE / "cocoindex"
    builder.provide_with(_ROWS, sqlite.managed_connection(_STATE / "rows.sqlite", load_vec=False))
    yield


def update(
    table: str, row: type, key: list[str], process: Callable[[localfs.File, sqlite.TableTarget[Any]], Awaitable[None]]
) -> None:
    """Brings a table up to date: calls ``process``, which declares rows, for each file."""

    @coco.fn
    async def main(folder: Path) -> None:
        schema = await sqlite.TableSchema.from_class(row, primary_key=key)
        target = await sqlite.mount_table_target(_ROWS, table, schema)
        await coco.mount_each(process, localfs.walk_dir(folder, recursive=True).items(), target)

    coco.App(coco.AppConfig(name=table), main, folder=_FOLDER).update_blocking()
