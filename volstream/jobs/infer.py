"""Finds the columns of a job whose function declares none, by calling it on a few files in a child process."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from volstream.base.definitions import FileJob, FileJobSpec, Volume
from volstream.base.model.paths import printable
from volstream.base.model.text import cause, counted
from volstream.base.model.work import FailureKind
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import FunctionLoadError, InvalidValueError
from volstream.files.volumes.access import store_of
from volstream.functions.child import ChildWorker
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.schema import Inference, InferredColumns
from volstream.functions.source import FunctionSource
from volstream.functions.worker import Work, tasks_of
from volstream.jobs import sets
from volstream.jobs.sample import sample_of
from volstream.jobs.services import JobServices
from volstream.jobs.sizing import bounds

#: The function is called on this many files or, while a column was always empty or no file gave rows, on up to this many.
_ENOUGH, _MOST = 3, 10

#: No further file is tried after this long; also the timeout of a call if the job sets none.
_SECONDS = 60.0

#: Finds the columns that a function returns, given its arguments. Raises InvalidValueError, FunctionLoadError.
Infer = Callable[[FunctionSource, Mapping[str, str]], InferredColumns]


@dataclass(frozen=True)
class ColumnInference:
    """Infers columns from files of a listed volume.

    Args:
        job: whose function it is.
    """

    services: JobServices
    volume: Volume
    job: FileJob | FileJobSpec

    def __call__(self, source: FunctionSource, arguments: Mapping[str, str]) -> InferredColumns:
        """Returns the columns that a function returns for a sample.

        Raises:
            InvalidValueError: there are no files, or none gave rows, or the rows contradict each other.
            FunctionLoadError: the function cannot be set up.
        """
        tasks = self._sample()
        if not tasks:
            where, sets = self.job.where, self.job.group_by is not None
            none = "there are no files yet" if where is None else f"no file satisfies {where}"
            none = "no set is complete yet" if sets and where is None else none
            raise self._refused(none)
        inference, failed, tried = Inference(), list[FileOutcome](), 0
        began = time.monotonic()
        with closing(ChildWorker(self._work(source, arguments))) as worker:
            # First some files that are far apart.
            for task in [*tasks[::4], *(task for at, task in enumerate(tasks) if at % 4)]:
                [outcome] = worker.call([task])
                tried += 1
                if outcome.kind is FailureKind.SET_UP:
                    raise FunctionLoadError(f"The function cannot be set up: {outcome.message}")
                if outcome.kind is not None:
                    failed.append(outcome)
                else:
                    inference.add_types(task.info.relative_path, outcome.types)
                if (tried >= _ENOUGH and inference.complete) or time.monotonic() - began > _SECONDS:
                    break
        if not inference.files and failed:
            # The first file may be the odd one: its error would hide the one that all others have.
            causes = Counter(cause(outcome.message) for outcome in failed)
            first = next(outcome for outcome in failed if causes[cause(outcome.message)] == max(causes.values()))
            path, message = printable(first.task.info.relative_path), _with_line(first)
            what = f"{counted(len(failed), 'file')} of {tried}, such as {path}" if tried > 1 else path
            raise self._refused(f"the function failed for {what}: {message}", "Correct the function, or name its columns")
        if not inference.files:
            raise self._refused(f"the function returned no rows for {counted(tried, 'file')}")
        return inference.result()

    def _sample(self) -> Sequence[FileTask]:
        if self.job.group_by is None:
            return [FileTask(info, 0) for info in sample_of(self.services, self.volume, self.job.where, _MOST)]
        snapshot = VolumeSource(self.services.catalog, self.services.warehouse, self.volume.id).find()
        if snapshot is None:
            return []
        with self.services.session() as session:
            due = sets.present(session, self.job, snapshot, snapshot.newest).where("held IS NULL")
            return list(tasks_of(due.sort("relative_path").limit(_MOST).toArrow().to_batches()))

    def _work(self, source: FunctionSource, arguments: Mapping[str, str]) -> Work:
        settings = self.services.settings
        return Work(
            source,
            arguments,
            store_of(self.volume, self.services.catalog, settings),
            schema=None,
            timeout_seconds=self.job.timeout or _SECONDS,
            isolate=True,
            memory_bytes=settings.function_memory,
            ahead_bytes=0,
            bounds=bounds(settings),
            declared=False,
            sets=self.job.group_by is not None,
        )

    def _refused(self, why: str, remedy: str = "Name the columns") -> InvalidValueError:
        return InvalidValueError(
            f"The columns cannot be inferred from the volume {self.volume.name}: {why.rstrip('.')}.",
            f"{remedy}: returns='label STRING, score DOUBLE', or a dataclass as the annotation.",
        )


def _with_line(outcome: FileOutcome) -> str:
    """Returns a failure's message with the line of the function that raised it."""
    lines = re.findall(r'^  File "([^"]*)", line (\d+), in', outcome.traceback or "", re.MULTILINE)
    if not lines:
        return outcome.message
    file, line = lines[0]
    return f"{outcome.message.rstrip('.')} ({Path(file).name}, line {line})"
