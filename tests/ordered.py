"""A bucket of keys without contents, for tests of listings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tests.memory import MemoryStore
from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.errors import StorageError

#: When each object was last modified.
TIME = datetime(2024, 1, 1, tzinfo=UTC)


class Bucket(MemoryStore):
    """A bucket of the given keys, listed in order; records what it was asked for."""

    def __init__(self, keys: list[str], fails_at: str | None = None) -> None:
        super().__init__("memory://bucket")
        self.keys = sorted(keys, key=lambda key: key.encode())
        self.fails_at = fails_at
        self.asked: list[tuple[str, str, bool]] = []

    def list_after(self, prefix: str, selection: Selection, after: str, *, deep: bool = True) -> Iterator[FileInfo | Finding]:
        self.asked.append((prefix, after, deep))
        for key in self.keys:
            inside = key.startswith(prefix) and (deep or "/" not in key[len(prefix) :])
            if inside and key == self.fails_at:
                raise StorageError("The store does not answer.")
            if inside and key.encode() > after.encode() and selection.accepts(key):
                yield FileInfo(key, 3, TIME, f"etag of {key}")

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        return self.list_after(prefix, selection, "")

    def head(self, relative_path: str) -> FileInfo | None:
        return FileInfo(relative_path, 3, TIME, f"etag of {relative_path}") if relative_path in self.keys else None

    def prefixes(self, prefix: str) -> Iterator[str]:
        below = [key[len(prefix) :] for key in self.keys if key.startswith(prefix)]
        yield from dict.fromkeys(f"{prefix}{rest.partition('/')[0]}/" for rest in below if "/" in rest)
