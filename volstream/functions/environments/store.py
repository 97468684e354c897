"""The environments of a home: found by what defines them, made where they are missing, listed, removed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from volstream.base.privacy import make_directory
from volstream.errors import InvalidValueError, NotFoundError
from volstream.functions.environment import Environment
from volstream.functions.environments import archive, requirements

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
    kind = archive if path.endswith(archive.SUFFIXES) else requirements
    try:
        return _Recipe(kind.key_of(Path(path))[:_ID], kind.make)
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
