"""Tasks of the home's engine that wait for small batches: a Spark call takes a tenth of a second, however
little it does.

Each is a statement of one task. Its Python worker connects to a socket of this process and serves its
requests until the socket is closed. The engine's workers, memory limits and kills apply as for any task. If
the worker dies, so does its statement, and another one starts. Linux only. A request that does not get a task
at once becomes a Spark call.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa

from volstream.base.log import get
from volstream.base.threads import Stop
from volstream.errors import InterruptedByUserError
from volstream.functions import worker
from volstream.jobs.batches.staging import encoded

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_log = get("jobs")

#: A worker that has grown by more than this ends after its reply: functions keep models, and leak memory.
_GROWTH_BYTES = 512 << 20

#: The first byte of a reply's parts: rows, the end, or an error with its text.
_ROWS, _END, _ERROR = b"r", b"e", b"x"

#: A new session is opened after this many tasks have failed in a row, each within this time.
_FAILURES, _LASTING_SECONDS = 3, 5.0

#: The content of SO_PEERCRED: process, user, group.
_PEER = struct.Struct("3i")


class ResidentDiedError(Exception):
    """The process of a task ended while it worked."""


class Residents:
    """The waiting tasks of an engine. Thread-safe.

    Args:
        session: opens a session of the engine.
        folder: only this user can access it.
        count: number of tasks. They start when the first one is needed.
    """

    def __init__(self, session: Callable[[], AbstractContextManager[SparkSession]], folder: Path, count: int) -> None:
        self.count = count
        self._session = session
        self._folder = folder
        self._lock = threading.Lock()
        self._idle: list[_Resident] = []
        self._busy: dict[str, Sequence[_Resident]] = {}  # by the name of their work
        self._wanted = threading.Event()
        self._ended = Stop()
        self._server: socket.socket | None = None

    @property
    def waiting(self) -> int:
        """Number of tasks that could be called now."""
        return len(self._idle)

    def call(self, about: str, function: Callable[..., Any], rows: pa.Table, max_tasks: int) -> Iterator[pa.Table] | None:
        """Calls a function of batches in waiting tasks, each with some of the rows, and yields its results.
        Returns None if no task waits, or too few.

        Args:
            function: can be pickled by PySpark; yields record batches.
            about: a name for :meth:`interrupt`.
            max_tasks: maximum number of tasks.

        Raises:
            ResidentDiedError, InterruptedByUserError: while rows are read.
            RuntimeError: the function raised an error.
        """
        from pyspark.cloudpickle import dumps

        tasks = self._acquire(about, min(max_tasks, rows.num_rows))
        if not tasks:
            return None
        pickled = dumps(function)  # type: ignore[no-untyped-call]
        try:
            for number, task in enumerate(tasks):
                task.ask(pickled, rows.take(pa.array(range(number, rows.num_rows, len(tasks)))))
        except OSError:  # a task had ended
            self._release(about, tasks, succeeded=False)
            return None
        return self._replies(about, tasks)

    def interrupt(self, about: str) -> None:
        """Kills the workers of a call, if any."""
        with self._lock:
            tasks = self._busy.get(about, ())
            for task in tasks:
                task.kill()

    def run(self) -> None:
        """Maintains the tasks until :meth:`end`. Runs in its own thread."""
        self._wanted.wait()
        if self._ended or not self.count:
            return
        with self._listening() as (server, path), ThreadPoolExecutor(1, thread_name_prefix="residents") as pool:
            pool.submit(self._keep, path)
            while not self._ended:
                with suppress(OSError):
                    self._accept(server.accept()[0])

    def end(self) -> None:
        """Ends the tasks, busy ones after their reply. Idempotent."""
        self._ended.set()
        self._wanted.set()
        with self._lock:
            if self._server is not None:
                with suppress(OSError):
                    self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            while self._idle:
                self._idle.pop().close()

    def _acquire(self, about: str, count: int) -> Sequence[_Resident]:
        self._wanted.set()
        with self._lock:
            if self._ended or not 0 < count <= len(self._idle):
                return ()
            # The task that worked last: its imports are in the processor's caches, and it has the most
            # instances.
            tasks = [self._idle.pop() for _ in range(count)]
            self._busy[about] = tasks
        return tasks

    def _replies(self, about: str, tasks: Sequence[_Resident]) -> Iterator[pa.Table]:
        succeeded = False
        try:
            for task in tasks:
                yield from task.reply()
            succeeded = True
        except (EOFError, OSError) as error:
            if any(task.killed for task in tasks):
                raise InterruptedByUserError("The calls were interrupted.") from error
            raise ResidentDiedError from error
        finally:
            self._release(about, tasks, succeeded=succeeded)

    def _release(self, about: str, tasks: Sequence[_Resident], *, succeeded: bool) -> None:
        with self._lock:
            self._busy.pop(about, None)
            for task in tasks:
                if succeeded and not task.leaves and not self._ended:
                    self._idle.append(task)
                else:
                    task.close()

    def _accept(self, connection: socket.socket) -> None:
        process, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        with self._lock:
            if user != os.getuid() or self._ended:
                connection.close()
            else:
                self._idle.insert(0, _Resident(Connection(connection.detach()), process))

    def _keep(self, path: str) -> None:
        """Maintains the tasks in one session, whose workers are forked from one process. Opens another
        session if that one is broken."""
        while not self._ended:
            with suppress(Exception), self._session() as session, ThreadPoolExecutor(self.count) as pool:
                keepers = [pool.submit(self._keep_one, session, path) for _ in range(self.count)]
                while not all(keeper.done() for keeper in keepers):
                    wait([keeper for keeper in keepers if not keeper.done()], return_when=FIRST_COMPLETED)
                    if not self._ended.wait(_LASTING_SECONDS) and not all(keeper.done() for keeper in keepers):
                        keepers = [pool.submit(self._keep_one, session, path) if keeper.done() else keeper for keeper in keepers]
            self._ended.wait(_LASTING_SECONDS)

    def _keep_one(self, session: SparkSession, path: str) -> None:
        """Runs one task after another, as each ends with its worker. Returns after several quick failures."""
        failures = 0
        while not self._ended and failures < _FAILURES:
            began = time.monotonic()
            try:
                session.range(0, 1, 1, 1).mapInArrow(partial(serve, path), "nothing INT").collect()
            except Exception as error:  # noqa: BLE001  # from the engine, or because its worker died
                _log.debug("resident_ended", cause=str(error))
            failures = 0 if time.monotonic() - began > _LASTING_SECONDS else failures + 1

    @contextmanager
    def _listening(self) -> Iterator[tuple[socket.socket, str]]:
        """Listens on a socket. Yields it with its path."""
        path = self._folder / f"residents-{os.getpid()}"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            with _short_name(str(path)) as name:
                server.bind(name)
            server.listen(self.count)
            self._server = server
            try:
                yield server, str(path)
            finally:
                path.unlink(missing_ok=True)


class _Resident:
    """A waiting task, seen from this process.

    Attributes:
        leaves: it ended itself after its reply.
        killed: :meth:`kill` was called.
    """

    def __init__(self, connection: Connection, process: int) -> None:
        self.leaves = self.killed = False
        self._connection = connection
        self._process = process

    def ask(self, function: bytes, rows: pa.Table) -> None:
        """Sends a call. Raises OSError if the task has ended."""
        self._connection.send_bytes(function)
        self._connection.send_bytes(encoded(rows))

    def reply(self) -> Iterator[pa.Table]:
        """Yields the rows of its reply. Raises EOFError or OSError if the task ends, and RuntimeError if the
        function raises."""
        while True:
            part = self._connection.recv_bytes()
            kind, content = part[:1], part[1:]
            if kind == _ERROR:
                raise RuntimeError(content.decode("utf-8", "replace"))
            if kind == _END:
                self.leaves = bool(content)
                return
            yield pa.ipc.open_stream(content).read_all()

    def kill(self) -> None:
        self.killed = True
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)

    def close(self) -> None:
        """Ends the task after its current work."""
        self._connection.close()


def serve(path: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Serves the requests of the process at a socket until that ends. Spark calls it with an empty partition.
    Yields nothing."""
    for _ in batches:
        pass
    began = psutil.Process().memory_info().rss
    with suppress(EOFError, ConnectionError, FileNotFoundError):
        with socket.socket(socket.AF_UNIX) as raw, _short_name(path) as name:
            raw.connect(name)
            to_daemon = raw.detach()
        with Connection(to_daemon) as connection:
            leaves = False
            while not leaves:
                function, rows = connection.recv_bytes(), connection.recv_bytes()
                _run(connection, function, rows)
                leaves = worker.is_retired() or psutil.Process().memory_info().rss - began > _GROWTH_BYTES
                connection.send_bytes(_END + (b"1" if leaves else b""))
    yield from ()


def _run(connection: Connection, function: bytes, rows: bytes) -> None:
    """Sends the results of a function for rows, and its error if it raises one."""
    try:
        call = pickle.loads(function)
        with closing(call(pa.ipc.open_stream(rows))) as replies:
            for reply in replies:
                connection.send_bytes(_ROWS + encoded(reply))
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001  # a Spark call will raise it again
        connection.send_bytes(_ERROR + str(error).encode("utf-8", "replace"))


@contextmanager
def _short_name(path: str) -> Iterator[str]:
    """Yields a short name of a socket, whose path may have at most 107 bytes."""
    folder = os.open(os.path.dirname(path), os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)
