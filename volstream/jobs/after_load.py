"""Landing zones: volumes whose files a job takes away once it has committed their rows, into an archive or for good.

The ledger of outputs (``jobs.outputs``) has these files, so that whatever is killed, exactly the committed ones leave: an attempt
notes them before its commit, and :func:`~volstream.jobs.outputs.finish` takes those away whose attempt was committed. What does
not belong here: that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from volstream.base.definitions import FileJob, Job, SourceKind, Stream, Volume, Write
from volstream.base.model.work import Intent
from volstream.catalog import Catalog
from volstream.catalog.outputs import Output, OutputState
from volstream.errors import InvalidStateError, InvalidValueError, ObjectInUseError
from volstream.files.storage import open_store
from volstream.files.storage.base import TakesOutputs
from volstream.files.volumes.access import job_emptying_shared, shares_files
from volstream.files.volumes.definitions import streams_on
from volstream.functions.loading.options import is_marker
from volstream.functions.output import STAGING
from volstream.jobs.load import loads
from volstream.jobs.output_checks import writer_into
from volstream.jobs.staged import Staged


def check_after_load(catalog: Catalog, job: Job, streams: Sequence[Stream], replaced: Job | None) -> None:
    """Checks that the volumes of a new or changed job lose no file that somebody else needs.

    Args:
        replaced: the job in whose place it comes.

    Raises:
        InvalidValueError: it follows deletions, works on sets, or its volume or its archive do not suit.
        InvalidStateError: its volume has other streams, or the outputs of another job.
        ObjectInUseError: another job takes the files of one of its volumes away.
    """
    own = {*job.stream_ids, *(replaced.stream_ids if replaced is not None else ())}
    for stream in streams:
        volume = catalog.volumes.by_id(stream.source_id) if stream.source_kind is SourceKind.VOLUME else None
        if volume is None:
            continue
        taking = job_emptying_shared(catalog, volume, own)
        if taking is not None:
            raise ObjectInUseError(
                f"The job {taking.name} takes the files of the volume {volume.name} away when it has loaded them.",
                f"Let it keep them: volstream alter-job {taking.name} --after-load keep.",
            )
        if not isinstance(job, FileJob) or not job.takes_files:
            continue
        near = [one for one in catalog.volumes.list() if shares_files(one, volume)]
        others = [other for one in near for other in streams_on(catalog, one) if other.id not in own]
        if others:
            there = "" if others[0].source_id == volume.id else f", which shares files with {volume.name}"
            raise InvalidStateError(
                f"The stream {others[0].name} is on the volume {others[0].source_name}{there}: it would miss files that the job "
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
    """Raises InvalidValueError if a job cannot take files away from a volume, or would find them there again."""
    if not isinstance(open_store(volume.location), TakesOutputs):
        raise InvalidValueError(f"Files of the volume {volume.name} cannot be moved or removed.", "Leave out after_load.")
    for folder in filter(None, (job.archive, STAGING)):
        if volume.selection.may_contain(folder):
            raise InvalidValueError(
                f"Files in {folder} would be files of the volume {volume.name}, and be loaded again.",
                f"Name a hidden folder, such as .loaded, or let the volume ignore it: --ignore '{folder}'.",
            )


def loaded(job: FileJob, volume: Volume, intent: Intent, staged: Staged) -> Iterator[Output]:
    """Yields what the ledger notes of an attempt: the files that leave the volume if it is committed.

    Raises:
        InvalidValueError: the volume has been changed, and would find them again.
    """
    check_volume(job, volume)
    files = staged.loaded()
    for path, version in zip(files["path"].to_pylist(), files["file_version"].to_pylist(), strict=True):
        if loads(job) and is_marker(path):  # it was not read
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
