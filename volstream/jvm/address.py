"""Where a Spark to talk to is: the home's own engine, or a server elsewhere. Values; talking is ``channel``'s."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from volstream.lifecycle import identity

#: Who owns the engine: the daemon, or a process of its own that ends when nobody uses it.
Kind = Literal["daemon", "background"]


@dataclass(frozen=True)
class EngineAddress:
    """The engine of a home: the process that owns it and its JVM, both of this host.

    Attributes:
        port: where the JVM listens, on 127.0.0.1.
        token: what a client must show.
        engine_started, jvm_started: when the processes began, as psutil tells; pids are used again.
        http_port: the daemon's HTTP port; 0 where there is none.
        ending: it finishes for those who use it, and takes nobody new.
        logs: the folder of its logs, where its owner also writes why the JVM ended.
    """

    port: int
    token: str = field(repr=False)
    kind: Kind
    engine_pid: int
    engine_started: float
    jvm_pid: int
    jvm_started: float
    http_port: int = 0
    ending: bool = False
    logs: str = ""

    def missing(self) -> str | None:
        """Which of the two processes is gone; None while both live."""
        if not identity.is_alive(self.jvm_pid, self.jvm_started):
            return f"its JVM (pid {self.jvm_pid}) ended"
        if not identity.is_alive(self.engine_pid, self.engine_started):
            return f"its process (pid {self.engine_pid}) ended"
        return None


@dataclass(frozen=True)
class RemoteAddress:
    """A Spark Connect server elsewhere.

    Attributes:
        url: as PySpark takes it, ``sc://host:port/;token=...``; may hold a secret.
    """

    url: str = field(repr=False)

    def missing(self) -> str | None:
        """None: its processes cannot be seen from here."""
        return None


Address = EngineAddress | RemoteAddress
