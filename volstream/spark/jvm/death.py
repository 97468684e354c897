"""Determines why a JVM ended, in a few words, from its exit status and its logs.

Only its owner knows the status. The owner appends the cause to the JVM's log, where clients find it.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from volstream.base import processes
from volstream.errors import EngineError
from volstream.spark.jvm import log_file
from volstream.spark.jvm.address import Address, EngineAddress

#: Exit statuses of ``-XX:+ExitOnOutOfMemoryError``, and of Spark for an uncaught error.
_HEAP = (3, 52)
_UNCAUGHT = (50, 51)

#: A JVM that was asked to end exits with 128 plus the signal's number.
_ASKED = 128

#: Number of log lines that are searched: the error, and its stack.
_LINES = 400

#: How long a client waits for the owner, which checks its JVM every second; and how often the client looks.
_NOTE_SECONDS, _LOOK_SECONDS = 3.0, 0.1

_HEAP_EXHAUSTED = "its heap was exhausted (setting driver_memory)"
#: Noted by an engine that ends although clients use it.
ENDED = "it was asked to end, by a daemon that started or by `volstream engine stop`"
_STACK_OVERFLOW = "its stack overflowed (StackOverflowError)"


def cause_of(status: int, logs: Path) -> str:
    """Returns why a home's JVM ended with this exit status, as part of a sentence about the engine.

    Args:
        status: negative for a signal, as in ``Popen.poll``.
        logs: folder of its logs.
    """
    said = log_file.last_lines(log_file.jvm_log(logs), _LINES)
    if status in _HEAP or "Terminating due to java.lang.OutOfMemoryError" in said:
        return _HEAP_EXHAUSTED
    if status in _UNCAUGHT:
        said += log_file.last_lines(log_file.spark_log(logs), _LINES)
        overflow, memory = said.rfind("StackOverflowError"), said.rfind("OutOfMemoryError")
        if max(overflow, memory) >= 0:
            return _STACK_OVERFLOW if overflow > memory else _HEAP_EXHAUSTED
        return "it was ended by an uncaught error"
    if status == -signal.SIGABRT:
        return "its JVM crashed"
    number = -status if status < 0 else status - _ASKED
    try:
        return f"it was killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"its JVM ended with status {status}"


def remedy_of(cause: str) -> str:
    """Returns what the user can do about the loss of an engine for this cause."""
    if cause == _HEAP_EXHAUSTED:
        return "Increase driver_memory in volstream.toml. The next command restarts the engine."
    if cause == _STACK_OVERFLOW:
        return "Increase the stack size: -Xss16m in jvm_options. The next command restarts the engine."
    if cause == ENDED:
        return "Run the command again; first check whether it changed anything."
    if "SIGKILL" in cause:
        return "Unless someone killed it, memory ran out: lower driver_memory. The next command restarts the engine."
    return "The next command restarts the home's own engine. To check a server of spark_remote: volstream doctor --cluster"


def not_started(cause: str, lines: str, logs: Path) -> EngineError:
    """Returns the error of an engine that could not be started, with the last lines of its log."""
    said = f" Its last lines:\n{lines}\n" if lines else ""
    return EngineError(f"The Spark engine could not be started: {cause}.{said}", f"See the logs in {logs}.")


def note(logs: Path, pid: int, cause: str) -> None:
    """Appends to a JVM's log why it ended. Called by its owner."""
    with log_file.jvm_log(logs).open("a", encoding="utf-8") as log:
        log.write(f"{_mark(pid)}{cause}\n")


def noted_cause(address: Address) -> str | None:
    """Returns why the JVM at an address ended, as noted by its owner; None if it is alive, or there is no note.

    Waits for the owner if that is alive, because a client may notice the end first.
    """
    if not isinstance(address, EngineAddress) or not address.logs:
        return None
    deadline = time.monotonic() + _NOTE_SECONDS
    while not processes.is_alive(address.jvm_pid, address.jvm_started):
        present = log_file.jvm_log(Path(address.logs))
        for log in (present, present.with_name(f"{present.name}.1")):  # the next JVM may have started a new log
            match = re.search(f"^{re.escape(_mark(address.jvm_pid))}(.*)$", log_file.last_lines(log), re.MULTILINE)
            if match:
                return match[1]
        if time.monotonic() >= deadline or not processes.is_alive(address.engine_pid, address.engine_started):
            return None
        # There is nothing to stop here: the caller's operation has failed already.
        time.sleep(_LOOK_SECONDS)
    return None


def _mark(pid: int) -> str:
    return f"volstream: the JVM {pid} ended: "
