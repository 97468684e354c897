"""Compares a volume's directory with the files that the volume has, and changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.config import Settings
from volstream.base.definitions import Volume
from volstream.base.threads import Stop
from volstream.catalog import Catalog
from volstream.changes.directory import table
from volstream.changes.directory.confirm import Confirm, Observations
from volstream.changes.directory.difference import differences
from volstream.changes.directory.listing import listed_in
from volstream.changes.directory.ordered import PATH
from volstream.changes.directory.reconcile import late_in, list_subtrees
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import DELETE, INSERT, UPDATE
from volstream.errors import NotFoundError
from volstream.files.volumes.access import store_of
from volstream.tables.delta import places

#: Files named in a report.
_EXAMPLES = 20


class Difference(StrEnum):
    """``MISSING``: the directory lacks the file. ``CHANGED``: it has another version. ``GONE``: there is no such file."""

    MISSING = "missing"
    CHANGED = "changed"
    GONE = "gone"


_DIFFERENCES = {INSERT: Difference.MISSING, UPDATE: Difference.CHANGED, DELETE: Difference.GONE}


@dataclass(frozen=True)
class ComparedDirectory:
    """What was found.

    Attributes:
        files, bytes: of the volume.
        wrong: number of files with each difference; only those that there are.
        examples: some of these files, with their differences.
        late: how many of these are so recent that their events may still be under way.
        unusable: names that cannot be rows, and files still being written; they were not compared.
    """

    files: int
    bytes: int
    wrong: Mapping[Difference, int]
    examples: Sequence[tuple[str, Difference]]
    late: int
    unusable: int

    @property
    def count(self) -> int:
        """Number of files that are wrong in the directory."""
        return sum(self.wrong.values())


def compared(catalog: Catalog, settings: Settings, volume: Volume, stop: Stop) -> ComparedDirectory:
    """Lists a volume and compares the directory with the listing. What a daemon commits meanwhile is no difference.

    Raises:
        NotFoundError: the volume was never listed.
        StorageError: the listing failed, or files that it lacks could not be checked.
        InterruptedByUserError: stopped.
    """
    store = store_of(volume, catalog, settings)
    wrong, examples, late = Counter[Difference](), list[tuple[str, Difference]](), 0
    with places.staged(settings.warehouse_path, "verify") as folder:
        listing = list_subtrees(
            folder, store, [""], volume.selection, settle_seconds=settings.settle_seconds, wait=stop.wait, stopped=stop.__bool__
        )
        snapshot = Snapshot.open(table.location(settings.warehouse_path, volume.id), volume.id)
        if snapshot is None:
            raise NotFoundError(f"The volume {volume.name} was never listed.", f"Run: volstream refresh {volume.name}")
        confirm = Confirm(store, volume.selection, Observations(unknown=True))
        began = pa.scalar(datetime.fromtimestamp(listing.began, UTC), pa.timestamp("us", tz="UTC"))
        for difference in differences(listed_in(folder), snapshot.at()):
            newer = pc.fill_null(pc.greater_equal(difference["old_refreshed_on"], began), False)
            found = confirm(difference.filter(pc.invert(newer)))
            kinds = [_DIFFERENCES[change] for change in found["change"].to_pylist()]
            wrong.update(kinds)
            late += late_in(found, listing.began)
            if len(examples) < _EXAMPLES:
                paths = found[PATH].slice(0, _EXAMPLES).to_pylist()
                examples += list(zip(paths, kinds, strict=False))[: _EXAMPLES - len(examples)]
    return ComparedDirectory(
        listing.files, listing.bytes, dict(sorted(wrong.items())), sorted(examples), late, listing.finding_count
    )
