"""Vectors of texts: each word sets one of 256 numbers. Replace ``vector_of`` by a model's embedding, the rest stays."""

from __future__ import annotations

import math
import re
import zlib

SIZE = 256
#: Words that say nothing about what a text is about.
_COMMON = frozenset(("a", "an", "any", "by", "do", "does", "for", "how", "i", "in", "is", "it", "of", "or", "the", "to", "we"))


def vector_of(text: str) -> list[float]:
    """Returns a vector of length 1, or of zeros for a text without words. Plurals count as their singulars."""
    vector = [0.0] * SIZE
    for word in re.findall(r"\w+", text.lower()):
        if word not in _COMMON:
            vector[zlib.crc32(word.rstrip("s").encode()) % SIZE] += 1.0
    length = math.hypot(*vector) or 1.0
    return [one / length for one in vector]


def similarity(vector: list[float], question: str) -> float:
    """Returns the cosine of the angle between a chunk's vector and that of a question, for SQL."""
    return sum(one * other for one, other in zip(vector, vector_of(question), strict=True))
