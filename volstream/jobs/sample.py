"""A sample of a volume's files for finding columns: spread evenly, and always the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from volstream.base.definitions import Volume
from volstream.base.model.files import FileInfo
from volstream.changes.directory.table import COLUMNS
from volstream.changes.streams.volume_source import VolumeSource
from volstream.jobs.services import JobServices
from volstream.spark.frames import relation

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


def _candidates(
    services: JobServices, volume: Volume, where: str | None, suits: Callable[[FileInfo], bool]
) -> Sequence[FileInfo]:
    snapshot = VolumeSource(services.catalog, services.warehouse, volume.id).find()
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
