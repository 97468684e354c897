"""What can be done from the console: by the operations that the command line has, each with an entry in the audit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from volstream.console.facts.jobs import paths_of_group
from volstream.console.query import Query
from volstream.directory.foreground import RefreshResult
from volstream.errors import InvalidStateError, InvalidValueError, StreamBusyError, VolstreamError, in_brief
from volstream.jobs.lease import RunReport, runs_of
from volstream.lifecycle.stop import Stop
from volstream.lifecycle.supervisor import join_all
from volstream.log import get
from volstream.model.text import counted
from volstream.session import Session

_log = get("console")

#: Actions in the background at once.
_MAX_WORKING = 4

#: Interval of attempts of an action that waits for the current run of its job: daemons leave no more between two runs.
_TURN_SECONDS = 0.1

#: What is said of such an action.
QUEUED = "Another run is in progress; this one starts when it ends."

#: Seconds for all of them to end when the daemon stops.
_END_SECONDS = 5.0


@dataclass(frozen=True)
class Action:
    """Something that can be done to an object.

    Attributes:
        kind: of the object: ``job`` or ``volume``.
        work: does it, and returns the result in a sentence; its docstring describes it.
        waits: takes long: the answer comes before the end.
        parameters: what a request may say, with its meaning.
    """

    kind: str
    verb: str
    work: Callable[[Session, str, Query, Stop], str]
    waits: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """An action that ended, or, with ``finished`` false, was begun."""

    action: str
    object: str
    result: str
    finished: bool
    audit: int


class Actions:
    """Does things in the daemon's process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stop = Stop()
        self._places = threading.BoundedSemaphore(_MAX_WORKING)
        self._threads: list[threading.Thread] = []

    def perform(self, action: Action, name: str, form: Query, who: str) -> Done:
        """Does something, or begins to.

        Raises:
            NotFoundError: there is no such object.
            InvalidStateError: too much is being done already.
            VolstreamError: as the operation raises.
        """
        kind = self._session.objects.by_kind[action.kind]
        named = f"{action.kind} {kind.get(name).name}"
        if action.waits:
            entry = self._begin(action, name, form, named, who)
            in_hand = action.kind == "job" and kind.get(name).id in runs_of(self._session.home.catalog, ()).in_hand
            return Done(action.verb, named, QUEUED if in_hand else "It has begun.", False, entry)
        entry = self._session.home.catalog.audit.begin(action.verb, named, who)
        return Done(action.verb, named, self._do(action, name, form, entry, named), True, entry)

    def _begin(self, action: Action, name: str, form: Query, named: str, who: str) -> int:
        """Begins to do something in the background; returns its entry in the audit."""
        if not self._places.acquire(blocking=False):
            raise InvalidStateError("Several actions are still being done.", "Wait for them to end.")
        try:
            entry = self._session.home.catalog.audit.begin(action.verb, named, who)
            thread = threading.Thread(
                target=self._in_background,
                args=(action, name, form, entry, named),
                name=f"{action.verb} {named}",
                daemon=True,
            )
            thread.start()
        except BaseException:
            self._places.release()
            raise
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        return entry

    def stop(self) -> None:
        """Ends after the current piece of work. Idempotent."""
        self._stop.set()
        join_all(self._threads, _END_SECONDS)

    def _do(self, action: Action, name: str, form: Query, entry: int, named: str) -> str:
        audit = self._session.home.catalog.audit
        try:
            result = self._in_turn(action, name, form, entry)
        except Exception as error:
            audit.end(entry, f"failed: {in_brief(error)}")
            raise
        audit.end(entry, result)
        _log.info("action", action=action.verb, object=named, result=result)
        return result

    def _in_turn(self, action: Action, name: str, form: Query, entry: int) -> str:
        """Does something; what takes long anyway also waits for the current run of its job."""
        queued = False
        while True:
            try:
                return action.work(self._session, name, form, self._stop)
            except StreamBusyError:
                if not action.waits or self._stop.wait(_TURN_SECONDS):
                    raise
            if not queued:
                self._session.home.catalog.audit.queued(entry, QUEUED)
                queued = True

    def _in_background(self, action: Action, name: str, form: Query, entry: int, named: str) -> None:
        try:
            self._do(action, name, form, entry, named)
        except VolstreamError as error:
            _log.warning("action_failed", action=action.verb, object=named, error=str(error))
        except Exception as error:  # noqa: BLE001  # the thread's outermost handler
            _log.error("action_failed", action=action.verb, object=named, exc_info=error)
        finally:
            self._places.release()


def _retry(session: Session, name: str, form: Query, stop: Stop) -> str:
    """Retries failed files of the job at its next run."""
    del stop
    return f"{counted(len(session.jobs.retry(name, _paths(session, name, form))), 'file')} due again at the next run."


def _skip(session: Session, name: str, form: Query, stop: Stop) -> str:
    """Gives up on failed files of the job. A newer version of one is processed all the same."""
    del stop
    return f"{counted(len(session.jobs.skip(name, _paths(session, name, form))), 'file')} skipped."


def _paths(session: Session, name: str, form: Query) -> list[str] | None:
    """Returns the chosen files; None: all."""
    paths, group = form.texts("path"), form.text("group")
    if (len([one for one in (paths, group, form.text("all")) if one])) != 1:
        raise InvalidValueError("Choose files.", "Give one of path, group and all=1.")
    if group is not None:
        return list(paths_of_group(session.home, session.jobs.get(name), group))
    return list(paths) or None


def _pause(session: Session, name: str, form: Query, stop: Stop) -> str:
    """Stops running the job until it is resumed. It keeps its position."""
    del form, stop
    session.jobs.pause(name)
    return "The job is paused."


def _resume(session: Session, name: str, form: Query, stop: Stop) -> str:
    """Resumes the paused job."""
    del form, stop
    session.jobs.resume(name)
    return "The job is active."


def _run(session: Session, name: str, form: Query, stop: Stop) -> str:
    """Runs the job once, now."""
    del form
    return _told(session.jobs.run(name, stop=stop))


def _replay(session: Session, name: str, form: Query, stop: Stop) -> str:
    """Processes files of the job again as they were delivered, and replaces their results."""
    return _told(session.jobs.replay(name, form.text("where"), stop=stop))


def _told(report: RunReport) -> str:
    done = report.progress
    if not done.batches:
        return "There was nothing to do."
    return f"{counted(done.processed, 'file')} processed, {done.failed} failed; {counted(done.rows, 'row')}."


def _refresh(session: Session, name: str, form: Query, stop: Stop) -> str:
    """Lists the volume now, or a part of it, and updates its directory."""
    return _listed(session.volumes.refresh(name, form.text("subdirectory") or "", stop=stop))


def _accept_removals(session: Session, name: str, form: Query, stop: Stop) -> str:
    """Lists the volume now, and applies removals beyond its limit."""
    del form
    return _listed(session.volumes.refresh(name, accept_removals=True, stop=stop))


def _listed(done: RefreshResult) -> str:
    held = f" {counted(done.held, 'removal')} held." if done.held else ""
    return f"{done.inserted} new, {done.updated} changed, {done.deleted} gone.{held}"


_FAILED_FILES = {
    "path": "A failed file; may be given several times.",
    "group": "The id of a group of failures.",
    "all": "1: all failed files.",
}

ACTIONS = (
    Action("job", "retry", _retry, parameters=_FAILED_FILES),
    Action("job", "skip", _skip, parameters=_FAILED_FILES),
    Action("job", "pause", _pause),
    Action("job", "resume", _resume),
    Action("job", "run", _run, waits=True),
    Action(
        "job",
        "replay",
        _replay,
        waits=True,
        parameters={"where": "SQL condition on the directory's columns; default: all files."},
    ),
    Action(
        "volume",
        "refresh",
        _refresh,
        waits=True,
        parameters={"subdirectory": "List only what is below; default: everything."},
    ),
    Action("volume", "accept-removals", _accept_removals, waits=True),
)
