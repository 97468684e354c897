"""Why a JVM ended, in a few words: from its exit status, and from what it wrote into its logs."""

from __future__ import annotations

import signal
from pathlib import Path

from volstream.spark import jvm_log

#: Exit statuses: of ``-XX:+ExitOnOutOfMemoryError``, and of Spark for what no thread caught.
_HEAP = (3, 52)
_UNCAUGHT = (50, 51)

#: A JVM that was asked to end says so with 128 and the signal's number.
_ASKED = 128

#: Lines of a log that are looked through: the error, and the stack below it.
_LINES = 400

_HEAP_EXHAUSTED = "its heap was exhausted (setting driver_memory)"
_STACK_OVERFLOW = "its stack overflowed (StackOverflowError)"


def cause_of(status: int, logs: Path) -> str:
    """Why the JVM of a home ended with this exit status, as a part of a sentence about the engine.

    Args:
        status: negative: by a signal, as of ``Popen.poll``.
        logs: the folder of its logs.
    """
    said = jvm_log.last_lines(jvm_log.jvm_log(logs), _LINES)
    if status in _HEAP or "Terminating due to java.lang.OutOfMemoryError" in said:
        return _HEAP_EXHAUSTED
    if status in _UNCAUGHT:
        said += jvm_log.last_lines(jvm_log.spark_log(logs), _LINES)
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
