"""A per-file function whose values for paragraphs are those of a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import volstream
from benchmarks.paragraphs import chunks_of, embed_slowly


@volstream.step
async def embed(text: str) -> float:
    """Returns the value of a paragraph, which is kept."""
    return await embed_slowly(text)


async def chunks(file: volstream.File) -> AsyncIterator[dict[str, float]]:
    """Yields a row for each paragraph of a document."""
    for value in await asyncio.gather(*map(embed, chunks_of(file.read_text()))):
        yield {"value": value}
