"""This process and others: names by which their lives can be told, descriptors, disks, and points at which
tests kill."""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
import uuid
from functools import cache
from pathlib import Path

from volstream.errors import DiskError

# Process names by which the same host can determine whether the process is still alive.


def new_owner() -> str:
    """Returns a new name for this process and purpose: host, pid, process start time, and a random part."""
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}/{uuid.uuid4().hex[:8]}"


def host_of(owner: str) -> str:
    """Returns the host of an owner, the only part of the name that users see."""
    return owner.rsplit("/", 3)[0]


def pid_of(owner: str) -> int:
    """Returns the process id of an owner on its host."""
    return int(owner.rsplit("/", 3)[1])


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
    """True if the process ``pid``, of this user, listens on this TCP port itself; another process may have
    taken the port."""
    return _has_connection(pid, port, "LISTEN")


def is_connected(pid: int, port: int) -> bool:
    """True if there is a connection to this TCP port of the process ``pid``, of this user."""
    return _has_connection(pid, port, "ESTABLISHED")


def _has_connection(pid: int, port: int, status: str) -> bool:
    import psutil  # late: the environments of functions lack it

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
    import psutil

    try:
        return max(0.0, time.time() - psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return 0.0


def _started(pid: int) -> str | None:
    try:  # psutil's time moves when the clock is set
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in b"ZX" else f"{_boot()}.{int(fields[18])}"  # in ticks of the clock since the boot


@cache
def _boot() -> str:
    """Returns a name for the boot of this machine; empty: it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return ""


# How many files and connections a process may have open.

#: A server's own need is small; those who connect to it take the rest for a moment.
_DESCRIPTORS = 16_384


def raise_descriptor_limit() -> None:
    """Lets this process open as many files and connections as a server may need, up to the system's hard
    limit. Idempotent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    maximum = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, maximum), hard))


# Disks: errors of those that accept no more data, full or read-only, and what makes files survive a power
# cut.

_FULL = (errno.ENOSPC, errno.EDQUOT)

#: Texts of these errors in messages of libraries that omit the number.
_FULL_TEXTS = (*map(os.strerror, _FULL), "ENOSPC", "disk is full")
_SEALED_TEXTS = (os.strerror(errno.EROFS), "EROFS")


def disk_error(error: BaseException | str, what: str) -> DiskError | None:
    """Returns the error for a full or read-only disk if ``error`` or its text indicates one; otherwise None.

    Args:
        what: name of what could not be written.
    """
    number, text = getattr(error, "errno", None), str(error)
    if number in _FULL or any(fragment in text for fragment in _FULL_TEXTS):
        return DiskError(f"No space left on the disk of {what}.", "Free space, then try again.")
    if number == errno.EROFS or any(fragment in text for fragment in _SEALED_TEXTS):
        return read_only_error(what)
    return None


def read_only_error(what: str) -> DiskError:
    """Returns the error for a read-only disk, to which ``what`` could not be written."""
    return DiskError(f"The disk of {what} is read-only.", "See the system's log, and mount it writable.")


def is_read_only(path: Path) -> bool:
    """True if an existing file or folder is on a read-only disk."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def user_name() -> str:
    """Returns the name of the user whose rights this process has, or the number if it has no name."""
    import pwd  # late: it is for Unix alone

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def sync_to_disk(path: str) -> None:
    """Makes a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
