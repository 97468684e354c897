"""Processes for tests that kill them, forked from one that has imported everything: a thousand of them start in a minute."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from volstream.base import faults

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["__main__", "tests.integration.ingest.writer", "tests.integration.files.kafka.reader"])


class Forked:
    """A process that calls a function.

    Args:
        fault: where it kills itself; see ``volstream.base.faults``.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any, fault: str = "") -> None:
        self._process = _processes.Process(target=_call, args=(fault, function, arguments))
        self._process.start()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> int | None:
        """Waits for its end, which somebody or something brings about; its exit status."""
        self._process.join(120)
        return self._process.exitcode

    def kill(self) -> None:
        """Idempotent."""
        self._process.kill()
        self._process.join(10)


def _call(fault: str, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ["VOLSTREAM_FAULT"] = fault
    importlib.reload(faults)
    function(*arguments)
