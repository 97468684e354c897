"""Comparisons of code that pages ask for: in the background, one at a time for each job, with a limit of time.

Results stay in the daemon's memory, the newest ones. What does not belong here: the comparing (``jobs.compare``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from volstream.console.query import Query
from volstream.definitions import FileJob
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError, VolstreamError, in_brief
from volstream.jobs.comparison import Comparison, ComparisonProgress
from volstream.jobs.load import loads
from volstream.lifecycle.supervisor import join_all
from volstream.log import get
from volstream.model.text import counted
from volstream.model.units import format_duration
from volstream.session import Session

_log = get("console")

#: A comparison that takes longer is ended. A larger one is for `volstream compare`.
MAX_SECONDS = 600.0

#: Files of a sample: by default, and at most, so that a result is small.
SAMPLE, MAX_SAMPLE = 200, 2000

#: Comparisons at once, and how many are kept.
_MAX_WORKING, _KEPT = 2, 50

#: Seconds for all of them to end when the daemon stops.
_END_SECONDS = 5.0

#: Interval at which pages get the progress.
_TELL_SECONDS = 1.0

#: What a request may say.
PARAMETERS = {
    "function": "The other code, FILE.py:FUNC or pkg.mod:FUNC; a relative file is beside the job's own.",
    "returns": "Its columns; default: those that it declares, else the job's.",
    "sample": f"How many files, up to {MAX_SAMPLE}; default {SAMPLE}.",
    "where": "SQL condition on the directory's columns; default: all files.",
    "both": "1: run the job's own code, too.",
}


@dataclass
class Comparing:
    """One comparison, as asked and as far as it is.

    Attributes:
        id: of its entry in the audit.
        began_on, ended_on: in UTC; None: it is being done.
        state: ``running``, ``done`` or ``failed``.
        progress: None: the files are being chosen.
        error, remedy: why it failed.
        next: commands that switch the job to the other code.
    """

    id: int
    job: str
    function: str
    returns: str | None
    where: str | None
    sample: int
    both: bool
    began_on: datetime
    ended_on: datetime | None = None
    state: str = "running"
    progress: ComparisonProgress | None = None
    result: Comparison | None = None
    error: str | None = None
    remedy: str = ""
    next: tuple[str, ...] = ()


@dataclass
class _Work:
    """What ends a comparison: ``why`` is said before Spark is interrupted."""

    thread: threading.Thread
    why: str | None = None
    spark: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, why: str) -> None:
        with self.lock:
            self.why = self.why or why
            spark = self.spark
        if spark is not None:
            spark.interruptAll()

    def check(self) -> None:
        if self.why is not None:
            raise InvalidStateError(self.why)


class Comparisons:
    """Compares in the daemon's process.

    Args:
        tell: tells open pages which topics changed.
        max_seconds: limit of one comparison.
    """

    def __init__(
        self, session: Session, tell: Callable[[Collection[str]], None], max_seconds: float = MAX_SECONDS
    ) -> None:
        self._session = session
        self._tell = tell
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._known: dict[int, Comparing] = {}
        self._working: dict[int, _Work] = {}
        self._stopped = False

    def begin(self, name: str, form: Query, who: str) -> Comparing:
        """Begins a comparison, with an entry in the audit.

        Raises:
            NotFoundError: there is no such job.
            InvalidValueError: the request is incomplete, or the job has no code of the user.
            InvalidStateError: the job is being compared, or too much is being done already.
        """
        job = self._session.jobs.get(name)
        if not isinstance(job, FileJob) or loads(job):
            raise InvalidValueError(f"The job {job.name} runs no function.", "Only jobs of functions can be compared.")
        function, sample = form.text("function"), form.number("sample") or SAMPLE
        if function is None:
            raise InvalidValueError("The other code is missing.", "Give FILE.py:FUNC or pkg.mod:FUNC.")
        if sample > MAX_SAMPLE:
            raise InvalidValueError(
                f"A sample cannot have {sample} files here.",
                f"Give up to {MAX_SAMPLE}; for more: volstream compare {job.name}.",
            )
        with self._lock:
            self._check_free(str(job.name))
            asked = f"job {job.name} with {function}"
            entry = self._session.home.catalog.audit.begin("compare", asked, who)
            one = Comparing(
                id=entry,
                job=str(job.name),
                function=function,
                returns=form.text("returns"),
                where=form.text("where"),
                sample=sample,
                both=form.text("both") is not None,
                began_on=datetime.now(UTC),
            )
            run = partial(self._run, one, job.search_path)
            work = _Work(threading.Thread(target=run, name=f"compare {asked}", daemon=True))
            ended = [known for known in self._known if known not in self._working]
            for oldest in ended[: max(0, len(self._known) + 1 - _KEPT)]:
                del self._known[oldest]
            self._known = {**self._known, entry: one}
            self._working[entry] = work
            work.thread.start()
        return one

    def get(self, name: str, identity: str) -> Comparing:
        """Returns a comparison of a job. Raises NotFoundError."""
        found = self._known.get(int(identity)) if identity.isascii() and identity.isdecimal() else None
        if found is None or found.job != str(self._session.jobs.get(name).name):
            raise NotFoundError(
                f"There is no comparison {identity} of the job {name}.",
                "They are kept until the daemon ends; the audit has what was compared. Compare again.",
            )
        return found

    def of(self, name: str) -> list[Comparing]:
        """Returns the comparisons of a job, newest first."""
        return [one for one in reversed(self._known.values()) if one.job == name]

    def stop(self) -> None:
        """Ends all comparisons. Idempotent."""
        with self._lock:
            self._stopped = True
            working = list(self._working.values())
        for work in working:
            work.end("The daemon has stopped.")
        join_all([work.thread for work in working], _END_SECONDS)

    def _check_free(self, job: str) -> None:
        if self._stopped:
            raise InvalidStateError("The daemon is stopping.")
        if any(self._known[one].job == job for one in self._working):
            raise InvalidStateError(f"The job {job} is being compared already.", "Wait for the result.")
        if len(self._working) >= _MAX_WORKING:
            raise InvalidStateError("Other jobs are being compared.", "Wait for their results.")

    def _run(self, one: Comparing, folder: str | None) -> None:
        work = self._working[one.id]
        limit = f"The comparison took longer than {format_duration(self._max_seconds)} and was ended."
        timer = threading.Timer(self._max_seconds, work.end, (limit,))
        timer.daemon = True
        timer.start()
        try:
            found = self._compare(one, work, folder)
            one.next = tuple(found.commands_to_switch(found.function, one.returns))
            one.result, one.state = found, "done"
            outcome = told(found)
        except Exception as error:  # noqa: BLE001  # the thread's outermost handler
            if not isinstance(error, VolstreamError):
                _log.error("compare_failed", job=one.job, exc_info=error)
            one.error = work.why or in_brief(error)
            if work.why is None:
                one.remedy = getattr(error, "remedy", "")
            elif work.why == limit:
                one.remedy = f"Without a limit of time: volstream compare {one.job}."
            one.state, outcome = "failed", f"failed: {one.error}"
        finally:
            timer.cancel()
            with self._lock:
                del self._working[one.id]
        self._session.home.catalog.audit.end(one.id, outcome)
        one.ended_on = datetime.now(UTC)
        self._tell_of(one)

    def _compare(self, one: Comparing, work: _Work, folder: str | None) -> Comparison:
        last = 0.0

        def observe(progress: ComparisonProgress) -> None:
            nonlocal last
            work.check()
            one.progress = progress
            if progress.compared == 0 or time.monotonic() - last > _TELL_SECONDS:
                last = time.monotonic()
                self._tell_of(one)

        with work.lock:
            work.spark = self._session.home.gateway.session()
        work.check()
        return self._session.jobs.compare(
            one.job,
            one.function,
            returns=one.returns,
            sample=one.sample,
            where=one.where,
            both=one.both,
            directory=None if folder is None else Path(folder),
            observe=observe,
        )

    def _tell_of(self, one: Comparing) -> None:
        self._tell({f"comparison:{one.id}", f"comparisons:{one.job}"})


def told(found: Comparison) -> str:
    """Returns the result in a sentence."""
    files = found.differences.files
    return f"{files - found.differences.same} of {counted(files, 'file')} would change; nothing was written."
