"""Why a JVM ended, in a few words: from its exit status, and from what it wrote into its logs.

Its owner alone knows the status. It writes the cause below the JVM's own last words, where clients find it.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from volstream.jvm import log_file
from volstream.jvm.address import Address, EngineAddress
from volstream.lifecycle import identity

#: Exit statuses: of ``-XX:+ExitOnOutOfMemoryError``, and of Spark for what no thread caught.
_HEAP = (3, 52)
_UNCAUGHT = (50, 51)

#: A JVM that was asked to end says so with 128 and the signal's number.
_ASKED = 128

#: Lines of a log that are looked through: the error, and the stack below it.
_LINES = 400

#: A client waits so long for the owner, which looks at its JVM every second, and so often looks itself.
_NOTE_SECONDS, _LOOK_SECONDS = 3.0, 0.1

_HEAP_EXHAUSTED = "its heap was exhausted (setting driver_memory)"
_STACK_OVERFLOW = "its stack overflowed (StackOverflowError)"


def cause_of(status: int, logs: Path) -> str:
    """Why the JVM of a home ended with this exit status, as a part of a sentence about the engine.

    Args:
        status: negative: by a signal, as of ``Popen.poll``.
        logs: the folder of its logs.
    """
    said = log_file.last_lines(log_file.jvm_log(logs), _LINES)
    if status in _HEAP or "Terminating due to java.lang.OutOfMemoryError" in said:
        return _HEAP_EXHAUSTED
    if status in _UNCAUGHT:
        said += log_file.last_lines(log_file.spark_log(logs), _LINES)
        overflow, memory = said.rfind("StackOverflowError"), said.rfind("OutOfMemoryError")
        if max(overflow, memory) >= 0:
            return _STACK_OVERFLOW if overflow > memory else _HEAP_EXHAUSTED
        return "an error that nothing caught ended it"
    if status == -signal.SIGABRT:
        return "its JVM crashed"
    number = -status if status < 0 else status - _ASKED
    try:
        return f"it was killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"its JVM ended with status {status}"


def remedy_of(cause: str) -> str:
    """What the user can do about an engine that was lost for this cause."""
    if cause == _HEAP_EXHAUSTED:
        return "Give it more: driver_memory in volstream.toml. The next command starts the engine again."
    if cause == _STACK_OVERFLOW:
        return "Give threads more: -Xss16m in jvm_options. The next command starts the engine again."
    if "SIGKILL" in cause:
        return "If nobody did that, memory ran out: lower driver_memory. The next command starts the engine again."
    return "Run `volstream engine status`; the next command starts the engine again."


def note(logs: Path, pid: int, cause: str) -> None:
    """Writes below the last words of a JVM why it ended. By its owner."""
    with log_file.jvm_log(logs).open("a", encoding="utf-8") as log:
        log.write(f"{_mark(pid)}{cause}\n")


def noted(address: Address) -> str | None:
    """Why the JVM at an address ended, as its owner noted; None where it lives, or nobody tells.

    Waits for an owner that lives: a client may see the end first.
    """
    if not isinstance(address, EngineAddress) or not address.logs:
        return None
    deadline = time.monotonic() + _NOTE_SECONDS
    while not identity.is_alive(address.jvm_pid, address.jvm_started):
        present = log_file.jvm_log(Path(address.logs))
        for log in (present, present.with_name(f"{present.name}.1")):  # the next JVM may have begun another
            found = re.search(f"^{re.escape(_mark(address.jvm_pid))}(.*)$", log_file.last_lines(log), re.MULTILINE)
            if found:
                return found[1]
        if time.monotonic() >= deadline or not identity.is_alive(address.engine_pid, address.engine_started):
            return None
        # Nothing is to be stopped here: what waits has failed already.
        time.sleep(_LOOK_SECONDS)
    return None


def _mark(pid: int) -> str:
    return f"volstream: the JVM {pid} ended: "
