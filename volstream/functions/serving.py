"""The child process that calls a function for a :class:`~volstream.functions.child.ChildWorker`."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import pyarrow as pa

from volstream.base.model.work import FailureKind
from volstream.errors import InvalidValueError
from volstream.functions.call import Work, close_all
from volstream.functions.child import Ready
from volstream.functions.concurrency import Calls, explain_memory, is_blocked, memory_limit
from volstream.functions.outcomes import FileOutcome, FileTask, make_plain
from volstream.functions.output import OutputTarget, OutputWriter
from volstream.functions.processes import end_with
from volstream.functions.rows import NotRowsError
from volstream.functions.schema import types_of
from volstream.functions.worker import Fetcher

#: The kind of a request to the child, and its content.
_Request: TypeAlias = tuple[str, Any]


def serve(work: Work, wanted: int | None, connection: Connection, copy_output_to: int | None = None) -> None:
    """Serves a :class:`~volstream.functions.child.ChildWorker`: reports the setup, then replies to each call.

    Args:
        wanted: maximum concurrent calls. By default, as many as the function wants.
        copy_output_to: see :meth:`Work.caller`.
    """
    with ExitStack() as resources:
        resources.enter_context(work.source.folder())
        resources.enter_context(memory_limit(work.memory_bytes))
        fetcher = resources.enter_context(closing(Fetcher(work.store)))
        caller = work.caller(copy_output_to)
        concurrency = wanted or caller.concurrency

        def call(group: Sequence[FileTask]) -> list[FileOutcome]:
            files = fetcher.files(group)
            outcomes = caller(list(zip(group, files, strict=True)))
            fetcher.learn(files, outcomes)
            if any(outcome.kind is FailureKind.TIMED_OUT for outcome in outcomes) and is_blocked():
                if concurrency == 1:
                    threading.Event().wait()  # the parent kills this process, as for an uninterruptible call
                os._exit(1)
            for outcome in outcomes:
                explain_memory(outcome, work.memory_bytes)
                _infer_types(outcome) if work.schema is None else make_plain(outcome, work.schema)
            return outcomes

        connection.send(Ready(caller.batch_size or 1, caller.returns, concurrency))
        if concurrency > 1:
            resources.enter_context(caller.capturing())
        calls = resources.enter_context(closing(Calls(call, concurrency)))
        _serve_requests(connection, calls, fetcher, _reader(connection, calls) if concurrency > 1 else partial(_read, connection))


def _serve_requests(connection: Connection, calls: Calls, fetcher: Fetcher, next_request: Callable[..., _Request]) -> None:
    """Makes calls on request, and sends their numbers and outcomes as they end."""
    numbers: dict[int, int] = {}  # by the id of a call's first task
    while True:
        request: _Request = "answer", None
        with suppress(queue.Empty):  # it must not be the context of a function's error
            request = next_request(block=not calls.running)
        what, content = request
        match what:
            case "end":
                return
            case "fetch":
                fetcher.fetch(content)
            case "call":
                number, group = content
                numbers[id(group[0])] = number
                calls.start(group)
            case _:
                if outcomes := calls.next():
                    connection.send((numbers.pop(id(outcomes[0].task)), outcomes, fetcher.useful))


def _read(connection: Connection, *, block: bool = True) -> _Request:
    """Returns the next request. Raises queue.Empty if it must not block."""
    if not block:
        raise queue.Empty
    try:
        request: _Request = connection.recv()
    except EOFError:
        return "end", None
    return request


def _reader(connection: Connection, calls: Calls) -> Callable[..., _Request]:
    """Reads requests in a thread, because calls end meanwhile. Returns a function that returns them."""
    requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()

    def read() -> None:
        what = ""
        while what != "end":
            what, content = _read(connection)
            requests.put((what, content))
            calls.wake()

    threading.Thread(target=read, name="requests", daemon=True).start()
    return requests.get


def _infer_types(outcome: FileOutcome) -> None:
    """Infers the types of the columns. A value without a column type is a failure."""
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


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()  # reports the Python stack of a crash
    end_with(int(sys.argv[1]))
    parent = Connection(int(sys.argv[2]))
    work, wanted = parent.recv()
    # The function may close stderr, and its number may be reused.
    serve(work, wanted, parent, copy_output_to=os.dup(2))
    close_all()
    os._exit(0)  # threads of the function would keep the process alive
