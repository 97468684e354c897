"""The child process that calls a function for a :class:`~volstream.functions.child.ChildWorker`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing

from volstream.errors import InvalidValueError
from volstream.functions import processes
from volstream.functions.inferred import types_of
from volstream.functions.limits import explain_memory, memory_limit
from volstream.functions.outcomes import FileOutcome, FileTask, OutcomeCodec
from volstream.functions.prefetch import Fetcher
from volstream.functions.worker import Work
from volstream.model.work import FailureKind


def serve(
    work: Work, requests: Iterator[tuple[str, Sequence[FileTask]]], copy_output_to: int | None = None
) -> Iterator[object]:
    """Serves a :class:`~volstream.functions.child.ChildWorker`: reports the set-up, then answers each call.

    Args:
        copy_output_to: see :meth:`Work.caller`.

    Yields:
        The batch size; then, for each call, the outcomes and whether fetching ahead is worthwhile.
    """
    plain = _types if work.schema is None else OutcomeCodec(work.schema).plain
    with memory_limit(work.memory_bytes), closing(Fetcher(work.store)) as fetcher:
        caller = work.caller(copy_output_to)
        yield caller.batch_size or 1
        for what, group in requests:
            if what == "fetch":
                fetcher.fetch(group)
                continue
            files = fetcher.files(group)
            outcomes = caller(list(zip(group, files, strict=True)))
            fetcher.learn(files)
            for outcome in outcomes:
                explain_memory(outcome, work.memory_bytes)
                plain(outcome)
            yield outcomes, fetcher.useful


def _types(outcome: FileOutcome) -> None:
    """Replaces rows by one row with the types of their columns; a value without a column type is a failure."""
    if not len(outcome.rows):
        return
    try:
        outcome.rows = [types_of(outcome.task.info.relative_path, outcome.rows)]
    except InvalidValueError as error:
        outcome.kind, outcome.message, outcome.rows = FailureKind.WRONG_RESULT, str(error), ()


def _serve(read: int, write: int) -> None:
    work: Work = processes.receive(read)
    errors = os.dup(2)  # the function may close stderr, and its number may be reused
    for answer in serve(work, processes.requests(read), copy_output_to=errors):
        processes.send(write, answer)


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()  # reports the Python stack of a crash
    processes.end_with(int(sys.argv[1]))
    _serve(int(sys.argv[2]), int(sys.argv[3]))
