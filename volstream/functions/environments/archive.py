"""Environments of archives, as venv-pack and conda-pack make them: unpacked once per content."""

from __future__ import annotations

import hashlib
import posixpath
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from volstream.errors import DependencyError, InvalidValueError
from volstream.functions.environment import use_own_interpreter
from volstream.functions.processes import end_of, last_line

#: Suffixes of archives.
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

#: Links to the interpreter, which is elsewhere on this host.
_INTERPRETER = re.compile(r"(?:\./)?bin/python[0-9.]*")

#: Parts of a path with its links, of which an honest one has some dozens.
_MOST_PARTS = 10_000


def key_of(path: Path) -> str:
    """Returns a hash of an archive."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make(path: Path, place: Path, lock: int) -> None:
    """Unpacks an archive at ``place``: nothing outside of it, and no link out of it.

    Args:
        lock: see :func:`volstream.functions.environments.requirements.make`.

    Raises:
        InvalidValueError: it is not an archive, or not one of an environment.
        DependencyError: this version of Python cannot unpack it safely.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DependencyError(
            "This version of Python cannot unpack archives safely.", "Use 3.11.4 or newer, or give the unpacked folder."
        )
    try:
        with tarfile.open(path) as archive:
            _check_links(archive)
            archive.extractall(place, filter=_inside)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; others are of what is packed
            raise
        raise InvalidValueError(f"{path} cannot be unpacked: {error}.", "Make it with venv-pack or conda-pack.") from None
    use_own_interpreter(place)
    if not (place / "bin" / "python").exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise InvalidValueError(
            f"{path} has no environment of Python {version}.", "Make it with venv-pack or conda-pack, of that version."
        )
    unpack = place / "bin" / "conda-unpack"
    if unpack.is_file():
        command = [str(place / "bin" / "python"), str(unpack)]
        ended = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, pass_fds=(lock,))
        if ended.returncode:
            raise InvalidValueError(f"conda-unpack of {path} {end_of(ended.returncode)}{last_line(ended.stderr)}.")


def _check_links(archive: tarfile.TarFile) -> None:
    """Raises TarError for what is not inside once links are followed: older versions of :func:`tarfile.data_filter` lose their
    way in long chains of links.
    """
    links: dict[str, str] = {}
    members = archive.getmembers()
    for member in members:
        if member.issym() and not _leads_to_interpreter(member):
            links[posixpath.normpath(member.name)] = member.linkname
    for member in members:
        name = posixpath.normpath(member.name)
        folder = posixpath.dirname(name)
        if _followed(folder, links) != posixpath.normpath(folder):
            raise tarfile.TarError(f"{member.name!r} is reached by a link")
        if name in links:
            _followed(name, links)
        elif member.islnk():
            _followed(member.linkname, links)


def _followed(path: str, links: Mapping[str, str]) -> str:
    """Returns where a path in an archive leads. Raises TarError if it leaves the archive, or its links never end."""
    waiting, reached = [*reversed(path.split("/"))], list[str]()
    for _ in range(_MOST_PARTS):
        if not waiting:
            return "/".join(reached) or "."
        part = waiting.pop()
        if part == "..":
            if not reached:
                break
            reached.pop()
        elif part not in ("", "."):
            reached.append(part)
            target = links.get("/".join(reached))
            if target is not None:
                if target.startswith("/"):
                    break
                reached.pop()
                waiting += reversed(target.split("/"))
    raise tarfile.TarError(f"{path!r} leads out of the archive")


def _leads_to_interpreter(member: tarfile.TarInfo) -> bool:
    return member.issym() and member.linkname.startswith("/") and _INTERPRETER.fullmatch(member.name) is not None


def _inside(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
    """Leaves out the link to the interpreter of the host that packed. Raises tarfile.FilterError for what is not inside."""
    if _leads_to_interpreter(member):
        return None
    return tarfile.data_filter(member, place)
