"""CocoIndex: an app with a row of SQLite for each paragraph of a document, whose value has a memo. Runs in its own environment.

python -m benchmarks.others.with_cocoindex_memo FOLDER STATE
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import cocoindex as coco
from cocoindex.connectors import localfs, sqlite

from benchmarks.paragraphs import chunks_of, embed_slowly

_FOLDER, _STATE = map(Path, sys.argv[1:])
_ROWS = coco.ContextKey[sqlite.ManagedConnection]("rows")


@dataclass
class _Row:
    path: str
    number: int
    value: float


@coco.lifespan
async def _lifespan(builder: coco.EnvironmentBuilder) -> AsyncIterator[None]:
    builder.settings.db_path = _STATE / "cocoindex"
    builder.provide_with(_ROWS, sqlite.managed_connection(_STATE / "rows.sqlite", load_vec=False))
    yield


@coco.fn(memo=True)
async def _embed(text: str) -> float:
    return await embed_slowly(text)


@coco.fn(memo=True)
async def _process(file: localfs.File, table: sqlite.TableTarget[_Row]) -> None:
    values = await asyncio.gather(*map(_embed, chunks_of(await file.read_text())))
    for number, value in enumerate(values):
        table.declare_row(row=_Row(path=file.file_path.path.as_posix(), number=number, value=value))


@coco.fn
async def _main(folder: Path) -> None:
    schema = await sqlite.TableSchema.from_class(_Row, primary_key=["path", "number"])
    table = await sqlite.mount_table_target(_ROWS, "paragraphs", schema)
    await coco.mount_each(_process, localfs.walk_dir(folder, recursive=True).items(), table)


if __name__ == "__main__":
    coco.App(coco.AppConfig(name="paragraphs"), _main, folder=_FOLDER).update_blocking()
