"""A value for each paragraph of a document, which takes a while, and counts its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

#: Has a byte for each call, and the seconds that a call takes.
STATE = Path(__file__).resolve().parents[1] / ".bench" / "steps-state"


def chunks_of(text: str) -> Sequence[str]:
    """Returns the paragraphs of a text."""
    return text.split("\n\n")


async def embed_slowly(text: str) -> float:
    """Returns the value of a paragraph."""
    with (STATE / "calls").open("a") as calls:
        calls.write(".")
    await asyncio.sleep(float((STATE / "seconds").read_text()))
    return float(sum(map(int, text.split())))
