"""The child process that calls a function for a :class:`~volstream.functions.child.ChildWorker`."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from volstream.base.model.work import FailureKind
from volstream.errors import InvalidValueError
from volstream.functions import processes
from volstream.functions.call import close_all
from volstream.functions.child import Ready
from volstream.functions.concurrency import Calls, explain_memory, is_blocked, memory_limit
from volstream.functions.outcomes import FileOutcome, FileTask, make_plain
from volstream.functions.output import OutputTarget, OutputWriter
from volstream.functions.rows import NotRowsError
from volstream.functions.schema import types_of
from volstream.functions.worker import Fetcher, Work


def serve(work: Work, requests: Iterator[tuple[str, Any]], copy_output_to: int | None = None) -> Iterator[object]:
    """Serves a :class:`~volstream.functions.child.ChildWorker`: reports the set-up, then answers each call.

    Args:
        copy_output_to: see :meth:`Work.caller`.

    Yields:
        What the function is like; then, for each call, the outcomes and whether fetching ahead is worthwhile. Once asked for
        many calls, also the number of each, before its outcomes.
    """
    with work.source.folder(), memory_limit(work.memory_bytes), closing(Fetcher(work.store)) as fetcher:
        caller = work.caller(copy_output_to)
        many = threading.Event()

        def call(group: Sequence[FileTask]) -> list[FileOutcome]:
            files = fetcher.files(group)
            outcomes = caller(list(zip(group, files, strict=True)))
            fetcher.learn(files, outcomes)
            if any(outcome.kind is FailureKind.TIMED_OUT for outcome in outcomes) and is_blocked():
                # Its parent kills it: for a single call as for one that cannot be interrupted, among many now.
                many.wait()
                os._exit(1)
            for outcome in outcomes:
                explain_memory(outcome, work.memory_bytes)
                _type(outcome) if work.schema is None else make_plain(outcome, work.schema)
            return outcomes

        yield Ready(caller.batch_size or 1, caller.returns, caller.concurrency)
        for what, asked in requests:
            match what:
                case "fetch":
                    fetcher.fetch(asked)
                case "call":
                    yield call(asked), fetcher.useful
                case "many":
                    many.set()
                    with caller.capturing(), closing(Calls(call, asked)) as calls:
                        for number, outcomes in _many(calls, fetcher, requests):
                            yield number, outcomes, fetcher.useful
                    return


def _many(calls: Calls, fetcher: Fetcher, requests: Iterator[tuple[str, Any]]) -> Iterator[tuple[int, list[FileOutcome]]]:
    """Makes calls as they are asked for; yields their numbers and outcomes as they end."""
    asked: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for request in requests:
            asked.put(request)
            calls.wake()
        asked.put(("end", ()))
        calls.wake()

    threading.Thread(target=read, name="requests", daemon=True).start()
    numbers: dict[int, int] = {}  # by the first of a call's tasks
    while True:
        try:
            what, said = asked.get(block=not calls.running)
        except queue.Empty:
            if outcomes := calls.next():
                yield numbers.pop(id(outcomes[0].task)), outcomes
            continue
        if what == "end":
            return
        if what == "fetch":
            fetcher.fetch(said)
            continue
        number, group = said
        numbers[id(group[0])] = number
        calls.start(group)


def _type(outcome: FileOutcome) -> None:
    """Finds the types of the columns; a value without a column type is a failure."""
    if not len(outcome.rows):
        return
    try:
        outcome.types = types_of(outcome.task.info.relative_path, outcome.rows)
        columns = pa.schema([*outcome.types.items()])
        outcome.rows = OutputWriter(columns, OutputTarget()).rows(outcome.rows)
    except (InvalidValueError, NotRowsError) as error:
        outcome.kind, outcome.message, outcome.rows = FailureKind.WRONG_RESULT, str(error), ()
    else:
        make_plain(outcome, columns)


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
    close_all()
    os._exit(0)  # threads of the function would keep the process alive
