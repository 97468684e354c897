"""Old entries of a table's log, removed where Delta does not do so itself.

Delta lists the whole log several times for each commit and each read: on a local disk a version costs every one of them about
a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyarrow import fs

#: What a log has of one version, and the checksums that Hadoop keeps beside each file of a local disk.
_ENTRY = re.compile(r"\.?(\d{20})\.(checkpoint\.parquet|crc|json)(\.crc)?")


def earliest(location: str) -> int | None:
    """The oldest version that can be read, with the changes since; None where there is no log."""
    return _earliest(_entries(location))


def clean(location: str, keep: int) -> int:
    """Removes what the log has of versions that ``keep`` and later ones do not need; how many versions went.

    Those are the versions before the newest checkpoint up to ``keep``: Delta reads from a checkpoint on. The oldest go
    first, so that an interruption leaves a log that begins later.
    """
    entries = _entries(location)
    oldest = _earliest(entries)
    anchor = max(
        (version for version, name in entries if version <= keep and name == _checkpoint(version)), default=None
    )
    if oldest is None or anchor is None:
        return 0
    filesystem, path = _log_of(location)
    for version, name in entries:
        if version < anchor:
            filesystem.delete_file(f"{path}/{name}")
    return max(0, anchor - oldest)


def _earliest(entries: Sequence[tuple[int, str]]) -> int | None:
    return next(
        (
            version
            for version, name in entries
            if name == _checkpoint(version) or (version == 0 and name == f"{version:020d}.json")
        ),
        None,
    )


def _checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def _entries(location: str) -> Sequence[tuple[int, str]]:
    """(version, name), the oldest first, and of one version its checkpoint."""
    filesystem, path = _log_of(location)
    names = [info.base_name for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))]
    found = ((_ENTRY.fullmatch(name), name) for name in names)
    return sorted(
        ((int(match[1]), name) for match, name in found if match), key=lambda one: (one[0], one[1].lstrip("."))
    )


def _log_of(location: str) -> tuple[fs.FileSystem, str]:
    filesystem, path = fs.FileSystem.from_uri(location)
    return filesystem, f"{path.rstrip('/')}/_delta_log"
