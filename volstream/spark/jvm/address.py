"""Addresses of Spark: the home's own engine, or a remote server. Values only; communication is in
``connection``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from volstream.base import processes
from volstream.base.model.paths import without_secrets

#: The owner of an engine: the daemon, or a separate process that ends when unused.
Kind = Literal["daemon", "background"]


@dataclass(frozen=True)
class EngineAddress:
    """The engine of a home: its owner process and its JVM, both on this host.

    Attributes:
        port: the JVM's port on 127.0.0.1.
        token: token that clients must present.
        engine_started, jvm_started: names of the starts of the processes, because pids are reused.
        http_port: the daemon's HTTP port, or 0 if there is none.
        ending: True if it lets its clients finish and accepts no new ones.
        logs: folder of its logs. Its owner also writes there why the JVM ended.
        reason: why the daemon that owns it currently has no JVM. Empty if it has one, or is starting its
            first.
    """

    port: int
    token: str = field(repr=False)
    kind: Kind
    engine_pid: int
    engine_started: str
    jvm_pid: int
    jvm_started: str
    http_port: int = 0
    ending: bool = False
    logs: str = ""
    reason: str = ""

    def missing(self) -> str | None:
        """Returns which of the two processes died, or None if both are alive."""
        if not processes.is_alive(self.jvm_pid, self.jvm_started):
            return f"its JVM (pid {self.jvm_pid}) ended"
        if not processes.is_alive(self.engine_pid, self.engine_started):
            return f"its process (pid {self.engine_pid}) ended"
        return None


@dataclass(frozen=True)
class RemoteAddress:
    """A remote Spark Connect server.

    Attributes:
        url: in PySpark's format, ``sc://host:port/;token=...``. May contain a secret.
        conf: Spark settings of all sessions on the server.
    """

    url: str = field(repr=False)
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def server(self) -> str:
        """Scheme, host and port, for messages."""
        return without_secrets(self.url).partition(";")[0].rstrip("/")

    def missing(self) -> str | None:
        """Returns None: the server's processes are not visible from here."""
        return None


Address = EngineAddress | RemoteAddress
