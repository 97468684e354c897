"""What runs a function over the objects of a store in memory."""

from __future__ import annotations

from tests.running import isolated, run, store

__all__ = ["isolated", "run", "store"]
