"""Files that functions make. They get their paths around the commit of the rows that name them, and are
removed when no row names them.

The result table's commit decides, as for rows (docs/exactly-once.md). Rows name paths. A committed row may
name a path while an attempt makes its next content, which may never be committed. So no attempt writes to a
path directly:

1. A worker writes each file, complete and durable, under a unique name in the folder of its attempt, which is
   hidden in the target volume.
2. The leader looks up who owns the paths. A file fails if its output's path belongs to another file's output,
   or to something that volstream did not write. Then the leader records in the catalog's ledger, with the
   attempt's id, the outputs of the attempt and the files whose rows it replaces.
3. If no committed row names the path, the leader moves the content there before the commit, so that everyone
   who sees the row finds the file.
4. The rows are committed.
5. If a committed row already named the path, the leader replaces its content only now: up to this point,
   abandoning an attempt changes nothing that a row names. Between 4 and 5 the file has its old content,
   complete.
6. The leader removes outputs of replaced rows whose paths no new row names.

The ledger also lists files that a job takes out of its own volume after loading them (``after_load``):
recorded in step 2, taken away in step 6. A local file is first moved aside, where no writer replaces it, and
returns to its path if another version has arrived. A file that cannot be taken away stays and is retried. No
such move replaces a file.

The ledger makes 5 and 6 an outbox: :func:`finish` asks the catalog which attempts were committed, and
completes the work of a killed process. Every step can be repeated. If the process is killed

- before 2, the files are in the attempt's folder, which the next run, or a daemon, removes;
- between 2 and 4, recovery fences the attempt off, and its rows in the ledger are dead: new paths are removed
  again;
- after 4, recovery finds the commit: waiting contents move to their paths, and replaced outputs are removed;
- during 5 or 6, the rest is done. Moved contents are no longer in the folder, and removed files stay removed.

A file is removed if the ledger lists it as dead, lists nothing else at its path, and the store shows the
recorded etag. A process that was frozen for longer than its lease between that check and the removal may
remove what a later attempt wrote to the same path: no store can check and remove atomically.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from typing import cast

from volstream.base import faults
from volstream.base.config import Settings
from volstream.base.definitions import FileJob, Job, OnMove, Volume
from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.base.model.paths import FileInfo, Finding, Selection, printable
from volstream.base.model.text import counted, first_line
from volstream.base.model.work import Batch, Intent, Plan
from volstream.base.threads import map_at_once
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.outputs import Output, OutputState
from volstream.errors import StorageError, StreamBusyError, VolstreamError
from volstream.files.storage.base import HasLocalPaths, ObjectStore, TakesOutputs
from volstream.files.volumes.access import store_of
from volstream.functions.output import STAGING, OutputTarget, StagedOutput
from volstream.jobs.batches.staged import Staged
from volstream.jobs.plans import plan
from volstream.jobs.rules.targets import collision_message, has_outputs
from volstream.jobs.runs.lease import held

_log = get("outputs")

#: Maximum bytes of a name in a directory. A longer ending (from the first dot) counts as a part of the name.
_MOST_OF_NAME, _MOST_OF_ENDING = 255, 32

#: Number of paths named in a report.
EXAMPLES = 20

#: Concurrent requests to a store.
_AT_ONCE = 32

#: A daemon removes files of attempts that are older than this: no attempt takes as long.
_LEFTOVER_AGE = timedelta(days=1)

_EVERYTHING = Selection(ignores=())


class JobOutputs:
    """The outputs of one run of a job.

    Raises:
        NotFoundError: the target volume does not exist.
    """

    def __init__(self, catalog: Catalog, settings: Settings, job: FileJob) -> None:
        self._catalog = catalog
        self._settings = settings
        self._job = job
        self._table = str(job.into)
        self._volume = catalog.volumes.get(Name.parse(job.outputs_to or ""))
        self._store = output_store(self._volume, catalog, settings)
        self._placed: Mapping[str, str] = {}
        self._swept = False

    def sweep(self) -> None:
        """Removes what earlier runs left.

        Called before the run's first worker writes, with an intent open. No other process can begin an
        attempt before this one ends, and one that resumes later fails in :meth:`publish`, because its files
        are missing.
        """
        if not self._swept:
            left = files_listed(self._store.list(f"{self._folder}/", _EVERYTHING))
            map_at_once(self._store.remove_folder, sorted({file.relative_path.rpartition("/")[0] for file in left}), _AT_ONCE)
            self._swept = True

    def target(self, batch: Batch, attempt: str) -> OutputTarget:
        """Returns the target that the workers of an attempt need."""
        return target_of(self._job, self._store, f"{self._folder}/{batch.id}/{attempt}")

    def checked(self, open_plan: Plan, batch: Batch, staged: Staged) -> Staged:
        """Returns an attempt's outcomes, in which files have failed whose outputs cannot have their paths."""
        claimed = list(staged.outputs())
        if not claimed:
            return staged
        replaced = {*plan.removed_paths(open_plan.location, batch), *staged.replaced_paths()}
        replaced -= self._following(open_plan, batch, staged).keys()  # their rows still name them
        existing = self._catalog.outputs.at(self._volume.id, (output.path for _, output in claimed))
        new_paths = sorted({output.path for _, output in claimed} - existing.keys())
        blocked = {
            path: f"{why} in the volume {self._volume.name}, but volstream did not write it there"
            for path, why in zip(new_paths, map_at_once(self._store.obstacle, new_paths, _AT_ONCE), strict=True)
            if why is not None
        }
        failing: dict[str, str] = {}
        while new := self._conflicts(claimed, existing, blocked, replaced, failing):
            failing |= new
            replaced -= new.keys()
        return staged.with_failed(failing) if failing else staged

    def _conflicts(
        self,
        claimed: Sequence[tuple[str, StagedOutput]],
        existing: Mapping[str, Output],
        blocked: Mapping[str, str],
        replaced: Collection[str],
        failing: Collection[str],
    ) -> Mapping[str, str]:
        """Returns the files, besides the failing ones, whose outputs cannot have their paths, with the
        reason.

        If several files claim a path, the one whose committed row names the path keeps it, or else the first
        gets it.
        """
        claims: dict[str, list[str]] = {}
        for source, output in sorted(claimed):
            if source not in failing:
                claims.setdefault(output.path, []).append(source)
        errors: dict[str, str] = {}
        for path, sources in claims.items():
            owner = existing.get(path)
            if path in blocked:
                errors |= dict.fromkeys(sources, f"The output {path!r} {blocked[path]}.")
                continue
            if owner is not None and owner.table != self._table:
                other = f"a row of the table {owner.table}, of the file {owner.source!r},"
                errors |= {source: collision_message(path, source, other) for source in sources}
                continue
            keeper = owner.source if owner is not None and owner.source not in replaced else None
            first = owner.source if owner is not None and owner.source in sources else sources[0]
            winner = keeper or first
            errors |= {source: collision_message(path, source, f"the file {winner!r}") for source in sources if source != winner}
            parents = ("/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1))
            above = next((parent for parent in parents if parent in claims), None)
            if above is not None:
                what = f"is below {above!r}, the output of the file {claims[above][0]!r}"
                errors |= {source: f"The output {path!r} of the file {source!r} {what}." for source in sources}
        return errors

    def note(self, open_plan: Plan, batch: Batch, intent: Intent, staged: Staged) -> None:
        """Records in the ledger what an attempt changes if it is committed.

        Raises:
            FencedError: another process took over.
        """
        removed = plan.removed_paths(open_plan.location, batch)
        following = self._following(open_plan, batch, staged)
        new = [
            Output(
                table=self._table,
                volume_id=self._volume.id,
                path=output.path,
                source=source,
                attempt=str(intent.attempt),
                size=output.size,
                etag=output.etag,
                staged=output.staged,
            )
            for source, output in staged.outputs()
        ]
        for output in self._catalog.outputs.of_sources(self._table, following):
            new.append(
                replace(output, id=None, source=following[output.source], attempt=str(intent.attempt), state=OutputState.PENDING)
            )
        replaced = [*removed, *staged.replaced_paths(), *following.values()]
        if new or replaced:
            self._catalog.outputs.note(self._table, str(intent.attempt), new, replaced)
        faults.point("outputs.noted")

    def _following(self, open_plan: Plan, batch: Batch, staged: Staged) -> Mapping[str, str]:
        """Returns the new paths of moved files whose rows follow them, by old path."""
        if not batch.moves or self._job.on_move is not OnMove.REKEY:
            return {}
        called = staged.paths()
        return {file.old_path: file.path for file in plan.moved(open_plan.location, batch) if file.path not in called}

    def publish(self, intent: Intent) -> None:
        """Moves the contents of new paths to their place, and checks that contents for existing paths are
        present.

        Raises:
            VolstreamError: the contents were removed by another process, which considered this one dead and
                took over.
        """
        outputs = [output for output in self._catalog.outputs.of_attempt(str(intent.attempt)) if output.staged is not None]
        existing = self._catalog.outputs.at(self._volume.id, (output.path for output in outputs))
        new = [output for output in outputs if output.path not in existing]
        waiting = [output for output in outputs if output.path in existing]
        etags = map_at_once(partial(_place, self._store), new, _AT_ONCE)
        if None in (*etags, *map_at_once(lambda output: self._store.head(str(output.staged)), waiting, _AT_ONCE)):
            raise VolstreamError(
                f"Another process took the run of the job {self._job.name} over and removed its outputs.",
                "Nothing of the batch was committed; the next run repeats it.",
            )
        self._placed = {str(output.staged): str(etag) for output, etag in zip(new, etags, strict=True)}
        faults.point("outputs.placed")

    def finish(self, batch: Batch) -> None:
        """Completes a committed batch; see :func:`finish`."""
        finish(self._catalog, self._settings, self._table, self._placed)
        self._placed = {}
        self._store.remove_folder(f"{self._folder}/{batch.id}")

    @property
    def _folder(self) -> str:
        return f"{STAGING}/{self._job.id}"


def target_of(job: FileJob, store: TakesOutputs | None = None, folder: str = "") -> OutputTarget:
    """Returns where a job's outputs go. Without a store, they are only measured."""
    return OutputTarget(job.outputs_to, f"{job.outputs_prefix}/" if job.outputs_prefix else "", store, folder)


def finish(catalog: Catalog, settings: Settings, table: str, placed: Mapping[str, str] | None = None) -> None:
    """Completes the committed attempts of a table, and undoes those that were not committed.

    The caller holds the lease of the table's job and has settled its open attempt, if possible.

    Args:
        placed: etags of staged outputs that are already at their paths.
    """
    catalog.outputs.resolve_attempts(table)
    unfinished = sorted(catalog.outputs.unfinished(table), key=lambda output: output.volume_id)
    for volume_id, group in groupby(unfinished, lambda output: output.volume_id):
        outputs = list(group)
        volume = catalog.volumes.by_id(volume_id)
        if volume is None:  # it was dropped, and its files stay
            catalog.outputs.forget(outputs)
            _record_left(catalog, table, [])
            continue
        store = output_store(volume, catalog, settings)
        live = [output for output in outputs if output.state is OutputState.LIVE]
        etags = map_at_once(partial(_publish, store, placed or {}), live, _AT_ONCE)
        dead = [output for output in outputs if output.state is OutputState.DEAD]
        occupied = catalog.outputs.at(volume_id, (output.path for output in dead))
        faults.point("outputs.moved")
        map_at_once(partial(_remove, store), [output for output in dead if output.path not in occupied], _AT_ONCE)
        loaded = [output for output in outputs if output.state is OutputState.LOADED]
        replaced = isinstance(store, HasLocalPaths) and volume.is_replaced_by(store.root_id())
        replaced_reasons: list[str | None] = [_REPLACED] * len(loaded) if replaced else []
        blocked = replaced_reasons or map_at_once(partial(_set_aside, store), loaded, _AT_ONCE)
        faults.point("outputs.aside")
        reasons = replaced_reasons or map_at_once(partial(_take_away, store), loaded, _AT_ONCE)
        left = {output: first or why for output, first, why in zip(loaded, blocked, reasons, strict=True) if first or why}
        faults.point("outputs.removed")
        map_at_once(store.remove_folder, sorted(set(_left_by(outputs))), _AT_ONCE)
        # Before the ledger forgets which paths changed: it informs the directory of these changes, not a
        # queue.
        catalog.refreshes.ask_check(volume_id, (output.path for output in outputs))
        catalog.outputs.placed(list(zip(live, etags, strict=True)))
        catalog.outputs.forget([*dead, *(output for output in loaded if output not in left)])
        if loaded:
            _record_left(catalog, table, [f"{printable(output.path)}: {why}" for output, why in left.items()])


#: Why a loaded file was not taken away: a file missing at its path may only be out of sight.
_REPLACED = "another directory is in place of the volume's, as while a share is not mounted; wait for its next listing"


def _record_left(catalog: Catalog, table: str, left: Sequence[str]) -> None:
    """Records which loaded files could not be taken away, and where they are. Each run retries. An empty list
    clears the condition."""
    if left:
        _log.warning("files_not_taken", table=table, files=len(left), cause=left[0])
    more = f" ({counted(len(left) - 1, 'more file')} could not be moved either.)" if len(left) > 1 else ""
    catalog.conditions.note(ConditionKind.TAKING, table, f"{left[0]}{more}" if left else None)


def remove_outputs_of(catalog: Catalog, settings: Settings, job: Job) -> None:
    """Removes all files that rows of a dropped job's table name, and the leftovers of its attempts."""
    catalog.outputs.end(str(job.into))
    finish(catalog, settings, str(job.into))
    if isinstance(job, FileJob) and job.outputs_to is not None:
        volume = catalog.volumes.get(Name.parse(job.outputs_to))
        output_store(volume, catalog, settings).remove_folder(f"{STAGING}/{job.id}")


def sweep(catalog: Catalog, settings: Settings) -> None:
    """Finishes the work of killed runs, unless another run is in progress, and removes old files of
    attempts."""
    jobs = {str(job.into): cast("FileJob", job) for job in catalog.jobs.list(statement=None) if has_outputs(job)}
    unfinished = catalog.outputs.unfinished_tables()
    for table in sorted({*unfinished, *jobs}):
        job = jobs.get(table)
        try:
            if job is None:
                finish(catalog, settings, table)
                continue
            with held(catalog, job.id, job.name, settings.lease_seconds):
                if table in unfinished:
                    finish(catalog, settings, table)
                if job.outputs_to is not None:
                    _sweep_old(catalog, settings, job)
        except StreamBusyError:
            continue


def _sweep_old(catalog: Catalog, settings: Settings, job: FileJob) -> None:
    volume = catalog.volumes.find(Name.parse(job.outputs_to or ""))
    if volume is None:
        return
    store = output_store(volume, catalog, settings)
    staged = catalog.outputs.staged(str(job.into))
    before = datetime.now(UTC) - _LEFTOVER_AGE
    for file in files_listed(store.list(f"{STAGING}/{job.id}/", _EVERYTHING)):
        if file.last_modified_time < before and file.relative_path not in staged:
            store.remove(file.relative_path)


def files_listed(listed: Iterable[FileInfo | Finding]) -> Iterator[FileInfo]:
    return (entry for entry in listed if isinstance(entry, FileInfo))


def _left_by(outputs: Iterable[Output]) -> Iterator[str]:
    """Yields the folders of attempts that ended.

    For a committed attempt, includes other attempts at its batch.
    """
    for output in outputs:
        if output.staged is not None and output.state is not OutputState.LOADED:
            attempt = output.staged.rpartition("/")[0]
            yield attempt.rpartition("/")[0] if output.state is OutputState.LIVE else attempt


def _place(store: TakesOutputs, output: Output) -> str | None:
    """Moves a new output to its path. Returns its etag there, or None if the output is missing.

    Raises:
        VolstreamError: another writer created a file at the path after :meth:`JobOutputs.checked`.
    """
    try:
        return store.move(str(output.staged), output.path, replaces=False)
    except FileExistsError:
        raise VolstreamError(
            f"A file appeared at the path of an output, {printable(output.path)}, while the output was made.",
            "Nothing of the batch was committed; the next run repeats it.",
        ) from None


def _publish(store: TakesOutputs, placed: Mapping[str, str], output: Output) -> str:
    """Moves a committed output to its path, unless that was done before. Returns its etag there."""
    assert output.staged is not None, "it waits"
    if output.staged in placed:
        return placed[output.staged]
    etag = store.move(output.staged, output.path)
    if etag is not None:
        return etag
    current = store.head(output.path)
    if current is None or current.size != output.size:
        _log.error("output_lost", path=output.path, table=output.table, etag=output.etag)
        return output.etag
    return current.etag


def _remove(store: TakesOutputs, output: Output) -> None:
    """Removes an output that no row names, unless another file has its path."""
    current = store.head(output.path)
    if current is not None and current.etag == output.etag:
        store.remove(output.path)


def _set_aside(store: TakesOutputs, output: Output) -> str | None:
    """Moves a loaded local file aside, where no writer replaces it, unless another version is at its path.

    Returns:
        Why it stays at its path, or None.
    """
    try:
        if isinstance(store, HasLocalPaths) and _has_loaded(store, output.path, output):
            store.move(output.path, _aside(output), replaces=False)
    except (StorageError, FileExistsError) as error:
        return first_line(str(error))
    return None


def _take_away(store: TakesOutputs, output: Output) -> str | None:
    """Takes a loaded file away: into the archive, or for good. A version that arrived since then stays.

    Returns:
        Why it could not be taken, and where it is if it is not at its path; or None.
    """
    is_local = isinstance(store, HasLocalPaths)
    at = _aside(output) if is_local else output.path
    try:
        if store.head(at) is None:
            return None
        if not _has_loaded(store, at, output):
            if is_local:  # it arrived between the check and the move
                store.move(at, output.path, replaces=False)
        elif output.staged is None:
            store.remove(at)
        else:
            _archive(store, at, output.staged, output)
        if is_local:
            store.remove(at)  # the file is gone; this removes its folder if empty
    except FileExistsError:
        return f"a version of it that is not loaded waits as {printable(at)} until the file now at its path has left"
    except StorageError as error:
        return f"it waits as {printable(at)}: {first_line(error.message)}" if is_local else first_line(error.message)
    return None


def _has_loaded(store: ObjectStore, path: str, output: Output) -> bool:
    """Returns whether the loaded version is at a path."""
    current = store.head(path)
    return current is not None and current.version == output.etag


def _archive(store: TakesOutputs, at: str, to: str, output: Output) -> None:
    """Moves a loaded file into the archive. If another file has its name there, uses a unique name."""
    try:
        _move_across(store, at, to, output, replaces=False)
    except FileExistsError:
        # Only the same file can have this name, if a process was killed after copying it.
        _move_across(store, at, f"{to.rpartition('/')[0]}/{_unique_name(output)}", output, replaces=True)


def _move_across(store: TakesOutputs, at: str, to: str, output: Output, *, replaces: bool) -> None:
    """Moves a file, also to another file system. There the copy gets its name once it is complete."""
    try:
        store.move(at, to, replaces=replaces)
    except StorageError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EXDEV:
            raise
        part = f"{to.rpartition('/')[0]}/.volstream-{output.attempt}-{output.id}"
        try:
            _copy(store, at, part)
        except FileExistsError:  # a killed process left it
            store.remove(part)
            _copy(store, at, part)
        store.move(part, to, replaces=replaces)


def _copy(store: TakesOutputs, at: str, to: str) -> None:
    with store.open(at) as content:
        store.put(to, content, None)


def _aside(output: Output) -> str:
    return f"{STAGING}/{output.attempt}/{_unique_name(output)}"


def _unique_name(output: Output) -> str:
    """Returns a unique name of a loaded file, with the ids of its attempt and output."""
    name = output.path.rpartition("/")[2]
    stem, dot, ending = name.partition(".")
    if len(ending) > _MOST_OF_ENDING:
        stem, dot, ending = name, "", ""
    suffix = f"-{output.attempt}-{output.id}{dot}{ending}"
    return stem.encode()[: _MOST_OF_NAME - len(suffix.encode())].decode(errors="ignore") + suffix


def output_store(volume: Volume, catalog: Catalog, settings: Settings) -> TakesOutputs:
    store = store_of(volume, catalog, settings)
    assert isinstance(store, TakesOutputs), "checked when the job was created"
    return store
