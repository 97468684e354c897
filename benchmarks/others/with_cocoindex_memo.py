"""CocoIndex: an app with a row of SQLite for each paragraph of a document, whose value has a memo. Runs in its own environment.

python -m benchmarks.others.with_cocoindex_memo FOLDER STATE
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import cocoindex as coco
from cocoindex.connectors import localfs, sqlite

from benchmarks.others.cocoindex_app import update
from benchmarks.paragraphs import chunks_of, embed_slowly


@dataclass
class _Row:
    path: str
    number: int
    value: float


@coco.fn(memo=True)
async def _embed(text: str) -> float:
    return await embed_slowly(text)


@coco.fn(memo=True)
async def _process(file: localfs.File, table: sqlite.TableTarget[_Row]) -> None:
    values = await asyncio.gather(*map(_embed, chunks_of(await file.read_text())))
    for number, value in enumerate(values):
        table.declare_row(row=_Row(path=file.file_path.path.as_posix(), number=number, value=value))


if __name__ == "__main__":
    update("paragraphs", _Row, ["path", "number"], _process)
