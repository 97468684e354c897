"""A queue of events in a folder: each file ``*.json`` is a message, and is removed once it is acknowledged.

Senders write under another name and rename, so that no half-written message is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from volstream.errors import InvalidValueError, QueueError
from volstream.plugins import Message, QueueSpec, parse

#: Interval of looks at the folder.
_LOOK_SECONDS = 0.05


class SpoolQueue:
    """Delivers each message once while it is started; those that were not acknowledged again after the next start."""

    def __init__(self, spec: QueueSpec) -> None:
        if not spec.name:
            raise InvalidValueError("A queue of the type spool needs the folder of its events.", "Give its queue_name.")
        self._folder = Path(spec.name)
        self._delivered: set[Path] = set()
        self._stopped = threading.Event()
        self._stopped.set()

    def start(self) -> None:
        """See EventQueue.start."""
        if not self._folder.is_dir():
            raise QueueError(f"The folder of events {self._folder} does not exist.", "Create it.")
        if self._stopped.is_set():
            self._delivered.clear()
            self._stopped.clear()

    def stop(self) -> None:
        """See EventQueue.stop."""
        self._stopped.set()

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """See EventQueue.receive."""
        deadline = time.monotonic() + wait_seconds
        while not self._stopped.is_set():
            new = self._new()[:limit]
            self._delivered.update(new)
            if new:
                return [Message.of(str(path), parse(path.read_bytes())) for path in new]
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            self._stopped.wait(min(_LOOK_SECONDS, remaining))
        return ()

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See EventQueue.acknowledge."""
        for message in messages:
            Path(message.receipt).unlink(missing_ok=True)
            self._delivered.discard(Path(message.receipt))

    def depth(self) -> int:
        """See EventQueue.depth."""
        return len(self._new())

    def _new(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*.json") if path not in self._delivered)
