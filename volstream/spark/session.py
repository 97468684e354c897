"""The client side of Spark: sessions on the home's engine or on a remote server, lent and returned.

Each is a remote session with its own settings, temporary views and modules. Opening a session and the
transport are in ``connection``, the mapping of errors in ``errors``. PySpark is imported with the first
session, because a gateway may never need one.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import re
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from volstream.base.log import get
from volstream.base.model.units import local_zone
from volstream.errors import EngineLostError
from volstream.spark.errors import engine_lost, means_engine_lost
from volstream.spark.jvm.address import Address, EngineAddress
from volstream.spark.jvm.command import LEXING, compile_in
from volstream.spark.jvm.log_file import noted_cause
from volstream.spark.loading import load

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.spark.connection import SparkConnection
    from volstream.spark.watch import Watch

_log = get("engine")

#: Maximum uses of a pooled session. Leftovers of its statements on the server end with it. On each executor,
#: the process that forks its Python workers stays until the executor ends.
_MAX_USES = 100
_MAX_USES_ON_OTHERS = 1000

#: Settings of sessions on foreign servers. The home's engine has them from the start.
_ON_OTHER_SERVERS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.readSideCharPadding": "false",
    # Otherwise Delta reads the state of a table in 50 tasks, most of them without rows.
    "spark.databricks.delta.snapshotPartitions": "2",
}

TIME_ZONE = "spark.sql.session.timeZone"

#: Settings that Delta makes when a session begins, and RESET removes. Tables with column mapping by id need
#: them.
OF_DELTA = {"spark.sql.parquet.fieldId.read.enabled": "true", "spark.sql.parquet.fieldId.write.enabled": "true"}
_LONGEST_PLAN = "spark.sql.maxPlanStringLength"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

#: The number of tasks into which Spark splits a range by default: the number of slots.
_SLOTS = re.compile(r"\bRange \(.*\bsplits=(\d+)")


@contextmanager
def whole_plans(session: SparkSession) -> Iterator[None]:
    """Lets a session describe its plans in full, for explaining one. The engine truncates them, because it
    describes all."""
    before = str(session.conf.get(_LONGEST_PLAN))
    session.conf.set(_LONGEST_PLAN, 1 << 30)
    try:
        yield
    finally:
        session.conf.set(_LONGEST_PLAN, before)


def misreading(session: SparkSession) -> Sequence[str]:
    """Returns the settings of :data:`LEXING` changed in a session. Takes half a millisecond."""
    from pyspark.sql.connect.proto import ConfigRequest, KeyValue

    request = ConfigRequest.GetWithDefault(pairs=[KeyValue(key=key, value="false") for key in LEXING])
    found = session.client.config(ConfigRequest.Operation(get_with_default=request))
    return [key for key, value in found.pairs if str(value).lower() != "false"]


def pin(session: SparkSession) -> None:
    """Restores the settings of :data:`LEXING` changed in a session."""
    for key in misreading(session):  # setting a deprecated one prints a warning
        session.conf.set(key, "false")


class SparkGateway:
    """The sessions of this process on one engine. Attaches to it when the first session is requested.
    Thread-safe.

    From the first session on, a thread watches the engine. When it is lost, all connections are closed, so
    that blocked calls fail immediately, and the gateway lends no more sessions. To continue, create a new
    gateway.

    Args:
        attach: finds the engine, and may start it. Called once, unless it raises. The constructor does no
            I/O.
        stall_seconds: an engine that has not responded for this long is lost.
    """

    def __init__(self, attach: Callable[[], Address], *, stall_seconds: float) -> None:
        self._attach = attach
        self._address: Address | None = None
        self._stall_seconds = stall_seconds
        self._attaching = threading.Lock()
        self._lock = threading.Lock()
        self._open: dict[str, SparkConnection] = {}
        self._released: set[str] = set()  # open sessions that are being released
        # True for statements, False for work
        self._by_thread: dict[tuple[threading.Thread, bool], SparkConnection] = {}
        # Pools of interpreting and of compiling sessions, with the number of uses of each.
        self._idle: dict[bool, list[tuple[SparkConnection, int]]] = {False: [], True: []}
        self._watch: Watch | None = None
        self._ended: str | None = None
        self._on_server: dict[str, str] | None = None  # settings of sessions on a foreign server
        self._brought: dict[str, set[Path]] = {}  # archives by session id
        self._left: dict[threading.Thread, Path] = {}

    @property
    def attached(self) -> bool:
        """True if the engine was requested."""
        return self._address is not None

    @property
    def server_slots(self) -> int | None:
        """Task slots of a foreign server, or None before the first session, or if there was no executor."""
        found = (self._on_server or {}).get(_SHUFFLE_PARTITIONS)
        return None if found is None else int(found)

    @property
    def lost(self) -> str | None:
        """The reason why the engine can no longer be used, or None if it can."""
        return self._ended

    @contextmanager
    def fresh(self) -> Iterator[SparkSession]:
        """Yields a new session with its own settings and views. Statements still running at the end are
        ended.

        Raises:
            EngineLostError: the engine is or was lost, even if the block swallowed the error.
            EngineError, JavaError: there is no engine to attach to.
        """
        with self._until_released(self._new()) as session:
            yield session

    @contextmanager
    def copied(self, session: Any) -> Iterator[SparkSession]:
        """Yields a new session with another session's current settings (except :data:`LEXING`), views and
        functions.

        Raises:
            EngineLostError: see :meth:`fresh`.
        """
        from volstream.spark import connection as connections

        with self.explaining():
            address = self._attached_address()
            connection = self._watch_connection(connections.copied(session, address), address)
        with self._until_released(connection) as copied:
            pin(copied)
            yield copied

    @contextmanager
    def pooled(self, *, compiled: bool = False) -> Iterator[SparkSession]:
        """Yields a session that may have been used before, with the settings and views left by earlier
        blocks.

        Spark compiles everything again for each new session. A session whose block raised is not reused,
        because a statement may still be running in it.

        Args:
            compiled: yield a session in which Spark compiles. See :mod:`volstream.spark.jvm.command`.

        Raises:
            EngineLostError: see :meth:`fresh`.
        """
        with self._lock:
            idle = self._idle[compiled] if self._ended is None else []
            connection, uses = idle.pop() if idle else (None, 0)
        if connection is None:
            connection = self._new()
        try:
            with self.explaining():
                if compiled and not uses:
                    compile_in(connection.session)
                yield connection.session
        except BaseException:
            self._release(connection)
            raise
        most = _MAX_USES if isinstance(self._address, EngineAddress) else _MAX_USES_ON_OTHERS
        with self._lock:
            keep = uses + 1 < most and self._ended is None
            if keep:
                self._idle[compiled].append((connection, uses + 1))
        if not keep:
            self._release(connection)

    def take_over(self, path: Path) -> None:
        """Makes this thread take over an earlier process's session, and leave it to the next one.

        See :mod:`volstream.spark.connection`. Call it before :meth:`session`. Has no effect on a foreign
        server.
        """
        self._left[threading.current_thread()] = path

    def session(self) -> SparkSession:
        """Returns this thread's session for work. It reads times without a zone as UTC.

        Created by the first call, released by :meth:`close` or after the thread's end.

        Raises:
            EngineLostError: the engine was lost, or the gateway is closed.
            EngineError, JavaError: see :meth:`fresh`.
        """
        thread = threading.current_thread()
        return self._existing(thread, False) or self._open_for(thread, False, lambda: self._new(self._left.pop(thread, None)))

    def statements(self) -> SparkSession:
        """Returns this thread's session for a user's statements. It reads times without a zone as local. See
        :meth:`session`."""
        thread = threading.current_thread()
        return self._existing(thread, True) or self._open_for(thread, True, self._new_local)

    def zone(self) -> str | None:
        """Returns the time zone set in Spark by this thread's statements, or None for the local one."""
        session = self._existing(threading.current_thread(), True)
        found = None if session is None else session.conf.get(TIME_ZONE)
        return None if found == local_zone() else found

    def _existing(self, thread: threading.Thread, of_statements: bool) -> SparkSession | None:
        with self._lock:
            present = self._by_thread.get((thread, of_statements))
        return None if present is None or self._ended is not None else present.session

    def _open_for(self, thread: threading.Thread, of_statements: bool, new: Callable[[], SparkConnection]) -> SparkSession:
        connection = new()
        with self._lock:
            ended = [other for other in self._by_thread if not other[0].is_alive()]
            abandoned = [self._by_thread.pop(other) for other in ended]
            self._by_thread[thread, of_statements] = connection
        for other in abandoned:
            self._release(other)
        return connection.session

    def _new_local(self) -> SparkConnection:
        connection = self._new()
        zone = local_zone()
        if zone != "UTC":  # the default of all sessions
            with self.explaining():
                connection.session.conf.set(TIME_ZONE, zone)
        return connection

    def close(self) -> None:
        """Releases all sessions and stops watching. Idempotent."""
        with self._lock:
            self._ended = self._ended or "its gateway was closed"
            connections = list(self._open.values())
            self._by_thread.clear()
            for idle in self._idle.values():
                idle.clear()
        for connection in connections:
            self._release(connection)
        if self._watch is not None:
            self._watch.stop()

    def bring(self, session: SparkSession, archive: Path) -> str:
        """Makes a session's workers on a remote server unpack an archive. Returns the folder's name for
        ``SparkFiles.get``."""

        name = archive.name.partition(".")[0]
        brought = self._brought.setdefault(session.session_id, set())
        if archive not in brought:
            with self.explaining():
                bring_folder(session, archive, name)
            brought.add(archive)
        return name

    @contextmanager
    def _until_released(self, connection: SparkConnection) -> Iterator[SparkSession]:
        try:
            with self.explaining():
                yield connection.session
        finally:
            self._release(connection)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Replaces errors caused by the loss of the engine with an EngineLostError with the reason."""
        try:
            yield
        except Exception as error:
            reason = self._reason(error) if self.attached else None
            if reason is None:
                raise
            raise engine_lost(reason) from error

    def _reason(self, error: Exception) -> str | None:
        """Returns why the engine died if that caused the error, or None if not, or if the reason is
        unknown."""
        from volstream.spark.connection import BROKEN

        if not isinstance(error, (*BROKEN, EngineLostError)):
            return None
        if self._ended is None and means_engine_lost(error) and self._address is not None:
            return noted_cause(self._address)
        return self._ended

    def _attached_address(self) -> Address:
        """Returns the engine's address. Attaches to it on the first call, while concurrent callers wait."""
        with self._attaching:
            if self._address is None:
                if self._ended is not None:
                    raise engine_lost(self._ended)
                address = self._attach()
                load()
                self._address = address
            return self._address

    def _new(self, left: Path | None = None) -> SparkConnection:
        address = self._attached_address()
        if isinstance(address, EngineAddress) and left is not None:
            from volstream.spark.connection import reattach

            return self._watch_connection(reattach(address, left), address)
        from volstream.spark.connection import opened

        connection = self._watch_connection(opened(address), address)
        if isinstance(address, EngineAddress):
            return connection

        try:
            with self.explaining():
                self._adjust(connection.session, address.conf)
                bring_code(connection.session)
        except BaseException:
            self._release(connection)
            raise
        return connection

    def _adjust(self, session: SparkSession, conf: Mapping[str, str]) -> None:
        """Makes the required settings and the home's settings in a session on a foreign server."""
        if self._on_server is None:
            # Explaining needs no executor. Without executors, Spark assumes two slots.
            numbers: Any = session.range(1 << 20)
            found = _SLOTS.search(numbers._explain_string())
            slots = {_SHUFFLE_PARTITIONS: found.group(1)} if found else {}
            values = {**_ON_OTHER_SERVERS, **slots, **{key: value for key, value in conf.items() if key not in LEXING}}
            self._on_server = {key: value for key, value in values.items() if session.conf.isModifiable(key)}
            for key in sorted(conf.keys() - self._on_server.keys()):
                if session.conf.get(key, None) != conf[key]:
                    _log.warning("setting_ignored", setting=f"spark_conf.{key}", cause="it can only be set on the Spark server")
        for key, value in self._on_server.items():
            session.conf.set(key, value)
        pin(session)

    def _watch_connection(self, connection: SparkConnection, address: Address) -> SparkConnection:
        """Starts watching a connection, unless the engine was lost."""
        from volstream.spark.watch import Watch

        with self._lock:
            if self._ended is not None:
                connection.drop()
                raise engine_lost(self._ended)
            self._open[connection.session.session_id] = connection
            if self._watch is None:
                self._watch = Watch(address, self._stall_seconds, self._in_use, self._on_lost)
                self._watch.start()
        return connection

    def _in_use(self) -> dict[str, str | None]:
        """Maps each open session's id to its server-side id (None before the first response), without
        sessions being released."""
        with self._lock:
            return {
                id: connection.session.client._server_session_id
                for id, connection in self._open.items()
                if id not in self._released
            }

    def _release(self, connection: SparkConnection) -> None:
        with self._lock:
            if connection.session.session_id not in self._open:
                return  # lost and already closed
            self._released.add(connection.session.session_id)
        # It stays in the list meanwhile, so that a release without response ends when the engine is lost.
        connection.release()
        with self._lock:
            self._open.pop(connection.session.session_id, None)
            self._released.discard(connection.session.session_id)
            self._brought.pop(connection.session.session_id, None)

    def _on_lost(self, reason: str) -> None:
        reason = (noted_cause(self._address) if self._address is not None else None) or reason
        with self._lock:
            self._ended = self._ended or reason
            connections = list(self._open.values())
            self._open.clear()
        for connection in connections:
            connection.drop()


# What sessions bring to a foreign Spark, whose workers may lack volstream: its code, and functions'
# environments. The home's engine does not need this: its workers run this interpreter.

#: Every file of the archive has the earliest time that zip can store, so that equal code gives equal
#: archives.
_TIME = (1980, 1, 1, 0, 0, 0)


def bring_code(session: SparkSession) -> None:
    """Makes volstream importable in a session's workers, ahead of an installed one, which may be older."""
    session.addArtifact(_code(), pyfile=True)


def bring_folder(session: SparkSession, archive: Path, name: str) -> None:
    """Makes a session's workers unpack an archive. ``SparkFiles.get`` finds it by this name."""
    session.addArtifact(f"{archive}#{name}", archive=True)


@functools.cache
def _code() -> str:
    """Returns the path of an archive of the package. It lives as long as this process."""
    root = Path(__file__).parents[1]
    folder = tempfile.mkdtemp(prefix="volstream-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    draft, hashed = Path(folder, "draft"), hashlib.sha256()
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(root.rglob("*.py")):
            name, code = f"{root.name}/{path.relative_to(root)}", path.read_bytes()
            archive.writestr(zipfile.ZipInfo(name, _TIME), code, zipfile.ZIP_DEFLATED)
            hashed.update(name.encode() + b"\0" + code)
    return str(draft.rename(Path(folder, f"volstream-{hashed.hexdigest()[:16]}.zip")))
