"""A sample of a volume's files, always the same: to find columns, spread evenly, and to find files that a table has already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from volstream.base.definitions import FileJob, FileJobSpec, Job, Volume, Write
from volstream.base.model.paths import FileInfo, printable
from volstream.base.model.text import counted
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import COLUMNS
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import InvalidStateError
from volstream.jobs.home import Home
from volstream.jobs.services import JobServices
from volstream.spark.frames import relation
from volstream.tables.delta import direct, places
from volstream.tables.delta.opened import columns_at

#: Number of files from which a sample is chosen.
_CANDIDATES = 1000


def sample_of(
    services: JobServices, volume: Volume, where: str | None, limit: int, suits: Callable[[FileInfo], bool] = lambda _: True
) -> Sequence[FileInfo]:
    """Returns files of a listed volume, by path: all of them or, if there are more, the first, the last, and some in between.

    Args:
        where: SQL condition on the directory's columns; None: all files.
        limit: maximum number of files; at least 2.
    """
    infos = _candidates(services, volume, where, suits)
    if len(infos) <= limit:
        return infos
    return [infos[at * (len(infos) - 1) // (limit - 1)] for at in range(limit)]


def check_not_appended(home: Home, spec: FileJobSpec, replaced: Job | None) -> None:
    """Checks that a new job, which begins with all files, does not append rows of files that its table has already.

    Raises:
        InvalidStateError: the table has rows of the first files of the volume, in its present version.
    """
    leave = isinstance(replaced, FileJob) and replaced.takes_files  # a landing zone: loaded files have left
    if spec.write is not Write.APPEND or spec.volume is None or spec.group_by is not None or leave:
        return
    location = places.table_location(home.warehouse, spec.into)
    volume = home.catalog.volumes.get(spec.volume)
    if not {"_file_path", "_file_version"} <= columns_at(location).keys() or _listed(home, volume) is None:
        return
    files = _candidates(JobServices(home), volume, spec.where, lambda _: True)
    paths = {file.relative_path for file in files}
    rows = direct.rows_of(location, "_file_path", paths, ["_file_path", "_file_version"]) if paths else None
    there = set(zip(*(column.to_pylist() for column in rows.columns), strict=True)) if rows is not None else set()
    again = [file.relative_path for file in files if (file.relative_path, file.version) in there]
    if again:
        raise InvalidStateError(
            f"The table {spec.into} has rows of {counted(len(again), 'file')} of the volume {spec.volume} already, such as "
            f"{printable(again[0])}. A new job begins with all files, and would append their rows again.",
            f"To change a job, run volstream alter-job {spec.name}. To load all files again, drop the table or name another one.",
        )


def _listed(home: Home | JobServices, volume: Volume) -> Snapshot | None:
    """Returns the directory of a volume, or None before its first listing."""
    return VolumeSource(home.catalog, home.warehouse, volume.id).find()


def _candidates(
    services: JobServices, volume: Volume, where: str | None, suits: Callable[[FileInfo], bool]
) -> Sequence[FileInfo]:
    snapshot = _listed(services, volume)
    if snapshot is None:
        return ()
    infos: list[FileInfo] = []
    for rows in snapshot.at():
        if where is not None and rows.num_rows:
            with services.session() as session:
                rows = relation(session, rows.select(COLUMNS)).where(where).toArrow()
        candidates = (FileInfo(*row.values()) for row in rows.select(list(FileInfo._fields)).to_pylist())
        infos += islice(filter(suits, candidates), _CANDIDATES - len(infos))
        if len(infos) >= _CANDIDATES:
            break
    return infos
