"""The packages of functions' own environments: made once per content, of requirements or archives, and kept in the home."""

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

# Environments of archives, as venv-pack and conda-pack make them: unpacked once per content.

#: Suffixes of archives.
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

#: Links to the interpreter, which is elsewhere on this host.
_INTERPRETER = re.compile(r"(?:\./)?bin/python[0-9.]*")

#: Parts of a path with its links, of which an honest one has some dozens.
_MOST_PARTS = 10_000


def archive_key(path: Path) -> str:
    """Returns a hash of an archive."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack_archive(path: Path, place: Path, lock: int) -> None:
    """Unpacks an archive at ``place``: nothing outside of it, and no link out of it.

    Args:
        lock: see :func:`volstream.functions.environments.make`.

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


# Environments of requirements files: resolved once, with hashes, and installed from what was resolved.
#
# ``uv`` does both where there is one, else pip. What does not belong here: where environments are
# (``store``).

#: Beside the installed packages: each with its version and hashes, and the options of the file.
LOCK = "requirements.lock"

#: A line that names another file, whose content counts, too.
_INCLUDED = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)")

#: A line that says where packages are, or which ones, and applies to the lock file, too.
_OPTION = re.compile(
    r"\s*(?:-i|-f|--(?:index-url|extra-index-url|find-links|no-index|pre|prefer-binary|no-binary|only-binary|trusted-host))\b"
)
_LINKS = re.compile(r"(\s*(?:-f|--find-links)[ =]?\s*)(\S+)")

#: What may follow a package: a comment, and options such as hashes.
_AFTER = re.compile(r"(?:^|\s)#.*|\s--[a-z].*")

#: A path or URL of a package, with its extras, fragment and marker.
_PATH = re.compile(r"(?:-e\s+|--editable[ =]\s*)?(?P<path>[^;]+?)\s*(?:\[[^\]]*\])?\s*(?:;.*)?")

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")

_URL = re.compile(r"[a-z+]+://[^\s'\"]+", re.IGNORECASE)

#: The installer's last lines in an error.
_LINES = 12


def requirements_key(path: Path) -> str:
    """Returns a hash of what a file asks for, of this version of Python, on this kind of machine."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sysconfig.get_platform()}\n".encode())
    for file, line in _lines(path):
        digest.update(f"{line}\n".encode("utf-8", "surrogateescape"))
        asked = _AFTER.sub("", _VARIABLE.sub(lambda found: os.environ.get(found[1], found[0]), line)).strip()
        archive = _archive(asked, file.parent, path.parent)
        if archive is not None:
            digest.update(archive.read_bytes())
        elif not asked or _is_named(asked):
            continue
        digest.update(f"{file.parent}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _archive(asked: str, *folders: Path) -> Path | None:
    """Returns the file that a requirement names by its path or URL; None: it names none that is there.

    Args:
        folders: a relative path may start in any of them: uv and pip differ.
    """
    path = _PATH.fullmatch(asked)
    places = [] if path is None else [path["path"]]
    with suppress(InvalidRequirement):
        places.append(Requirement(asked).url or "")
    for place in filter(None, places):
        url = urlsplit(place)
        named = unquote(url.path) if url.scheme == "file" else place.partition("#")[0]
        for folder in folders:
            with suppress(OSError):  # not a name for a file: too long
                if (folder / named).is_file():
                    return folder / named
    return None


def _is_named(asked: str) -> bool:
    """True for a package by name, which means the same in any folder."""
    try:
        return Requirement(asked).url is None
    except InvalidRequirement:
        return False


def install_requirements(path: Path, place: Path, lock: int) -> None:
    """Makes a virtual environment at ``place`` with the packages of a file.

    Args:
        lock: descriptor of the lock. The installer inherits it, so the lock stays held if the installer outlives this process.

    Raises:
        DependencyError: the packages cannot be resolved or installed.
    """
    uv = shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))
    installer = _Installer(path, place, lock)
    resolved = installer.with_uv(uv) if uv else installer.with_pip()
    options = [_anywhere(file, line) for file, line in _lines(path) if _OPTION.match(line)]
    locked = place / LOCK
    locked.write_text("\n".join([*options, resolved]), encoding="utf-8")
    if resolved.strip():
        command = [uv, "pip", "install", "--quiet", "--python", installer.python] if uv else [*installer.pip, "install"]
        installer.run([*command, "--no-deps", "--require-hashes", "-r", str(locked)])


class _Installer:
    """Runs the commands that make one environment."""

    def __init__(self, path: Path, place: Path, lock: int) -> None:
        self._path, self._place, self._lock = path, place, lock
        self.python = str(place / "bin" / "python")
        self.pip = [sys.executable, "-m", "pip", "--quiet", "--python", self.python]

    def with_uv(self, uv: str) -> str:
        """Makes the virtual environment; returns the resolved packages, one a line with its hashes."""
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
        asked = ["--dry-run", "--ignore-installed", "--report", str(report), "-r", str(self._path)]
        self.run([*self.pip, "install", *asked])
        packages = json.loads(report.read_text(encoding="utf-8"))["install"]
        report.unlink()
        return "".join(f"{self._pinned(package)}\n" for package in packages)

    def _pinned(self, package: Mapping[str, Any]) -> str:
        found = package["download_info"]
        archive = found.get("archive_info", {})
        hashes = archive.get("hashes")
        if not hashes and "hash" in archive:  # pip before 23.1, which is Debian 12's
            hashes = dict([archive["hash"].split("=", 1)])
        name = package["metadata"]["name"]
        if not hashes:
            raise self._failed(f"{name} is not an archive, so it has no hash: give a wheel, or the URL of an archive.")
        pin = f"{name} @ {found['url']}" if package["is_direct"] else f"{name}=={package['metadata']['version']}"
        return " ".join([pin, *(f"--hash={kind}:{value}" for kind, value in sorted(hashes.items()))])

    def run(self, command: Sequence[str]) -> None:
        """Runs a command where the file is, from which its paths are."""
        variables = {name: value for name, value in os.environ.items() if name not in _OURS}
        ended = subprocess.run(
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
        if ended.returncode:
            raise self._failed(ended.stdout)

    def _failed(self, words: str) -> DependencyError:
        shown = _URL.sub(lambda url: without_secrets(url[0]), words)
        # pip's warnings have parts of addresses.
        said = [line for line in shown.splitlines() if line.strip() and not line.startswith("WARNING:")]
        return DependencyError(
            f"The environment of {self._path} cannot be made:\n" + "\n".join(said[-_LINES:]), "Correct the file, then try again."
        )


#: Variables that make Python and uv look at the packages of the process that makes the environment.
_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def _lines(path: Path, seen: frozenset[Path] = frozenset()) -> Iterator[tuple[Path, str]]:
    """Yields the lines of a file, and of those that it includes, with their files. A line may go on after a backslash."""
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        yield path, line
        included = _INCLUDED.match(line)
        other = path.parent / included[1] if included else None
        if other is not None and other.is_file() and other not in seen:
            yield from _lines(other, seen | {path})


def _anywhere(file: Path, line: str) -> str:
    """Returns an option for a file in another folder."""
    links = _LINKS.match(line)
    if links is None or "://" in links[2]:
        return line
    return f"{links[1]}{file.parent / links[2]}"


# The environments of a home: found by what defines them, made where they are missing, listed, removed.

#: Written last into an environment: without it, its maker was killed.
_MADE = "volstream.json"

#: Characters of an environment's id.
_ID = 16


@dataclass(frozen=True)
class MadeEnvironment:
    """An environment in the home.

    Attributes:
        id: the beginning of the hash of what defines it, and the name of its folder.
        source: the requirements file or archive; None, as ``made_on``: its maker was killed.
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
        """Returns the environment that a requirements file or an archive defines, after making it if it is missing; a virtual
        environment's folder is used as it is.

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
        """Returns an archive of an environment made here, for hosts that do not see it; None: it is a folder of the user's.

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
        """Returns the id of the environment that a file defines; None: it is a folder, or cannot be read."""
        try:
            recipe = _recipe(path)
        except (NotFoundError, InvalidValueError):
            return None
        return None if recipe is None else recipe.id

    def all(self) -> Sequence[MadeEnvironment]:
        """Returns all environments, by id, including unfinished ones of killed processes."""
        folders = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        return [_made(place) for place in folders if place.is_dir()]

    def remove(self, id: str) -> None:
        """Removes an environment; one in use breaks. It is made again when it is needed."""
        with self._locked():
            (self._folder / id / _MADE).unlink(missing_ok=True)  # first, so that nothing takes the rest for whole
            (self._folder / f"{id}.tar.gz").unlink(missing_ok=True)
            shutil.rmtree(self._folder / id)

    def _make(self, path: str, recipe: _Recipe, place: Path, lock: int) -> None:
        shutil.rmtree(place, ignore_errors=True)  # a killed maker's
        try:
            recipe.make(Path(path), place, lock)
            about = place / f"{_MADE}.new"
            about.write_text(json.dumps({"source": path, "made_on": datetime.now(UTC).isoformat()}), encoding="utf-8")
            about.rename(place / _MADE)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Waits until no other process makes or removes an environment; yields the lock's descriptor."""
        make_directory(self._folder)
        descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _recipe(path: str) -> _Recipe | None:
    """Returns how the environment is made that a file defines; None: it is a folder."""
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
    return (place / _MADE).is_file() and (place / "bin" / "python").exists()


def _made(place: Path) -> MadeEnvironment:
    try:
        about = json.loads((place / _MADE).read_text(encoding="utf-8"))
        source, made_on = about["source"], datetime.fromisoformat(about["made_on"])
    except FileNotFoundError:
        source = made_on = None
    packed = place.with_suffix(".tar.gz")
    size = _size(place) + (packed.stat().st_size if packed.is_file() else 0)
    return MadeEnvironment(place.name, source, made_on, size)


def _size(place: Path) -> int:
    return sum(entry.lstat().st_size for entry in place.rglob("*") if entry.is_symlink() or entry.is_file())
