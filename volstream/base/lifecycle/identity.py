"""Process names by which the same host can determine whether the process is still alive."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from functools import cache
from pathlib import Path

import psutil


def new_owner() -> str:
    """Returns a new name for this process and purpose: host, pid, process start time, and a random part."""
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}/{uuid.uuid4().hex[:8]}"


def host_of(owner: str) -> str:
    """Returns the host of an owner, the only part of the name that users see."""
    return owner.rsplit("/", 3)[0]


def is_gone(owner: str) -> bool:
    """True if ``owner`` was a process on this host that no longer exists. False if unknown."""
    try:
        host, pid, started, _ = owner.rsplit("/", 3)
        return host == socket.gethostname() and _started(int(pid)) != started
    except ValueError:
        return False


def is_alive(pid: int, started: str) -> bool:
    """True if the process ``pid`` whose start was named ``started`` is still running."""
    return _started(pid) == started


def listens(pid: int, port: int) -> bool:
    """True if the process ``pid``, of this user, listens on this TCP port itself; another process may have taken the port."""
    return _has_connection(pid, port, psutil.CONN_LISTEN)


def is_connected(pid: int, port: int) -> bool:
    """True if there is a connection to this TCP port of the process ``pid``, of this user."""
    return _has_connection(pid, port, psutil.CONN_ESTABLISHED)


def _has_connection(pid: int, port: int, status: str) -> bool:
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(one.status == status and one.laddr and one.laddr.port == port for one in connections)


def name_of_start(pid: int) -> str:
    """Returns a name for the start of ``pid``, which no other process that gets the pid has.

    Raises:
        ProcessLookupError: there is no such process.
    """
    started = _started(pid)
    if started is None:
        raise ProcessLookupError(pid)
    return started


def seconds_up(pid: int) -> float:
    """Returns the time since ``pid`` started; 0 if there is no such process."""
    try:
        return max(0.0, time.time() - psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return 0.0


def _started(pid: int) -> str | None:
    if sys.platform == "linux":  # psutil's time moves when the clock is set
        try:
            state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if state in b"ZX" else f"{_boot()}.{int(fields[18])}"  # in ticks of the clock since the boot
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


@cache
def _boot() -> str:
    """Returns a name for the boot of this machine; empty: it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return ""
