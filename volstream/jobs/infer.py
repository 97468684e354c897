"""Finds the columns of a job whose function declares none, by calling it on a few files in a child process."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from volstream.definitions import Volume
from volstream.errors import FunctionLoadError, InvalidValueError
from volstream.functions.child import ChildWorker
from volstream.functions.inferred import Inference, InferredColumns
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.rows import ArrowRows
from volstream.functions.source import FunctionSource
from volstream.functions.worker import Work
from volstream.jobs.sample import sample_of
from volstream.jobs.services import JobServices
from volstream.jobs.sizing import bounds
from volstream.model.files import printable
from volstream.model.text import counted
from volstream.model.work import FailureKind
from volstream.volumes.access import store_of

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
        where, timeout: of the job.
    """

    services: JobServices
    volume: Volume
    where: str | None
    timeout: float | None

    def __call__(self, source: FunctionSource, arguments: Mapping[str, str]) -> InferredColumns:
        """Returns the columns that a function returns for a sample.

        Raises:
            InvalidValueError: there are no files, or none gave rows, or the rows contradict each other.
            FunctionLoadError: the function cannot be set up.
        """
        infos = sample_of(self.services, self.volume, self.where, _MOST)
        if not infos:
            none = "there are no files yet" if self.where is None else f"no file satisfies {self.where}"
            raise self._refused(none)
        inference, failed, tried = Inference(), list[FileOutcome](), 0
        began = time.monotonic()
        with closing(ChildWorker(self._work(source, arguments))) as worker:
            # First some files that are far apart.
            for info in [*infos[::4], *(info for at, info in enumerate(infos) if at % 4)]:
                [outcome] = worker.call([FileTask(info, 0)])
                tried += 1
                if outcome.kind is FailureKind.SET_UP:
                    raise FunctionLoadError(f"The function cannot be set up: {outcome.message}")
                if outcome.kind is not None:
                    failed.append(outcome)
                else:
                    assert not isinstance(outcome.rows, ArrowRows), "these are types"
                    inference.add_types(info.relative_path, outcome.rows)
                if (tried >= _ENOUGH and inference.complete) or time.monotonic() - began > _SECONDS:
                    break
        if not inference.files and failed:
            path, message = printable(failed[0].task.info.relative_path), _with_line(failed[0])
            what = f"{counted(len(failed), 'file')} of {tried}, first for {path}" if tried > 1 else path
            raise self._refused(
                f"the function failed for {what}: {message}", "Correct the function, or name its columns"
            )
        if not inference.files:
            raise self._refused(f"the function returned no rows for {counted(tried, 'file')}")
        return inference.result()

    def _work(self, source: FunctionSource, arguments: Mapping[str, str]) -> Work:
        settings = self.services.settings
        return Work(
            source,
            arguments,
            store_of(self.volume, self.services.catalog, settings),
            schema=None,
            timeout_seconds=self.timeout or _SECONDS,
            isolate=True,
            memory_bytes=settings.function_memory,
            ahead_bytes=0,
            bounds=bounds(settings),
            declared=False,
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
