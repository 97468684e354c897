"""Where a job may write: the tables it may fill, the volumes in which its function may make files, and the
landing zones that it empties."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from volstream.base.definitions import FileJob, Job, SourceKind, Stream, Volume, Write
from volstream.base.definitions.job import KEEP, LOADER
from volstream.base.model.names import Name, folded
from volstream.base.model.paths import overlap, place_of, scheme_of
from volstream.base.model.work import Intent
from volstream.catalog import Catalog
from volstream.catalog.outputs import Output, OutputState
from volstream.errors import InvalidStateError, InvalidValueError, ObjectInUseError
from volstream.files.storage import open_store
from volstream.files.storage.base import TakesOutputs
from volstream.files.volumes.access import job_emptying_shared, shares_files
from volstream.files.volumes.definitions import streams_on
from volstream.functions.loading.options import is_marker
from volstream.functions.output import STAGING, has_files
from volstream.functions.schema import of_table, to_ddl, type_named
from volstream.functions.types.widen import fields_added
from volstream.jobs.batches.staged import Staged
from volstream.sql.text import type_of
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.ownership import INCIDENTAL, OWNER, WRITERS, is_open
from volstream.tables.delta.schema import Schema, types_of

# Decides whether a job may fill a table that it did not create.


def check_target(catalog: Catalog, table: Name, location: str, columns: Iterable[str]) -> None:
    """Checks that a job does not add columns to another writer's table unasked.

    A job may fill a table that a job created, a table that already has the columns, and an empty table that
    no stream reads.

    Args:
        columns: returned by the job's function.

    Raises:
        InvalidStateError: the table was not created by a job, is in use, and lacks some of the columns.
    """
    opened = OpenTable.newest(location)
    if opened is None or is_of_job(schema := opened.schema):
        return
    present = {name.lower() for name in schema.columns}
    missing = [name for name in columns if name.lower() not in present]
    if not missing or is_open(schema.properties):
        return
    if opened.rows != 0 or catalog.streams.list(source_kind=SourceKind.TABLE, source_id=str(table)):
        raise InvalidStateError(
            f"The table {table} was not created by a job, and the job would add columns to it: {', '.join(missing)}.",
            f"Name another table. To fill this one nevertheless: ALTER TABLE {table} SET PROPERTIES ('{WRITERS}' = 'any').",
        )


def is_of_job(schema: Schema) -> bool:
    """Returns whether a job created the table."""
    return OWNER in schema.properties or set(schema.columns) >= INCIDENTAL


def missing_columns(job: FileJob, table: OpenTable, owner: str | None) -> list[str] | None:
    """Returns the columns and fields, as DDL, that a table lacks for the rows of a job.

    Returns None if the table's columns have other types and it has no rows, so that it can be replaced.

    Args:
        owner: id of the job, or of the job that it replaces.

    Raises:
        InvalidValueError: the table has rows, and a column of another type.
    """
    wanted, present = of_table(job), {folded(name): kind for name, kind in table.schema.types.items()}
    missing: list[str] = []
    for field, kind in zip(wanted, types_of(wanted), strict=True):
        current = present.get(folded(field.name))
        if current is None:
            missing.append(to_ddl(pa.schema([field])))
        elif current != kind:
            present_type, returned_type = (type_of(json.loads(text)) for text in (current, kind))
            more = fields_added(type_named(present_type), field) if pa.types.is_nested(field.type) else []
            if not more and table.rows == 0 and is_of_job(table.schema) and table.properties.get(OWNER) in (None, owner):
                return None
            if not more:
                loads = job.function == LOADER
                raise InvalidValueError(
                    f"Column {field.name} of table {job.into} is {present_type}, "
                    f"but {'it is declared as' if loads else 'the function returns'} {returned_type}.",
                    f"{'Declare' if loads else 'Return'} {present_type}; or make the table again: volstream drop job {job.name}, "
                    f"volstream drop table {job.into}, and create the job with the new columns.",
                )
            missing += more
    return missing


# Which functions may make files, and where. Checked when a job is created or changed.


def check_outputs(catalog: Catalog, job: FileJob, columns: pa.Schema, stream: Stream) -> None:
    """Checks where a job's outputs go.

    Args:
        columns: of the job's result.
        stream: the job's stream.

    Raises:
        InvalidValueError: a target is missing, or cannot take outputs.
        InvalidStateError: the job would process its own outputs, or another job takes them away or writes to
            their folder.
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
    if source is not None and (loop := _find_loop(catalog, job, source, place)):
        raise InvalidStateError(
            f"The outputs of the job {job.name} would form a loop: they reach the volume {source.name}, which it processes, "
            f"through the jobs {', '.join(other.name for other in loop)}.",
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
    for other, target, other_place in _other_outputs(catalog, job):
        if overlap(place, other_place):
            raise InvalidStateError(
                f"The job {other.name} writes its outputs to the same folder of the volume {target.name}.",
                "Give each of them an outputs_prefix of its own.",
            )


def _find_loop(catalog: Catalog, job: FileJob, source: Volume, place: str) -> Sequence[FileJob]:
    """Returns the jobs by which the files at a place lead to files in the volume that a job processes, if
    any."""
    others = [(other, catalog.volume_of(other), place) for other, _, place in _other_outputs(catalog, job)]
    paths: list[tuple[tuple[FileJob, ...], str]] = [((), place)]
    seen: set[str] = set()
    for path, reached in paths:
        if path and _would_contain(source, reached):
            return path
        for other, volume, target_place in others:
            if volume is not None and other.id not in seen and _would_contain(volume, reached):
                seen.add(other.id)
                paths.append(((*path, other), target_place))
    return ()


def writer_into(catalog: Catalog, job: FileJob, volume: Volume) -> FileJob | None:
    """Returns another job whose outputs would be files of the volume that a job empties."""
    return next((other for other, _, place in _other_outputs(catalog, job) if _would_contain(volume, place)), None)


def _other_outputs(catalog: Catalog, job: FileJob) -> Iterator[tuple[FileJob, Volume, str]]:
    """Yields the other jobs that make files, with their target volume and their place in it."""
    for other in catalog.jobs.list(statement=None):
        if isinstance(other, FileJob) and other.name != job.name and other.outputs_to is not None:
            target = catalog.volumes.find(Name.parse(other.outputs_to))
            if target is not None:
                yield other, target, place_of(target.location, other.outputs_prefix)


def has_outputs(job: Job) -> bool:
    """Returns whether the ledger of outputs may have files of a job, which its function makes or which it
    takes away."""
    return isinstance(job, FileJob) and (job.outputs_to is not None or job.takes_files)


def _would_contain(source: Volume, place: str) -> bool:
    root = place_of(source.location)
    if root.startswith(place):
        return True
    return place.startswith(root) and source.selection.may_contain(place[len(root) :].rstrip("/"))


def collision_message(path: str, source: str, other: str) -> str:
    return f"The output path {path!r} of {source!r} is already used by {other}; give each file's outputs their own paths."


# Landing zones: volumes whose files a job takes away once it has committed their rows, into an archive or for
# good.
#
# The ledger of outputs (``jobs.outputs``) lists these files, so that exactly the committed ones leave, even
# if a process is killed: an attempt records them before its commit, and
# :func:`~volstream.jobs.batches.outputs.finish` takes the files of committed attempts away.


def check_after_load(catalog: Catalog, job: Job, streams: Sequence[Stream], replaced: Job | None) -> None:
    """Checks that the volumes of a new or changed job lose no file that others need.

    Args:
        replaced: the job that it replaces.

    Raises:
        InvalidValueError: it follows deletions, works on sets, or has an unsuitable volume or archive.
        InvalidStateError: its volume has other streams, or the outputs of another job.
        ObjectInUseError: another job takes the files of one of its volumes away.
    """
    own_streams = {*job.stream_ids, *(replaced.stream_ids if replaced is not None else ())}
    for stream in streams:
        volume = catalog.volumes.by_id(stream.source_id) if stream.source_kind is SourceKind.VOLUME else None
        if volume is None:
            continue
        emptying = job_emptying_shared(catalog, volume, own_streams)
        if emptying is not None:
            raise ObjectInUseError(
                f"The job {emptying.name} takes files of the volume {volume.name}, or of one that overlaps it, away when it has "
                "loaded them.",
                f"Let it keep them: volstream alter-job {emptying.name} --after-load keep.",
            )
        if not isinstance(job, FileJob) or not job.takes_files:
            continue
        overlapping = [other for other in catalog.volumes.list() if shares_files(other, volume)]
        others = [other for shared in overlapping for other in streams_on(catalog, shared) if other.id not in own_streams]
        if others:
            extra = "" if others[0].source_id == volume.id else f", which shares files with {volume.name}"
            raise InvalidStateError(
                f"The stream {others[0].name} is on the volume {others[0].source_name}{extra}: it would miss files that the job "
                f"{job.name} takes away, or see them as deleted.",
                "Drop the stream, or its job; or use another volume.",
            )
        writer = writer_into(catalog, job, volume)
        if writer is not None:
            raise InvalidStateError(
                f"The job {writer.name} writes its outputs into the volume {volume.name}: its rows would name files that the job "
                f"{job.name} takes away.",
                "Give the outputs another volume or folder, or leave out after_load.",
            )
        _check_job(job)
        check_volume(job, volume)


def _check_job(job: FileJob) -> None:
    if job.write is not Write.APPEND:
        raise InvalidValueError(
            f"A job with after_load={job.after_load} cannot follow deletions: the rows would leave the table with their files.",
            "Give write=append as well, which keeps all rows.",
        )
    if job.group_by is not None:
        raise InvalidValueError("A job of sets cannot take files away: a set needs all of its files.", "Leave out after_load.")


def check_volume(job: FileJob, volume: Volume) -> None:
    """Raises InvalidValueError if a job cannot take files away from a volume, or would find them there
    again."""
    if not isinstance(open_store(volume.location), TakesOutputs):
        raise InvalidValueError(f"Files of the volume {volume.name} cannot be moved or removed.", "Leave out after_load.")
    for folder in filter(None, (job.archive, STAGING)):
        if volume.selection.may_contain(folder):
            raise InvalidValueError(
                f"Files in {folder} would be files of the volume {volume.name}, and be loaded again.",
                f"Name a hidden folder, such as .loaded, or let the volume ignore it: --ignore '{folder}'.",
            )


def loaded(job: FileJob, volume: Volume, intent: Intent, staged: Staged) -> Iterator[Output]:
    """Yields an attempt's entries for the ledger: the files that leave the volume if the attempt is
    committed.

    Raises:
        InvalidValueError: the volume has been changed, and would find them again.
    """
    check_volume(job, volume)
    files = staged.succeeded()
    for path, version in zip(files["path"].to_pylist(), files["file_version"].to_pylist(), strict=True):
        if job.loads and is_marker(path):  # it was not read
            continue
        yield Output(
            table=str(job.into),
            volume_id=volume.id,
            path=path,
            source=path,
            attempt=str(intent.attempt),
            size=0,
            etag=version,
            staged=None if job.archive is None else f"{job.archive}/{path}",
            state=OutputState.LOADING,
        )
