"""Process names by which the same host can determine whether the process is still alive."""

from __future__ import annotations

import os
import socket
import uuid

import psutil


def new_owner() -> str:
    """Returns a new name for this process and purpose: host, pid, process start time, and a random part."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start_time(os.getpid())}/{uuid.uuid4().hex[:8]}"


def host_of(owner: str) -> str:
    """Returns the host of an owner, the only part of the name that users see."""
    return owner.rsplit("/", 3)[0]


def is_gone(owner: str) -> bool:
    """True if ``owner`` was a process on this host that no longer exists. False if unknown."""
    try:
        host, pid, started, _ = owner.rsplit("/", 3)
        return host == socket.gethostname() and _start_time(int(pid)) != started
    except ValueError:
        return False


def is_alive(pid: int, started: float) -> bool:
    """True if the process ``pid`` that started at ``started`` (epoch seconds, as psutil reports) is still running."""
    return _start_time(pid) == f"{started:.2f}"


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


def start_time(pid: int) -> float:
    """Returns when ``pid`` started, in epoch seconds.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        raise ProcessLookupError(pid) from None


def _start_time(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
