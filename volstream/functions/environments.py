"""Separate packages for functions: environments of requirements or archives, built once per content and kept
in the home."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from volstream.base.model.paths import without_secrets
from volstream.base.privacy import make_directory
from volstream.errors import DependencyError, InvalidValueError, NotFoundError
from volstream.functions.processes import Environment, end_of, last_line, use_own_interpreter

# Environments from archives, as venv-pack and conda-pack create them. Unpacked once per content.

#: Suffixes of archives.
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

#: Links to the interpreter, whose path differs on this host.
_INTERPRETER = re.compile(r"(?:\./)?bin/python[0-9.]*")

#: Maximum number of parts in a path with its links followed. An honest path has some dozens.
_MAX_PARTS = 10_000


def archive_key(path: Path) -> str:
    """Returns a hash of an archive."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack_archive(path: Path, place: Path, lock: int) -> None:
    """Unpacks an archive at ``place``. Nothing is written outside of it, and no link leads out of it.

    Args:
        lock: see :func:`volstream.functions.environments.make`.

    Raises:
        InvalidValueError: it is not an archive of an environment.
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
        # From the disk; others are from the content.
        if isinstance(error, OSError) and error.errno is not None:
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
        process = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, pass_fds=(lock,))
        if process.returncode:
            raise InvalidValueError(f"conda-unpack of {path} {end_of(process.returncode)}{last_line(process.stderr)}.")


def _check_links(archive: tarfile.TarFile) -> None:
    """Raises TarError for members that are outside once links are followed.

    Older versions of :func:`tarfile.data_filter` fail at long chains of links.
    """
    links: dict[str, str] = {}
    members = archive.getmembers()
    for member in members:
        if member.issym() and not _leads_to_interpreter(member):
            links[posixpath.normpath(member.name)] = member.linkname
    for member in members:
        name = posixpath.normpath(member.name)
        folder = posixpath.dirname(name)
        if _resolve_links(folder, links) != posixpath.normpath(folder):
            raise tarfile.TarError(f"{member.name!r} is reached by a link")
        if name in links:
            _resolve_links(name, links)
        elif member.islnk():
            _resolve_links(member.linkname, links)


def _resolve_links(path: str, links: Mapping[str, str]) -> str:
    """Returns the target of a path in an archive. Raises TarError if it leaves the archive, or its links
    never end."""
    remaining, reached = [*reversed(path.split("/"))], list[str]()
    for _ in range(_MAX_PARTS):
        if not remaining:
            return "/".join(reached) or "."
        part = remaining.pop()
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
                remaining += reversed(target.split("/"))
    raise tarfile.TarError(f"{path!r} leads out of the archive")


def _leads_to_interpreter(member: tarfile.TarInfo) -> bool:
    return member.issym() and member.linkname.startswith("/") and _INTERPRETER.fullmatch(member.name) is not None


def _inside(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
    """Leaves out the link to the interpreter of the original host. Raises tarfile.FilterError for members
    outside."""
    if _leads_to_interpreter(member):
        return None
    return tarfile.data_filter(member, place)


# Environments from requirements files: resolved once, with hashes, and installed from the resolution.
#
# ``uv`` does both if it exists, else pip.

#: The lock file beside the installed packages: each package with its version and hashes, and the options of
#: the file.
LOCK = "requirements.lock"

#: A line that includes another file, whose content counts, too.
_INCLUDED = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)")

#: A line with the sources of packages, or their selection, which applies to the lock file, too.
_OPTION = re.compile(
    r"\s*(?:-i|-f|--(?:index-url|extra-index-url|find-links|no-index|pre|prefer-binary|no-binary|only-binary|trusted-host))\b"
)
_LINKS = re.compile(r"(\s*(?:-f|--find-links)[ =]?\s*)(\S+)")

#: What may follow a package: a comment, or options such as hashes.
_AFTER = re.compile(r"(?:^|\s)#.*|\s--[a-z].*")

#: A path or URL of a package, with its extras, fragment and marker.
_PATH = re.compile(r"(?:-e\s+|--editable[ =]\s*)?(?P<path>[^;]+?)\s*(?:\[[^\]]*\])?\s*(?:;.*)?")

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")

_URL = re.compile(r"[a-z+]+://[^\s'\"]+", re.IGNORECASE)

#: Number of the installer's last lines in an error.
_LINES = 12


def requirements_key(path: Path) -> str:
    """Returns a hash of a file's requirements for this version of Python, on this kind of machine."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sysconfig.get_platform()}\n".encode())
    for file, line in _lines(path):
        digest.update(f"{line}\n".encode("utf-8", "surrogateescape"))
        requirement = _AFTER.sub("", _VARIABLE.sub(lambda found: os.environ.get(found[1], found[0]), line)).strip()
        archive = _archive(requirement, file.parent, path.parent)
        if archive is not None:
            digest.update(archive.read_bytes())
        elif not requirement or _is_named(requirement):
            continue
        digest.update(f"{file.parent}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _archive(requirement: str, *folders: Path) -> Path | None:
    """Returns the file to which a requirement refers by path or URL, if it exists.

    Args:
        folders: candidate bases of a relative path, because uv and pip differ.
    """
    path = _PATH.fullmatch(requirement)
    places = [] if path is None else [path["path"]]
    with suppress(InvalidRequirement):
        places.append(Requirement(requirement).url or "")
    for place in filter(None, places):
        url = urlsplit(place)
        path_name = unquote(url.path) if url.scheme == "file" else place.partition("#")[0]
        for folder in folders:
            with suppress(OSError):  # not a name for a file: too long
                if (folder / path_name).is_file():
                    return folder / path_name
    return None


def _is_named(requirement: str) -> bool:
    """Returns whether it is a package by name, which has the same meaning in any folder."""
    try:
        return Requirement(requirement).url is None
    except InvalidRequirement:
        return False


def install_requirements(path: Path, place: Path, lock: int) -> None:
    """Creates a virtual environment at ``place`` with the packages of a file.

    Args:
        lock: descriptor of the lock. The installer inherits it, so the lock stays held if the installer
            outlives this process.

    Raises:
        DependencyError: the packages cannot be resolved or installed.
    """
    uv = shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))
    installer = _Installer(path, place, lock)
    resolved = installer.with_uv(uv) if uv else installer.with_pip()
    options = [_anywhere(file, line) for file, line in _lines(path) if _OPTION.match(line)]
    lock_file = place / LOCK
    lock_file.write_text("\n".join([*options, resolved]), encoding="utf-8")
    if resolved.strip():
        command = [uv, "pip", "install", "--quiet", "--python", installer.python] if uv else [*installer.pip, "install"]
        installer.run([*command, "--no-deps", "--require-hashes", "-r", str(lock_file)])


class _Installer:
    """Runs the commands that build one environment."""

    def __init__(self, path: Path, place: Path, lock: int) -> None:
        self._path, self._place, self._lock = path, place, lock
        self.python = str(place / "bin" / "python")
        self.pip = [sys.executable, "-m", "pip", "--quiet", "--python", self.python]

    def with_uv(self, uv: str) -> str:
        """Creates the virtual environment. Returns the resolved packages, one per line with its hashes."""
        self.run([uv, "venv", "--quiet", "--python", sys.executable, str(self._place)])
        resolved = self._place / f"{LOCK}.resolved"
        plain = ["--quiet", "--no-header", "--no-annotate", "--generate-hashes"]
        self.run([uv, "pip", "compile", *plain, "--python", self.python, "-o", str(resolved), str(self._path)])
        text = resolved.read_text(encoding="utf-8")
        resolved.unlink()
        return text

    def with_pip(self) -> str:
        """Does the same as :meth:`with_uv`."""
        self.run([sys.executable, "-m", "venv", "--without-pip", str(self._place)])
        report = self._place / "report.json"
        options = ["--dry-run", "--ignore-installed", "--report", str(report), "-r", str(self._path)]
        self.run([*self.pip, "install", *options])
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
        report.unlink()
        return "".join(f"{self._pinned(package)}\n" for package in packages)

    def _pinned(self, package: Mapping[str, Any]) -> str:
        info = package["download_info"]
        archive = info.get("archive_info", {})
        hashes = archive.get("hashes")
        if not hashes and "hash" in archive:  # pip before 23.1, which is Debian 12's
            hashes = dict([archive["hash"].split("=", 1)])
        name = package["metadata"]["name"]
        if not hashes:
            raise self._failed(f"{name} is not an archive, so it has no hash: give a wheel, or the URL of an archive.")
        pin = f"{name} @ {info['url']}" if package["is_direct"] else f"{name}=={package['metadata']['version']}"
        return " ".join([pin, *(f"--hash={kind}:{value}" for kind, value in sorted(hashes.items()))])

    def run(self, command: Sequence[str]) -> None:
        """Runs a command in the file's folder, on which its paths are based."""
        variables = {name: value for name, value in os.environ.items() if name not in _CLEARED}
        process = subprocess.run(
            command,
            cwd=self._path.parent,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            pass_fds=(self._lock,),
            check=False,
        )
        if process.returncode:
            raise self._failed(process.stdout)

    def _failed(self, output: str) -> DependencyError:
        shown = _URL.sub(lambda url: without_secrets(url[0]), output)
        # pip's warnings contain parts of addresses.
        lines = [line for line in shown.splitlines() if line.strip() and not line.startswith("WARNING:")]
        return DependencyError(
            f"The environment of {self._path} cannot be made:\n" + "\n".join(lines[-_LINES:]), "Correct the file, then try again."
        )


#: Variables that make Python and uv look at the packages of this process.
_CLEARED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def _lines(path: Path, seen: frozenset[Path] = frozenset()) -> Iterator[tuple[Path, str]]:
    """Yields the lines of a file and of its included files, with their file. A line may continue after a
    backslash."""
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        yield path, line
        included = _INCLUDED.match(line)
        other = path.parent / included[1] if included else None
        if other is not None and other.is_file() and other not in seen:
            yield from _lines(other, seen | {path})


def _anywhere(file: Path, line: str) -> str:
    """Returns an option in a form that is valid in another folder."""
    links = _LINKS.match(line)
    if links is None or "://" in links[2]:
        return line
    return f"{links[1]}{file.parent / links[2]}"


# The environments of a home: found by definition, built if missing, listed, removed.

#: The file that is written last into an environment. Without it, the process that built it was killed.
_MARKER = "volstream.json"

#: Number of characters in an environment's id.
_ID = 16


@dataclass(frozen=True)
class MadeEnvironment:
    """An environment in the home.

    id: the beginning of the hash of its definition, and the name of its folder.
    source: the requirements file or archive. None, like ``made_on``, if the process that built it was killed.
    size: bytes on disk, with its archive for other hosts.
    """

    id: str
    source: str | None
    made_on: datetime | None
    size: int


@dataclass(frozen=True)
class _Recipe:
    id: str
    make: Callable[[Path, Path, int], None]


class EnvironmentStore:
    """The environments in a folder. Several processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def at(self, path: str) -> Environment:
        """Returns the environment that a requirements file or an archive defines. Builds it if it is missing.

        A virtual environment's folder is used directly.

        Raises:
            NotFoundError, InvalidValueError: there is no such environment.
            DependencyError: its packages cannot be installed.
        """
        recipe = _recipe(path)
        if recipe is None:
            return Environment(path, _python(Path(path)))
        place = self._folder / recipe.id
        if not _is_whole(place):
            with self._locked() as lock:
                if not _is_whole(place):
                    self._make(path, recipe, place, lock)
        return Environment(path, _python(place))

    def packed(self, environment: Environment) -> Path | None:
        """Returns an archive of an environment built here, for hosts that do not see it, or None for a folder
        of the user.

        The archive is made once, and removed with the environment.
        """
        place = Path(environment.python).parents[1]
        if place.parent != self._folder:
            return None
        packed = place.with_suffix(".tar.gz")
        if not packed.is_file():
            with self._locked():
                if not packed.is_file():
                    draft = place.with_suffix(".new")
                    with tarfile.open(draft, "w:gz", compresslevel=1) as archive:
                        archive.add(place, ".")
                    draft.replace(packed)
        return packed

    def id_of(self, path: str) -> str | None:
        """Returns the id of the environment that a file defines, or None for a folder or an unreadable
        file."""
        try:
            recipe = _recipe(path)
        except (NotFoundError, InvalidValueError):
            return None
        return None if recipe is None else recipe.id

    def all(self) -> Sequence[MadeEnvironment]:
        """Returns all environments by id, including unfinished ones of killed processes."""
        folders = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        return [_describe(place) for place in folders if place.is_dir()]

    def remove(self, id: str) -> None:
        """Removes an environment, which breaks its current users. It is built again when needed."""
        with self._locked():
            # First, so that the rest counts as incomplete.
            (self._folder / id / _MARKER).unlink(missing_ok=True)
            (self._folder / f"{id}.tar.gz").unlink(missing_ok=True)
            shutil.rmtree(self._folder / id)

    def _make(self, path: str, recipe: _Recipe, place: Path, lock: int) -> None:
        shutil.rmtree(place, ignore_errors=True)  # left by a killed process
        try:
            recipe.make(Path(path), place, lock)
            record = place / f"{_MARKER}.new"
            record.write_text(json.dumps({"source": path, "made_on": datetime.now(UTC).isoformat()}), encoding="utf-8")
            record.rename(place / _MARKER)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Waits until no other process builds or removes an environment. Yields the lock's descriptor."""
        make_directory(self._folder)
        descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _recipe(path: str) -> _Recipe | None:
    """Returns how to build the environment that a file defines, or None for a folder."""
    if os.path.isdir(path):
        return None
    if not os.path.isfile(path):
        raise NotFoundError(
            f"There is no {path} for the environment.",
            "Give a requirements file, the folder of a virtual environment, or an archive of one.",
        )
    is_archive = path.endswith(SUFFIXES)
    key = archive_key if is_archive else requirements_key
    try:
        return _Recipe(key(Path(path))[:_ID], unpack_archive if is_archive else install_requirements)
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be read: {error.strerror}.") from None


def _python(place: Path) -> str:
    python = place / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise InvalidValueError(
            f"{place} is not an environment: it has no bin/python.", "Give the folder of a virtual environment."
        )
    return str(python)


def _is_whole(place: Path) -> bool:
    return (place / _MARKER).is_file() and (place / "bin" / "python").exists()


def _describe(place: Path) -> MadeEnvironment:
    try:
        record = json.loads((place / _MARKER).read_text(encoding="utf-8"))
        source, made_on = record["source"], datetime.fromisoformat(record["made_on"])
    except FileNotFoundError:
        source = made_on = None
    packed = place.with_suffix(".tar.gz")
    size = _size(place) + (packed.stat().st_size if packed.is_file() else 0)
    return MadeEnvironment(place.name, source, made_on, size)


def _size(place: Path) -> int:
    return sum(entry.lstat().st_size for entry in place.rglob("*") if entry.is_symlink() or entry.is_file())
