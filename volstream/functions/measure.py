"""Measures the time and memory of a function's calls. Runs on executors."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass
class CallCost:
    """The cost of a call.

    Attributes:
        seconds: None: not measured.
        memory: bytes by which the process's resident memory grew at its peak; None: not measured, or unknown on this system.
    """

    seconds: float | None = None
    memory: int | None = None


@contextmanager
def measured(*, memory: bool) -> Iterator[CallCost]:
    """Measures the block, even if it raises.

    Args:
        memory: also measure memory, which takes some tenths of a millisecond or, after a call that freed much, more; none of it
            counts towards the block. Linux only, because only there can a process reset its own peak.
    """
    cost = CallCost()
    before = _reset_peak() if memory else None
    began = time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds = time.perf_counter() - began
        if before is not None:
            cost.memory = max(0, _status("VmHWM") - before)


def _reset_peak() -> int | None:
    """Makes the current resident memory the peak, and returns it; None if the system does not support that."""
    if not sys.platform.startswith("linux"):
        return None
    # Memory freed by earlier calls would serve the next one, which would seem to need none. musl keeps no freed memory, and has
    # no such function.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return _status("VmRSS")
    except OSError:  # not permitted in some containers
        return None


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(name))
    return int(line.split()[1]) * 1024
