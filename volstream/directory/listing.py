"""A full listing of a subtree, spooled to a Parquet file: memory stays flat however many files there are.

Only what is settled is listed: a file that was modified within the last moments is looked at again after the settle time,
and taken only if it did not change meanwhile.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import pyarrow.parquet as pq
from pyarrow import fs

from volstream.directory import table
from volstream.model.files import FileInfo, Finding
from volstream.model.selection import Selection
from volstream.storage.base import ObjectStore

_ROW_GROUP = 20_000

#: Findings beyond this many are counted, not kept: a million unreadable names say no more than a thousand.
_MOST_FINDINGS = 1000


@dataclass
class Listing:
    """What a listing found.

    Attributes:
        began: when, as :func:`time.time`.
        resumed: a part of it was made by an earlier process.
        digest: of all (path, version) pairs, in whatever order they came.
        findings: names that cannot be rows, at most 1,000 of them.
        unsettled: files that were still being written when the listing ended; they are in ``findings`` too.
    """

    files: int = 0
    bytes: int = 0
    digest: str = ""
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    unsettled: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    resumed: bool = False


def list_to(
    target: str,
    store: ObjectStore,
    prefix: str,
    selection: Selection,
    *,
    settle_seconds: float,
    wait: Callable[[float], object] = time.sleep,
) -> Listing:
    """Lists everything below ``prefix`` into one Parquet file at ``target``, with the columns of a directory table.

    Args:
        target: path or URI of the file to write.
        settle_seconds: a file modified less than this ago is looked at again that much later.
        wait: sleeps; the daemon passes one that a stop can interrupt.

    Raises:
        StorageError: the listing did not come to its end; nothing can be concluded from it.
    """
    listing = Listing()
    digest = SetDigest()
    filesystem, path = fs.FileSystem.from_uri(target)
    filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    with (
        filesystem.open_output_stream(path) as sink,
        pq.ParquetWriter(sink, table.SCHEMA, compression="zstd") as writer,
    ):
        settled = _settled(store.list(prefix, selection), store, listing, settle_seconds, wait)
        while group := list(islice(settled, _ROW_GROUP)):
            for file in group:
                listing.bytes += file.size
                digest.add(f"{file.relative_path}\0{file.version}")
            listing.files += len(group)
            writer.write_table(table.rows(group, store.url))
    listing.digest = digest.hexdigest()
    return listing


def _settled(
    listed: Iterable[FileInfo | Finding],
    store: ObjectStore,
    listing: Listing,
    settle_seconds: float,
    wait: Callable[[float], object],
) -> Iterator[FileInfo]:
    """The listed files that are complete; recent ones are spooled to disk and come last."""
    with tempfile.SpooledTemporaryFile(max_size=1 << 20, mode="w+", encoding="utf-8", newline="\n") as recent:
        spooled = 0
        for entry in listed:
            if isinstance(entry, Finding):
                _note(listing, entry)
            elif abs(time.time() - entry.last_modified_time.timestamp()) < settle_seconds:
                recent.write(f"{entry.relative_path}\0{entry.etag}\0")
                spooled += 1
            else:
                yield entry
        if not spooled:
            return
        wait(settle_seconds)
        recent.seek(0)
        for path, etag in _pairs(recent.read):
            again = store.head(path)
            if again is not None and again.etag == etag:
                yield again
            elif again is not None:
                listing.unsettled.append(path)
                _note(listing, Finding(path, "It is still being written; it is looked at again later."))


def _note(listing: Listing, finding: Finding) -> None:
    listing.finding_count = note(listing.findings, listing.finding_count, finding)


def note(findings: list[Finding], count: int, finding: Finding) -> int:
    """Adds a finding to the first ones of ``count``, which are kept; the new count."""
    if len(findings) < _MOST_FINDINGS:
        findings.append(finding)
    return count + 1


def _pairs(read: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    """(path, etag) of a text of fields that each end in NUL, which no path contains."""
    pending = ""
    while chunk := read(1 << 16):
        *fields, pending = (pending + chunk).split("\0")
        if len(fields) % 2:
            pending = f"{fields.pop()}\0{pending}"
        yield from zip(fields[::2], fields[1::2], strict=True)


class SetDigest:
    """A digest of a set of texts: the sum of their 256-bit hashes. Order does not matter, so nothing has to be sorted."""

    def __init__(self, of: int = 0) -> None:
        self.sum = of  #: sums of digests are digests of the sets together

    def add(self, text: str) -> None:
        """Takes a member in."""
        self.sum += int.from_bytes(
            hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=32).digest(), "big"
        )

    def hexdigest(self) -> str:
        """64 characters."""
        return f"{self.sum % (1 << 256):064x}"
