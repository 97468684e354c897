"""Watches an engine from the client side, and reports once when it is lost. The gateway reacts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from volstream.base.threads import Stop
from volstream.spark.connection import Heartbeat, HeartbeatRequest, builder_for
from volstream.spark.errors import FORGOTTEN, SESSION_ENDED
from volstream.spark.jvm.address import Address

#: Interval of process checks.
_CHECK_SECONDS = 1.0
#: Interval of heartbeats.
_BEAT_SECONDS = 5.0


class Watch:
    """A thread that checks whether the engine's processes are alive, and sends Spark a heartbeat every few
    seconds.

    Heartbeats use the open sessions in turn, because Spark ends a session after an hour without use. An
    engine that no longer has one of them is lost: a restarted server has none of the sessions.

    Args:
        stall_seconds: an engine that has not responded for this long is lost. Does not count time in which
            this process itself was suspended.
        sessions: returns each open session's server-side id by session id. None before the server's first
            response.
        lost: called at most once, in this thread, with the reason.
    """

    def __init__(
        self,
        address: Address,
        stall_seconds: float,
        sessions: Callable[[], Mapping[str, str | None]],
        lost: Callable[[str], None],
    ) -> None:
        self._address = address
        self._stall = stall_seconds
        self._sessions = sessions
        self._lost = lost
        self._interval = min(_CHECK_SECONDS, stall_seconds / 4)
        self._beat_interval = min(_BEAT_SECONDS, stall_seconds / 4)
        self._stop = Stop()
        self._turn = 0

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._run, name="engine-watch", daemon=True).start()

    def stop(self) -> None:
        """Makes the thread end soon. Idempotent."""
        self._stop.set()

    def _run(self) -> None:
        heartbeat = Heartbeat(builder_for(self._address))
        try:
            reason = self._watch(heartbeat)
        finally:
            heartbeat.close()
        if reason is not None:
            self._lost(reason)

    def _watch(self, heartbeat: Heartbeat) -> str | None:
        """Returns why the engine is lost, or None if asked to stop."""
        beat: HeartbeatRequest | None = None
        session: str | None = None
        silence = since_beat = 0.0
        before = time.monotonic()
        while True:
            missing = None
            with suppress(OSError):  # for example in a process without free descriptors; checked again
                missing = self._address.missing()
            if missing is not None:
                return missing
            if silence > self._stall:
                return f"it has not answered for {self._stall:g} s"
            if beat is None and since_beat >= self._beat_interval:
                session, server_side = self._next_session()
                beat, since_beat = heartbeat.send(self._stall, session, server_side), 0.0
            if self._stop.wait(self._interval):
                return None
            now = time.monotonic()
            passed, before = min(now - before, 2 * self._interval), now
            since_beat += passed
            silence += passed
            if beat is not None and beat.over():
                if beat.answered():
                    silence = 0.0
                if SESSION_ENDED in beat.refusal() and session in self._sessions():
                    return FORGOTTEN
                beat = None

    def _next_session(self) -> tuple[str | None, str | None]:
        sessions = [*self._sessions().items()]
        if not sessions:
            return None, None
        self._turn += 1
        return sessions[self._turn % len(sessions)]
