"""From files to a table in one call: creates the volume and the job, or finds those of an earlier call,
refreshes, and runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from volstream.api.objects.all import Objects
from volstream.base.definitions import FileJob, FileJobOptions, FileJobSpec, Job, Volume
from volstream.base.definitions.job import NO_SCHEDULE, FunctionOptions, SetOptions
from volstream.base.definitions.options import keys, read, to_alter
from volstream.base.model.names import Name, quote
from volstream.base.model.paths import DEFAULT_IGNORES, Selection, local_path, printable, scheme_of
from volstream.base.model.text import counted, ended, shortened
from volstream.base.threads import Stop
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import AlreadyExistsError, InvalidStateError, InvalidValueError, StreamBusyError, UserError
from volstream.jobs.rules.conditions import matching
from volstream.jobs.rules.targets import is_of_job
from volstream.sql.text import literal
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at

if TYPE_CHECKING:
    from volstream.jobs.runs.lease import Progress, RunReport

T = TypeVar("T")

#: Receives a sentence for the watching user.
Tell = Callable[[str], None]

#: Number of failures that are reported individually.
_SHOWN = 3

#: Seconds between two reports of progress.
_PROGRESS_SECONDS = 10.0

#: Seconds between two checks of a job that a daemon runs.
_BUSY_SECONDS = 0.2


def run(
    objects: Objects,
    function: str | Callable[..., Any],
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    into: str,
    options: Mapping[str, Any],
    tell: Tell,
    pattern: str | None = None,
    replace: bool = False,
) -> FileJob:
    """Brings a table up to date with a function's results for all files of a place; returns its job.

    Args:
        files: a directory or the URI of a bucket's folder; a file, a glob, or a list of files of one folder.
        into: the table's name, and the job's.
        options: those of the job. One that is left out has its default, also if an earlier call gave it; only
            the schedule, the priority, the receivers of alerts and the comment stay.
        pattern: a glob, as volumes have them: without ``/``, for the names of files.
        replace: take over a job or a table that no call made.

    Raises:
        InvalidStateError: a job of that name does something else, or no call made it; an option cannot be
            changed. As :meth:`Jobs.create`, :meth:`Jobs.alter`, :meth:`Volumes.refresh` and :meth:`Jobs.run`.
    """
    folder, chosen = _place(files)
    conditions = [options.get("where"), chosen, None if pattern is None else matching(pattern)]
    if given := [condition for condition in conditions if condition is not None]:
        options = {**options, "where": given[0] if len(given) == 1 else " AND ".join(f"({one})" for one in given)}
    read(FileJobSpec, options)  # what is wrong with them is said before anything is made
    volume = _volume(objects, folder)
    existing = objects.home.catalog.jobs.find(Name.parse(into))
    objects.volumes.refresh(str(volume.name))
    if pattern is not None and isinstance(existing, FileJob) and existing.where != options["where"]:
        _check_pattern(objects, volume, pattern, new=False)
    created: Job | None = None
    if existing is None:
        if not replace:
            _check_table(objects, Name.parse(into))
        try:
            created = objects.jobs.create(into, function, into, volume=str(volume.name), tell=tell, **options)
            created = objects.home.catalog.jobs.change(created, made_by_run=True)
        except UserError:
            if pattern is not None:
                _check_pattern(objects, volume, pattern, new=True)
            existing = objects.home.catalog.jobs.find(Name.parse(into))
            if existing is None:  # else another program has made it meanwhile
                raise
    if existing is not None:
        created = _renewed(objects, _own(objects, existing, volume, into), function, options, tell, replace=replace)
    assert isinstance(created, FileJob), "created with a function"
    try:
        report = _run(objects, created, tell)
    except KeyboardInterrupt:
        tell("Interrupted. Rows that are committed stay, and the next call goes on from there.")
        raise
    _tell(objects, created, report, tell)
    job = objects.jobs.get(into)
    assert isinstance(job, FileJob), "it has run"
    return objects.jobs.services.results.prepare(job)  # if there are no files yet, there is no table


def _place(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, str | None]:
    """Returns a directory, and a condition for the files of it that are meant; None: all."""
    if not isinstance(files, str | os.PathLike):
        if odd := [one for one in files if not isinstance(one, str | os.PathLike)]:
            raise InvalidValueError(f"files cannot have {shortened(odd[0])}.", "Give paths of files.")
        paths = [Path(os.path.abspath(os.fspath(one))) for one in files]
        if not paths:
            raise InvalidValueError("The list of files is empty.", "Give a directory, or files of one.")
        folder = Path(os.path.commonpath([path.parent for path in paths]))
        if missing := [path for path in paths if not path.is_file()]:
            raise InvalidValueError(f"{printable(str(missing[0]))} is not a file.", "Give a directory, or files of one.")
        names = ", ".join(literal(path.relative_to(folder).as_posix()) for path in paths)
        return str(folder), f"relative_path IN ({names})"
    text = os.fspath(files)
    if "://" in text and not text.startswith("file://"):
        return text, None
    path = Path(local_path(text)) if text.startswith("file://") else Path(text)
    if path.is_file():
        return _place([path])
    whole = [at for at, part in enumerate(path.parts) if set(part) & set("*?[")]
    if path.exists() or not whole:
        return text, None
    folder, pattern = Path(*path.parts[: whole[0]]), "/".join(path.parts[whole[0] :])
    return str(folder), matching(pattern, of_paths=True)


def _volume(objects: Objects, files: str) -> Volume:
    """Returns the volume of a place, or makes one with the name of its folder."""
    from volstream.files.storage import normalise_location

    location = normalise_location(files)
    volumes = objects.volumes.list()
    volume = next((volume for volume in volumes if volume.location == location), None)
    if volume is not None:
        return volume
    last = location.rstrip("/").rpartition("/")[2]
    plain = re.sub(r"\W+", "_", last, flags=re.ASCII).strip("_").lower() or "files"
    taken = {volume.name.name for volume in volumes}
    name = next(candidate for at in range(1, len(taken) + 2) if (candidate := plain if at == 1 else f"{plain}_{at}") not in taken)
    try:
        return objects.volumes.create(quote(name), files, ignores=[*DEFAULT_IGNORES, *_inside(objects, location)])
    except AlreadyExistsError:
        if len(objects.volumes.list()) == len(volumes):
            raise
        return _volume(objects, files)  # another program has created one meanwhile


def _inside(objects: Objects, location: str) -> list[str]:
    """Returns a glob for the home if it is in the folder: files that volstream writes there are not the
    user's."""
    if scheme_of(location) != "file":
        return []
    home, root = os.path.realpath(objects.home.settings.home), os.path.realpath(local_path(location))
    return [f"{os.path.relpath(home, root)}/**"] if home.startswith(f"{root.rstrip('/')}/") else []


def _check_pattern(objects: Objects, volume: Volume, pattern: str, *, new: bool) -> None:
    """Raises InvalidValueError if a volume has files and a pattern matches none: a typo would remove all rows.

    Args:
        new: the job does not exist yet.
    """
    selection, count = Selection(patterns=(pattern,)), 0
    directory = VolumeSource(objects.home.catalog, objects.home.warehouse, volume.id).find()
    for part in () if directory is None else directory.at():
        paths = part["relative_path"].to_pylist()
        if any(map(selection.accepts_name, paths)):
            return
        count += len(paths)
    if count:
        raise InvalidValueError(
            f"None of the {counted(count, 'file')} in {volume.location} matches {pattern!r}.",
            "Correct the pattern." if new else "Correct the pattern. The rows stay; to remove them, drop the job and its table.",
        )


def _own(objects: Objects, job: Job, volume: Volume, into: str) -> FileJob:
    """Returns the job of an earlier call. Raises InvalidStateError if it is another job."""
    stream = objects.home.catalog.streams.by_id(job.stream_id)
    if not isinstance(job, FileJob) or job.into != Name.parse(into) or stream is None or stream.source_id != volume.id:
        raise InvalidStateError(
            f"The job {job.name} exists, but does not process the files of {volume.location} into {into}.",
            "Give another table, or drop the job: volstream drop job "
            f"{job.name}{'' if stream is None else f' (it reads {stream.source_name})'}.",
        )
    return job


def _check_table(objects: Objects, into: Name) -> None:
    """Raises InvalidStateError if the table exists and no job created it."""
    schema = schema_at(places.table_location(objects.home.warehouse, into))
    if schema is not None and not is_of_job(schema):
        raise InvalidStateError(
            f"The table {into} exists, and no job made it.",
            "Give another table, or replace=True to add the function's columns and rows to this one.",
        )


#: Options, besides the schedule, that a call does not reset by omitting them, because they do not affect
#: rows.
_UNRESET = frozenset({"priority", "alert", "comment"})


def _renewed(
    objects: Objects, job: FileJob, function: str | Callable[..., Any], options: Mapping[str, Any], tell: Tell, *, replace: bool
) -> FileJob:
    """Returns the job with the call's options, and active. Rows of earlier code stay, and the job knows that
    their code is old.

    Raises:
        InvalidStateError: an option cannot be changed, or no call created the job and ``replace`` is not set.
    """
    from volstream.functions.pickled import function_attributes
    from volstream.jobs.rules.definitions import resolve_environment

    wanted = read(FileJobSpec, options)
    wanted["environment"] = resolve_environment(wanted.get("environment"), None)
    allowed = {**keys(FileJobOptions), **keys(SetOptions), **keys(FunctionOptions)}
    unchanged = _UNRESET if NO_SCHEDULE.keys() & wanted.keys() else _UNRESET | NO_SCHEDULE.keys()
    allowed = {name: key for name, key in allowed.items() if name != "returns" and (name in wanted or name not in unchanged)}
    changes = {name: wanted.get(name, key.default) for name, key in allowed.items()}
    changes = {name: value for name, value in changes.items() if value != getattr(job, name)}
    fixed = sorted(changes.keys() - to_alter(FileJobSpec).keys())
    if fixed:
        present = f"{fixed[0]}={getattr(job, fixed[0])!s}"
        raise InvalidStateError(
            f"The job {job.name} was created with {present}, which cannot be changed.",
            f"Pass {present} as well, or drop the job first: volstream drop job {job.name}.",
        )
    if wanted.get("returns") not in (None, job.returns):
        changes["returns"] = wanted["returns"]
    code = function_attributes(function)
    recoded = _is_other_code(job, code)
    if recoded:
        changes |= code
    if changes and not job.made_by_run:
        if not replace:
            named = ", ".join(sorted(changes.keys() - {"pickled"}))
            raise InvalidStateError(
                f"The job {job.name} was not made by run, and the call would change its {named}.",
                f"Give another table, change the job with volstream alter-job {job.name}, or let the call do so: replace=True.",
            )
        changes["made_by_run"] = True
    takes_others = "where" in changes
    if takes_others:
        # The next run with the condition removes the rows of files that it excludes.
        changes["may_have_strays"] = True
    has_rows = objects.home.catalog.reports.totals(job.id)["batches"] > 0
    changed = _changed(objects, job, changes, tell) if changes else job
    if changes.keys() - {*code, "where", "may_have_strays"} or changes.get("function", job.function) != job.function:
        [newest, *_] = objects.jobs.history(str(job.name))
        which = ", which run did not make," if "made_by_run" in changes else ""
        tell(f"The job {job.name}{which} has changed: {newest.text}. Undo: volstream revert job {job.name}")
    assert isinstance(changed, FileJob), "a job stays of its kind"
    if takes_others:
        _add_files(objects, job, tell)
    if recoded:
        if has_rows:
            changed = objects.home.catalog.jobs.change(changed, fingerprint=job.fingerprint)
        objects.jobs.retry(str(job.name))
    if changed.paused_itself:
        objects.jobs.resume(str(job.name))
    return changed


def _changed(objects: Objects, job: FileJob, changes: Mapping[str, Any], tell: Tell) -> Job:
    """Changes a job, after the end of a run whose plan depends on the changed options."""
    from volstream.jobs.rules.definitions import alter_job
    from volstream.ops.receivers import check_names

    check_names(objects.home.settings, changes.get("alert") or (), "The job")
    alter = partial(alter_job, objects.home, job.name, infer=partial(objects.jobs.inferring, job, tell), **changes)

    def change() -> Job:
        try:
            return alter()
        except StreamBusyError:
            objects.jobs.run(str(job.name))  # completes an interrupted run
            return alter()

    return _when_free(change)


def _add_files(objects: Objects, before: FileJob, tell: Tell) -> None:
    """Processes files that a job now includes, and did not before: a condition alone affects only later
    changes."""
    stream = objects.home.catalog.streams.by_id(before.stream_id)
    if stream is not None and (stream.initial or not stream.offset):
        return  # all files are still to be delivered, or the volume had none so far
    name = str(before.name)
    try:
        found = _when_free(lambda: objects.jobs.heal(name))
    except BaseException:
        objects.jobs.alter(name, where=before.where)  # so that the next call retries
        raise
    if found.fixed:
        tell(f"{counted(found.fixed, before.unit)} processed that earlier calls left out.")


def _is_other_code(job: FileJob, code: Mapping[str, Any]) -> bool:
    """Returns whether a function differs from the catalog's or, for one in a file, from its state when the
    job was created."""
    from volstream.functions.pickled import resolved, source_of

    place, source = resolved(code, Path.cwd())
    if code["pickled"] is not None:
        return job.pickled is None or source.fingerprint != source_of(job.pickled).fingerprint
    return place != job.function or not source.is_that_of(job.fingerprint)


def _run(objects: Objects, job: FileJob, tell: Tell) -> RunReport:
    """Runs a job, after a daemon's run that is in progress."""
    reported_at = time.monotonic()

    def observe(progress: Progress) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at > _PROGRESS_SECONDS and progress.done_files < progress.files:
            reported_at = time.monotonic()
            tell(f"{progress.done_files} of {counted(progress.files, job.unit)} processed ...")

    return _when_free(lambda: objects.jobs.run(str(job.name), until_empty=True, observe=observe))


def _when_free(call: Callable[[], T]) -> T:
    """Makes a call that needs a job, once no daemon runs it."""
    waiting = Stop()
    while True:
        try:
            return call()
        except StreamBusyError:
            waiting.wait(_BUSY_SECONDS)


def _tell(objects: Objects, job: FileJob, report: RunReport, tell: Tell) -> None:
    """Reports the result of a run, and the failed files."""
    done = report.progress
    if done.batches:
        tell(f"{counted(done.processed, report.unit)} processed, {done.failed} failed, {done.removals} removed.")
    else:
        tell("No file has changed.")
    failures = objects.jobs.failures(str(job.name), limit=_SHOWN + 1)
    for failure in failures[:_SHOWN]:
        tell(f"Failed: {printable(failure.path)}: {failure.message}")
    if len(failures) > _SHOWN:
        tell(f"All failures: session.jobs.failures({str(job.name)!r})")
    if report.paused:
        tell(f"The job paused itself: {ended(report.paused)} The next call resumes it.")
    if done.code_changed and (code_note := objects.jobs.describe_code(str(job.name))):
        tell(f"The code has changed: {code_note}, or session.jobs.replay({str(job.name)!r}, stale=True)")
