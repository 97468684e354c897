"""The actions of the console: the operations of the command line, each with an entry in the audit.

Long actions become tasks, which the daemon runs in the background (``daemon.tasks``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from volstream.api.session import Session
from volstream.base.log import get
from volstream.base.model.text import counted
from volstream.base.model.work import ActionState, AuditEntry, PlanKind, PlanState
from volstream.changes.directory.keeper import RefreshResult
from volstream.errors import InvalidValueError, in_brief
from volstream.jobs.rules.conditions import check_where
from volstream.jobs.runs.lease import Progress, RunReport
from volstream.ops.inspection.tables import document, lines
from volstream.server.console.facts.jobs import paths_of_group
from volstream.server.console.http import Query, url
from volstream.server.console.queries import TaskBody, Work

_log = get("console")


@dataclass(frozen=True)
class Action:
    """An action on an object.

    Attributes:
        kind: of the object: ``job`` or ``volume``.
        work: performs it, and returns the result in a sentence. With ``waits``, checks the request and
            returns the task's body. Its docstring describes the action.
        waits: it takes long, so it runs in the background.
        parameters: of the request, with their meaning.
    """

    kind: str
    verb: str
    work: Callable[[Session, str, Query], str | TaskBody]
    waits: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ActionResult:
    """An action that ended or, if ``finished`` is false, was queued.

    Attributes:
        audit: its entry, which is also the id of its background task.
        url: the page that follows it, or None if it has ended.
    """

    action: str
    object: str
    result: str
    finished: bool
    audit: int
    url: str | None = None


class Actions:
    """Performs actions in the daemon's process, or queues them.

    Args:
        cluster: the virtual cluster whose daemons run the tasks.
        queued: called when there is a task to start or to cancel.
    """

    def __init__(self, session: Session, cluster: str, queued: Callable[[], None]) -> None:
        self._session = session
        self._audit = session.home.catalog.audit
        self._cluster = cluster
        self._queued = queued

    def perform(self, action: Action, name: str, form: Query, who: str) -> ActionResult:
        """Performs an action, or queues it.

        Raises:
            NotFoundError: there is no such object.
            InvalidStateError: too many tasks are queued already.
            VolstreamError: as the operation raises.
        """
        named = f"{action.kind} {self._session.by_kind[action.kind].get(name).name}"
        entry = self._audit.begin(action.verb, named, who)
        try:
            result = action.work(self._session, name, form)
            if not isinstance(result, str):
                parameters = {key: text for key in action.parameters if (text := form.text(key)) is not None}
                task = self._audit.queue(entry, parameters, self._cluster)
                self._queued()
                return ActionResult(action.verb, named, "It is queued.", False, entry, url(*task.page))
        except Exception as error:
            self._audit.end(entry, ActionState.FAILED, in_brief(error))
            raise
        self._audit.end(entry, ActionState.FINISHED, result)
        _log.info("action", action=action.verb, object=named, result=result)
        return ActionResult(action.verb, named, result, True, entry)

    def cancel(self, task: str, who: str) -> ActionResult:
        """Cancels a queued or running task.

        Raises:
            NotFoundError: there is no such task.
            InvalidStateError: it has ended.
        """
        cancelled = self._audit.cancel(task)
        self._queued()
        result = "It stops after the current piece of work, unless it has finished already."
        entry = self._audit.begin("cancel", f"{cancelled.action} {cancelled.object}", who)
        self._audit.end(entry, ActionState.FINISHED, result)
        return ActionResult("cancel", f"{cancelled.action} {cancelled.object}", result, True, entry)


def task_body(session: Session, task: AuditEntry) -> TaskBody:
    """Returns the body of a task. Raises VolstreamError if the task is not possible, or no longer."""
    kind, _, name = task.object.partition(" ")
    action = next(action for action in ACTIONS if (action.kind, action.verb) == (kind, task.action))
    body = action.work(session, name, Query({key: [text] for key, text in (task.parameters or {}).items()}))
    assert not isinstance(body, str), "only tasks are queued"
    return body


def _retry(session: Session, name: str, form: Query) -> str:
    """Retries failed files of the job at its next run."""
    return f"{counted(len(session.jobs.retry(name, _paths(session, name, form))), 'file')} due again at the next run."


def _skip(session: Session, name: str, form: Query) -> str:
    """Gives up on failed files of the job. A newer version of a file is processed nevertheless."""
    return f"{counted(len(session.jobs.skip(name, _paths(session, name, form))), 'file')} skipped."


def _paths(session: Session, name: str, form: Query) -> list[str] | None:
    """Returns the selected files, or None for all."""
    paths, group = form.texts("path"), form.text("group")
    if (len([choice for choice in (paths, group, form.text("all")) if choice])) != 1:
        raise InvalidValueError("No files are selected.", "Give one of path, group and all=1.")
    if group is not None:
        return list(paths_of_group(session.home, session.jobs.get(name), group))
    return list(paths) or None


def _pause(session: Session, name: str, _form: Query) -> str:
    """Stops running the job until it is resumed. It keeps its position."""
    session.jobs.pause(name)
    return "The job is paused."


def _resume(session: Session, name: str, _form: Query) -> str:
    """Resumes the paused job."""
    session.jobs.resume(name)
    return "The job is active."


def _run(session: Session, name: str, _form: Query) -> TaskBody:
    """Runs the job once, now, or after the current run."""
    return lambda work: _summary(work, session.jobs.run(name, waits=work.waits, stop=work.stop, observe=partial(_observe, work)))


def _replay(session: Session, name: str, form: Query) -> TaskBody:
    """Processes files of the job again as they were delivered, and replaces their results."""
    where, stale = form.text("where"), form.flag("stale")
    if where is not None:
        check_where(where)

    def do(work: Work) -> str:
        catalog, stream_id = session.home.catalog, session.jobs.get(name).stream_id
        begun = None if work.plan_id is None else catalog.reports.plan(work.plan_id)
        if begun is not None and begun.state is not PlanState.DROPPED:  # an earlier daemon's commits stay
            return _run(session, name, form)(work)

        def observe(progress: Progress) -> None:
            plan = catalog.consumptions.open_plan(stream_id)
            if plan is not None and plan.kind is PlanKind.REPLAY:  # a replay first drops plans of other kinds
                work.planned(plan.id)
            _observe(work, progress)

        replay = partial(session.jobs.replay, name, where, stale=stale, is_cancelled=lambda: work.cancelled)
        return _summary(work, replay(waits=work.waits, stop=work.stop, observe=observe))

    return do


def _verify(session: Session, name: str, form: Query) -> TaskBody:
    """Compares the job's table with its files, without calling the function."""
    verify = partial(session.jobs.verify, name, fix=form.flag("fix"), outputs=form.flag("outputs"))

    def do(work: Work) -> str:
        found = verify(stop=work.stop, observe=partial(_observe, work))
        report = lines(name, found)
        work.outcome = {**document(name, found), "report": "\n".join(report)}
        return report[0] if found.fixed is None else f"{report[0]} {report[-1]}"

    return do


def _observe(work: Work, progress: Progress) -> None:
    work.observe(progress.done_files, progress.files)


def _summary(work: Work, report: RunReport) -> str:
    done = report.progress
    work.outcome = report.document
    if not done.batches:
        return "There was nothing to do."
    return f"{counted(done.processed, 'file')} processed, {done.failed} failed; {counted(done.rows, 'row')}."


def _refresh(session: Session, name: str, form: Query) -> TaskBody:
    """Lists the volume now, or a part of it, and updates its directory."""
    part = form.text("subdirectory") or ""
    return lambda work: _listed(session.volumes.refresh(name, part, stop=work.stop))


def _accept_removals(session: Session, name: str, _form: Query) -> TaskBody:
    """Lists the volume now, and applies removals beyond its limit."""
    return lambda work: _listed(session.volumes.refresh(name, accept_removals=True, stop=work.stop))


def _listed(done: RefreshResult) -> str:
    held = f" {counted(done.held, 'removal')} held." if done.held else ""
    return f"{done.inserted} new, {done.updated} changed, {done.deleted} removed.{held}"


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
        parameters={
            "where": "SQL condition on the directory's columns; default: all files.",
            "stale": "1: only files whose rows were made by older code.",
        },
    ),
    Action(
        "job",
        "verify",
        _verify,
        waits=True,
        parameters={
            "fix": "1: process the wrong files again, and remove rows that belong to no file.",
            "outputs": "1: also check that the output files are in their volume.",
        },
    ),
    Action(
        "volume", "refresh", _refresh, waits=True, parameters={"subdirectory": "List only what is below; default: everything."}
    ),
    Action("volume", "accept-removals", _accept_removals, waits=True),
)
