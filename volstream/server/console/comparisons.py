"""Comparisons of code that pages ask for: in the background, with a time limit.

What does not belong here: the comparing (``jobs.compare``), and how it is queued and cancelled (``daemon.tasks``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from volstream.api.session import Session
from volstream.base.definitions import FileJob
from volstream.base.model.text import counted
from volstream.base.model.units import format_duration
from volstream.errors import InvalidValueError
from volstream.jobs.proof.compare import Comparison, ComparisonProgress
from volstream.jobs.rules.load import loads
from volstream.server.console.query import Query
from volstream.server.console.work import TaskBody, Work

#: A comparison that takes longer is ended. A larger one is for `volstream compare`.
MAX_SECONDS = 600.0

#: Files of a sample: by default, and at most, so that a result is small.
SAMPLE, MAX_SAMPLE = 200, 2000

#: What a request may say.
PARAMETERS = {
    "function": "The other code, FILE.py:FUNC or pkg.mod:FUNC; a relative file is beside the job's own.",
    "returns": "Its columns; default: those that it declares, else the job's.",
    "sample": f"How many files, up to {MAX_SAMPLE}; default {SAMPLE}.",
    "where": "SQL condition on the directory's columns; default: all files.",
    "both": "1: also run the job's own code.",
}


@dataclass(frozen=True)
class ComparisonResult:
    """The outcome of a comparison.

    Attributes:
        next: commands that switch the job to the other code.
    """

    comparison: Comparison
    next: Sequence[str]


def compare(session: Session, name: str, form: Query, *, max_seconds: float = MAX_SECONDS) -> TaskBody:
    """Compares the job's code with other code."""
    job = session.jobs.get(name)
    if not isinstance(job, FileJob) or loads(job):
        raise InvalidValueError(f"The job {job.name} runs no function.", "Only jobs of functions can be compared.")
    function, sample = form.text("function"), form.number("sample") or SAMPLE
    if function is None:
        raise InvalidValueError("The other code is missing.", "Give FILE.py:FUNC or pkg.mod:FUNC.")
    if sample > MAX_SAMPLE:
        raise InvalidValueError(
            f"A sample of {sample} files is too large here.", f"Give up to {MAX_SAMPLE}; for more: volstream compare {job.name}."
        )
    run = partial(
        session.jobs.compare,
        str(job.name),
        function,
        returns=form.text("returns"),
        sample=sample,
        where=form.text("where"),
        both=form.flag("both"),
        directory=None if job.search_path is None else Path(job.search_path),
    )

    def do(work: Work) -> str:
        limit = f"The comparison took longer than {format_duration(max_seconds)} and was stopped."
        timer = threading.Timer(max_seconds, work.end, (limit, f"To run it without a time limit: volstream compare {job.name}."))
        timer.daemon = True
        timer.start()
        try:
            work.observe(None, None, "Choosing files")
            work.interruptible(session.home.gateway.session().interruptAll)
            work.check()
            comparison = run(observe=partial(_observe, work))
        finally:
            timer.cancel()
        work.outcome = ComparisonResult(comparison, comparison.commands_to_switch(comparison.function, form.text("returns")))
        files = comparison.differences.files
        return f"{files - comparison.differences.same} of {counted(files, 'file')} would change; nothing was written."

    return do


def _observe(work: Work, progress: ComparisonProgress) -> None:
    code = "the job's own code" if progress.own else "the other code"
    work.check()
    step = f"Comparing the results of {code}" if progress.compared else f"Running {code}"
    work.observe(progress.compared or None, progress.files, step)
