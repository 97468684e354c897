"""Environments of requirements files: resolved once, with hashes, and installed from what was resolved.

``uv`` does both where there is one, else pip. What does not belong here: where environments are (``store``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from volstream.base.model.paths import without_secrets
from volstream.errors import DependencyError

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


def key_of(path: Path) -> str:
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


def make(path: Path, place: Path, lock: int) -> None:
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
