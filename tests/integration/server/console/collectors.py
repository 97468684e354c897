"""What consoles under test have for metrics."""

from __future__ import annotations

from collections.abc import Iterator


class Empty:
    """A collector of nothing."""

    def collect(self) -> Iterator[object]:
        return iter(())
