"""Tasks of the home's engine that wait for small batches: a call of Spark takes a tenth of a second, however little it does.

Each is a statement of one task, whose Python worker connects to a socket of this process, and does what it is asked until that
is closed. The engine's own workers, memory limits and kills hold for them as for any task; when one dies, so does its statement,
and another one begins. Linux only. Whatever does not get one at once is a call of Spark.
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

#: A worker that has grown by more than this ends after its answer: functions keep models, and what they forgot.
_GROWTH_BYTES = 512 << 20

#: The first byte of an answer's parts: rows; the end; an error, with its text.
_ROWS, _END, _ERROR = b"r", b"e", b"x"

#: A new session is opened after this many tasks have failed, each within this time.
_FAILURES, _LASTING_SECONDS = 3, 5.0

#: What SO_PEERCRED tells: process, user, group.
_PEER = struct.Struct("3i")


class ResidentDiedError(Exception):
    """The process of a task ended while it worked."""


class Residents:
    """The waiting tasks of an engine. Thread-safe.

    Args:
        session: opens a session of the engine.
        folder: of this user only.
        count: number of tasks; they begin when the first one is wanted.
    """

    def __init__(self, session: Callable[[], AbstractContextManager[SparkSession]], folder: Path, count: int) -> None:
        self.count = count
        self._session = session
        self._folder = folder
        self._lock = threading.Lock()
        self._idle: list[_Resident] = []
        self._busy: dict[str, Sequence[_Resident]] = {}  # by what they work on
        self._wanted = threading.Event()
        self._ended = Stop()
        self._server: socket.socket | None = None

    @property
    def waiting(self) -> int:
        """Number of tasks that could be called now."""
        return len(self._idle)

    def call(self, about: str, function: Callable[..., Any], rows: pa.Table, most: int) -> Iterator[pa.Table] | None:
        """Calls a function of batches in waiting tasks, each with some of the rows; yields what it yields. None: too few wait.

        Args:
            function: can be pickled by PySpark; yields record batches.
            about: a name for :meth:`interrupt`.
            most: number of tasks at most.

        Raises:
            ResidentDiedError, InterruptedByUserError: while rows are taken. RuntimeError: the function raised an error.
        """
        from pyspark.cloudpickle import dumps

        taken = self._take(about, min(most, rows.num_rows))
        if not taken:
            return None
        called = dumps(function)  # type: ignore[no-untyped-call]
        try:
            for at, one in enumerate(taken):
                one.ask(called, rows.take(pa.array(range(at, rows.num_rows, len(taken)))))
        except OSError:  # it had ended
            self._give_back(about, taken, well=False)
            return None
        return self._answers(about, taken)

    def interrupt(self, about: str) -> None:
        """Kills the workers that work on something, if any."""
        with self._lock:
            working = self._busy.get(about, ())
            for one in working:
                one.kill()

    def run(self) -> None:
        """Keeps the tasks until :meth:`end`. Runs in its own thread."""
        self._wanted.wait()
        if self._ended or not self.count:
            return
        with self._listening() as (server, path), ThreadPoolExecutor(1, thread_name_prefix="residents") as pool:
            pool.submit(self._keep, path)
            while not self._ended:
                with suppress(OSError):
                    self._accept(server.accept()[0])

    def end(self) -> None:
        """Ends the tasks; those that work, after their answer. Idempotent."""
        self._ended.set()
        self._wanted.set()
        with self._lock:
            if self._server is not None:
                with suppress(OSError):
                    self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            while self._idle:
                self._idle.pop().close()

    def _take(self, about: str, count: int) -> Sequence[_Resident]:
        self._wanted.set()
        with self._lock:
            if self._ended or not 0 < count <= len(self._idle):
                return ()
            # The last one that worked: what it imported is in the processor's caches, and it has the most instances.
            taken = [self._idle.pop() for _ in range(count)]
            self._busy[about] = taken
        return taken

    def _answers(self, about: str, taken: Sequence[_Resident]) -> Iterator[pa.Table]:
        well = False
        try:
            for one in taken:
                yield from one.answer()
            well = True
        except (EOFError, OSError) as error:
            if any(one.killed for one in taken):
                raise InterruptedByUserError("The calls were interrupted.") from error
            raise ResidentDiedError from error
        finally:
            self._give_back(about, taken, well=well)

    def _give_back(self, about: str, taken: Sequence[_Resident], *, well: bool) -> None:
        with self._lock:
            self._busy.pop(about, None)
            for one in taken:
                if well and not one.leaves and not self._ended:
                    self._idle.append(one)
                else:
                    one.close()

    def _accept(self, connection: socket.socket) -> None:
        process, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        with self._lock:
            if user != os.getuid() or self._ended:
                connection.close()
            else:
                self._idle.insert(0, _Resident(Connection(connection.detach()), process))

    def _keep(self, path: str) -> None:
        """Keeps the tasks in one session, whose workers are forked from one process, and in another one if that is of no use."""
        while not self._ended:
            with suppress(Exception), self._session() as session, ThreadPoolExecutor(self.count) as pool:
                keepers = [pool.submit(self._keep_one, session, path) for _ in range(self.count)]
                while not all(one.done() for one in keepers):
                    wait([one for one in keepers if not one.done()], return_when=FIRST_COMPLETED)
                    if not self._ended.wait(_LASTING_SECONDS) and not all(one.done() for one in keepers):
                        keepers = [pool.submit(self._keep_one, session, path) if one.done() else one for one in keepers]
            self._ended.wait(_LASTING_SECONDS)

    def _keep_one(self, session: SparkSession, path: str) -> None:
        """Runs one task after the other, as each ends when its worker does; until several have failed at once."""
        failures = 0
        while not self._ended and failures < _FAILURES:
            began = time.monotonic()
            try:
                session.range(0, 1, 1, 1).mapInArrow(partial(serve, path), "nothing INT").collect()
            except Exception as error:  # noqa: BLE001  # of the engine, of its worker's death
                _log.debug("resident_ended", cause=str(error))
            failures = 0 if time.monotonic() - began > _LASTING_SECONDS else failures + 1

    @contextmanager
    def _listening(self) -> Iterator[tuple[socket.socket, str]]:
        """Listens at a socket, and yields it with its path."""
        path = self._folder / f"residents-{os.getpid()}"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            with _near(str(path)) as near:
                server.bind(near)
            server.listen(self.count)
            self._server = server
            try:
                yield server, str(path)
            finally:
                path.unlink(missing_ok=True)


class _Resident:
    """A waiting task, as this process sees it.

    Attributes:
        leaves: it has ended itself after its answer.
        killed: it was, by :meth:`kill`.
    """

    def __init__(self, connection: Connection, process: int) -> None:
        self.leaves = self.killed = False
        self._connection = connection
        self._process = process

    def ask(self, called: bytes, rows: pa.Table) -> None:
        """Raises OSError if it has ended."""
        self._connection.send_bytes(called)
        self._connection.send_bytes(encoded(rows))

    def answer(self) -> Iterator[pa.Table]:
        """Yields the rows of its answer. Raises EOFError or OSError if it ends, RuntimeError if the function raises."""
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
        """Ends it after the work that it may have."""
        self._connection.close()


def serve(path: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Does what the process at a socket asks, until it ends. Called by Spark with an empty part of nothing; yields nothing."""
    for _ in batches:
        pass
    began = psutil.Process().memory_info().rss
    with suppress(EOFError, ConnectionError, FileNotFoundError):
        with socket.socket(socket.AF_UNIX) as raw, _near(path) as near:
            raw.connect(near)
            to_daemon = raw.detach()
        with Connection(to_daemon) as connection:
            leaves = False
            while not leaves:
                called, rows = connection.recv_bytes(), connection.recv_bytes()
                _do(connection, called, rows)
                leaves = worker.is_retired() or psutil.Process().memory_info().rss - began > _GROWTH_BYTES
                connection.send_bytes(_END + (b"1" if leaves else b""))
    yield from ()


def _do(connection: Connection, called: bytes, rows: bytes) -> None:
    """Sends what a function yields of rows; or its error, in place of the rest."""
    try:
        function = pickle.loads(called)
        with closing(function(pa.ipc.open_stream(rows))) as replies:
            for reply in replies:
                connection.send_bytes(_ROWS + encoded(reply))
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, a call of Spark shows it
        connection.send_bytes(_ERROR + str(error).encode("utf-8", "replace"))


@contextmanager
def _near(path: str) -> Iterator[str]:
    """Yields a short name of a socket: the path of one has at most 107 bytes."""
    folder = os.open(os.path.dirname(path), os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)
