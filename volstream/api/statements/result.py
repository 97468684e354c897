"""The rows of a statement that ran without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """The rows of a statement that ran without Spark.

    Attributes:
        query: SQL for the same rows and their types, for a DataFrame; None: all columns are text.
    """

    columns: Sequence[str]
    rows: Iterable[Mapping[str, Any]]
    query: str | None = None
