"""``RowOperator`` where hosted platforms have it."""

from __future__ import annotations

from volstream.ingest.options import RowOperator

__all__ = ["RowOperator"]
