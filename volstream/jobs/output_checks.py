"""Which functions may make files, and where: checked when a job is made or changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from volstream.base.definitions import FileJob, Job, Stream, Volume, Write
from volstream.base.definitions.job import KEEP
from volstream.base.model.names import Name
from volstream.base.model.paths import overlap, place_of, scheme_of
from volstream.catalog import Catalog
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.functions.output import STAGING, has_files


def check_outputs(catalog: Catalog, job: FileJob, columns: pa.Schema, stream: Stream) -> None:
    """Checks where a job's outputs go.

    Args:
        columns: of its result.
        stream: the job's.

    Raises:
        InvalidValueError: a target is missing, or cannot take outputs.
        InvalidStateError: the outputs would be files of the job itself, or another job takes them away or writes to their folder.
        NotFoundError: the target volume does not exist.
    """
    if job.outputs_to is None:
        if job.outputs_prefix is not None:
            raise InvalidValueError("outputs_prefix is a folder of the volume of outputs_to.", "Give outputs_to as well.")
        names = [column.name for column in columns if has_files(column.type)]
        if names:
            raise InvalidValueError(
                f"The column {names[0]!r} has files, but the job {job.name} has no volume for them.",
                "Give outputs_to, the name of a volume.",
            )
        return
    if job.write is Write.APPEND:
        raise InvalidValueError(
            "An append table keeps the rows of old versions, but their output files are overwritten.",
            "Leave out write, or outputs_to.",
        )
    volume = catalog.volumes.get(Name.parse(job.outputs_to))
    if job.environment is not None and scheme_of(volume.location) != "file":
        raise InvalidValueError(
            f"A function in an environment cannot write to {volume.location}.",
            "Let outputs_to name a volume of local files, or leave out environment.",
        )
    if scheme_of(volume.location) == "memory":
        raise InvalidValueError(f"The volume {volume.name} is in memory, and cannot take outputs.", "Name another one.")
    if volume.selection.may_contain(STAGING):
        raise InvalidValueError(f"The volume {volume.name} would list unfinished outputs.", f"Let it ignore '{STAGING}'.")
    place = place_of(volume.location, job.outputs_prefix)
    source = catalog.volumes.by_id(stream.source_id)
    if source is not None and _would_contain(source, place):
        raise InvalidStateError(
            f"The outputs of the job {job.name} would be files of the volume {source.name}, which it processes.",
            "Name another volume or another outputs_prefix; or let the volume ignore that folder: '<outputs_prefix>/**' and "
            "'<outputs_prefix>'.",
        )
    if source is not None and (circle := _way_back(catalog, job, source, place)):
        raise InvalidStateError(
            f"The outputs of the job {job.name} would form a loop: they reach the volume {source.name}, which it processes, "
            f"through the jobs {', '.join(other.name for other in circle)}.",
            "Name another volume or another outputs_prefix for one of them.",
        )
    for other in catalog.jobs.unlike(after_load=KEEP):
        emptied = catalog.volume_of(other)
        if emptied is not None and other.name != job.name and _would_contain(emptied, place):
            raise InvalidStateError(
                f"The outputs of the job {job.name} would be files of the volume {emptied.name}, from which the job {other.name} "
                "takes files away when it has loaded them.",
                f"Name another volume or outputs_prefix; or: volstream alter-job {other.name} --after-load keep.",
            )
    for other, target, theirs in _others(catalog, job):
        if overlap(place, theirs):
            raise InvalidStateError(
                f"The job {other.name} writes its outputs to the same folder of the volume {target.name}.",
                "Give each of them an outputs_prefix of its own.",
            )


def _way_back(catalog: Catalog, job: FileJob, source: Volume, place: str) -> Sequence[FileJob]:
    """Returns the jobs by which the files at a place lead to others in the volume that a job processes; empty: by none."""
    others = [(other, catalog.volume_of(other), place) for other, _, place in _others(catalog, job)]
    ways: list[tuple[tuple[FileJob, ...], str]] = [((), place)]
    seen: set[str] = set()
    for way, reached in ways:
        if way and _would_contain(source, reached):
            return way
        for other, volume, target_place in others:
            if volume is not None and other.id not in seen and _would_contain(volume, reached):
                seen.add(other.id)
                ways.append(((*way, other), target_place))
    return ()


def writer_into(catalog: Catalog, job: FileJob, volume: Volume) -> FileJob | None:
    """Returns another job whose outputs would be files of the volume that a job empties."""
    return next((other for other, _, place in _others(catalog, job) if _would_contain(volume, place)), None)


def _others(catalog: Catalog, job: FileJob) -> Iterator[tuple[FileJob, Volume, str]]:
    """Yields the other jobs that make files, the volume that takes them, and their place in it."""
    for other in catalog.jobs.list(statement=None):
        if isinstance(other, FileJob) and other.name != job.name and other.outputs_to is not None:
            target = catalog.volumes.find(Name.parse(other.outputs_to))
            if target is not None:
                yield other, target, place_of(target.location, other.outputs_prefix)


def has_outputs(job: Job) -> bool:
    """True if the ledger of outputs may have files of a job: those that its function makes, or that it takes away."""
    return isinstance(job, FileJob) and (job.outputs_to is not None or job.takes_files)


def _would_contain(source: Volume, place: str) -> bool:
    root = place_of(source.location)
    if root.startswith(place):
        return True
    return place.startswith(root) and source.selection.may_contain(place[len(root) :].rstrip("/"))


def collision_message(path: str, source: str, other: str) -> str:
    return f"The output path {path!r} of {source!r} is already used by {other}; give each file's outputs their own paths."
