"""Watches an engine from the client's side, and reports once when it is lost. The reaction is up to the gateway."""

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
_LOOK_SECONDS = 1.0
#: Interval of heartbeats.
_BEAT_SECONDS = 5.0


class Watch:
    """A thread that checks whether the engine's processes are alive, and sends Spark a heartbeat every few seconds.

    Heartbeats use the open sessions in turn, because Spark ends a session that was unused for an hour. An engine that no longer
    has one of them is lost: a server that was started anew has none.

    Args:
        stall_seconds: an engine that has not answered for this long is lost, not counting time in which this process itself
            was suspended.
        sessions: maps each open session's id to its server-side id; None: the server has not answered it yet.
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
        self._look = min(_LOOK_SECONDS, stall_seconds / 4)
        self._gap = min(_BEAT_SECONDS, stall_seconds / 4)
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
            with suppress(OSError):  # such as of a process without descriptors: it is asked again
                missing = self._address.missing()
            if missing is not None:
                return missing
            if silence > self._stall:
                return f"it has not answered for {self._stall:g} s"
            if beat is None and since_beat >= self._gap:
                session, server_side = self._next_session()
                beat, since_beat = heartbeat.send(self._stall, session, server_side), 0.0
            if self._stop.wait(self._look):
                return None
            now = time.monotonic()
            passed, before = min(now - before, 2 * self._look), now
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
