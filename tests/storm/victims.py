"""The processes of a storm's home, found by a mark in their environment that all of them inherit."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress

import psutil

from tests.storm.schedule import Aim, Kind

#: Not one of volstream's own settings, which the JVM and what it starts do not inherit.
MARK = "STORM_OF_TESTS"


class Victims:
    """Processes that carry a mark.

    Args:
        mark: the value of :data:`MARK`.

    Attributes:
        killed: pids of those that were killed here.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.killed: set[int] = set()

    def all(self) -> Sequence[psutil.Process]:
        """Processes that are alive, oldest first."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process.create_time(), process.pid, process))
        return [process for _, _, process in sorted(found, key=lambda one: one[:2])]

    def of(self, kind: Kind, daemon: int | None, commands: Collection[int]) -> Sequence[psutil.Process]:
        """Those of a kind. ``daemon`` and ``commands``: pids of what was started by hand."""
        return [one for one in self.all() if _kind(one, daemon, commands) is kind]

    def aimed(self, aim: Aim, daemon: int | None, commands: Collection[int]) -> psutil.Process | None:
        """The process to hit; None if there is none of that kind."""
        found = self.of(aim.kind, daemon, commands)
        return found[int(aim.place * len(found))] if found else None

    def kill(self, process: psutil.Process) -> bool:
        """Whether it was still running."""
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.killed.add(process.pid)
        return True


def _kind(process: psutil.Process, daemon: int | None, commands: Collection[int]) -> Kind | None:
    if process.pid == daemon:
        return Kind.DAEMON
    if process.pid in commands:
        return Kind.COMMAND
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    if not words:
        return None
    if os.path.basename(words[0]) == "java":
        return Kind.JVM
    if "volstream.functions.serving" in words:
        return Kind.CHILD
    if "volstream.spark.engine" in words:
        return Kind.ENGINE
    return Kind.WORKER
