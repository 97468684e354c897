"""The job's function: a PDF becomes chunks of text, each with an id and a vector."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from pypdf import PdfReader
from vectors import vector_of

from volstream import File, step

#: Characters of a chunk at most: about what a model for embeddings takes well.
LENGTH = 600


@dataclass
class Chunk:
    """A row of the table."""

    id: str
    page: int
    text: str
    vector: list[float]


@step
def embed(text: str) -> list[float]:
    """Returns the vector of a chunk. It is kept, so that an edited document pays for its new chunks only."""
    return vector_of(text)


def split(file: File) -> Iterator[Chunk]:
    """Yields the chunks of a PDF. One that says what it said before has the id that it had before."""
    seen: dict[str, int] = {}
    for number, page in enumerate(PdfReader(file.open()).pages, 1):
        for text in textwrap.wrap(page.extract_text(), LENGTH):
            seen[text] = seen.get(text, 0) + 1
            key = f"{file.relative_path}\n{text}\n{seen[text]}"
            yield Chunk(hashlib.sha256(key.encode()).hexdigest()[:16], number, text, embed(text))
