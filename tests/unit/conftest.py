"""For tests of functions: a store in memory, and what runs a function over its objects."""

from tests.running import isolated, run, store

__all__ = ["isolated", "run", "store"]
