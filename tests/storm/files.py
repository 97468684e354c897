"""The files of a storm's volume, in a folder or a bucket: random changes to them, and the final state."""

from __future__ import annotations

import os
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.e2e.homes import write

#: Of a text: the function raises, whatever happens; it raises now and then while the storm lasts; the process dies of it
#: where it is a child of its own.
BAD, FLAKY, DEADLY = "bad", "flaky", "deadly"

_SORTS = {"good": 88, BAD: 3, FLAKY: 8, DEADLY: 1}

#: Where files of a landing zone go.
ARCHIVE = ".done"

#: Names that need quoting somewhere.
_NAMES = ("plain", "two words", "it's", "ünïcode", "${x}", "100%", "a#b", "[1]", "per\\cent")


class Files(ABC):
    """Files that change at random: what is done follows from the seed alone.

    Attributes:
        location: of the volume.
        texts: of each file that is there, by its path.
    """

    def __init__(self, location: str, seed: str) -> None:
        self.location = location
        self.texts: dict[str, str] = {}
        self._chance = random.Random(f"files {seed}")
        self._made = 0
        self._maximum = 150

    def fill(self, count: int) -> None:
        """Adds new files. Later on it has about half as many more."""
        self._maximum = max(150, count + count // 2)
        self._put([self._new_path() for _ in range(count)])

    def change(self) -> str:
        """Makes one random change; describes it."""
        # In a long storm it would grow for ever.
        more, less = (36, 12) if len(self.texts) < self._maximum else (12, 36)
        act = self._chance.choices(
            [self._add, self._replace, self._delete, self._move, self._add_folder, self._delete_folder, self._move_folder],
            [more, 28, less, 12, 4, 3, 2],
        )[0]
        return act()

    @abstractmethod
    def contents(self) -> Mapping[str, str]:
        """The current contents by path, as they are stored."""

    @abstractmethod
    def _write(self, paths: Sequence[str]) -> None:
        """Writes the texts of these paths."""

    @abstractmethod
    def _remove(self, paths: Sequence[str], folder: str | None = None) -> None:
        """Removes files: those of a whole folder, if it is given."""

    @abstractmethod
    def _rename(self, moved: Mapping[str, str], folders: tuple[str, str] | None = None) -> None:
        """Gives files new paths: those of a whole folder, if its old and its new path are given."""

    def _new_path(self) -> str:
        self._made += 1
        folder = "/".join(f"d{self._chance.randrange(6)}" for _ in range(self._chance.randrange(4)))
        return f"{folder}/{self._chance.choice(_NAMES)} {self._made}.txt".lstrip("/")

    def _put(self, paths: list[str]) -> str:
        for path in paths:
            self._made += 1
            sort = self._chance.choices([*_SORTS], [*_SORTS.values()])[0]
            self.texts[path] = f"{sort} text {self._made} " + "x" * self._chance.randrange(2000)
        self._write(paths)
        return f"write {paths}"

    def _any(self) -> str | None:
        return self._chance.choice(sorted(self.texts)) if self.texts else None

    def _add(self) -> str:
        return self._put([self._new_path()])

    def _replace(self) -> str:
        path = self._any()
        return self._add() if path is None else self._put([path])

    def _delete(self) -> str:
        path = self._any()
        if path is None:
            return self._add()
        del self.texts[path]
        self._remove([path])
        return f"delete {path}"

    def _move(self) -> str:
        old, new = self._any(), self._new_path()
        if old is None:
            return self._add()
        self.texts[new] = self.texts.pop(old)
        self._rename({old: new})
        return f"move {old} to {new}"

    def _add_folder(self) -> str:
        self._made += 1
        return self._put([f"new {self._made}/{number}/file.txt" for number in range(self._chance.randrange(1, 8))])

    def _below(self) -> tuple[str, list[str]]:
        """An existing folder, and its files."""
        folder = (self._any() or "").rpartition("/")[0]
        return folder, [path for path in self.texts if folder and path.startswith(f"{folder}/")]

    def _delete_folder(self) -> str:
        folder, paths = self._below()
        if not paths:
            return self._add()
        for path in paths:
            del self.texts[path]
        self._remove(paths, folder)
        return f"delete {folder}/"

    def _move_folder(self) -> str:
        folder, paths = self._below()
        if not paths:
            return self._add()
        self._made += 1
        new = f"moved {self._made}"
        moved = {path: new + path.removeprefix(folder) for path in paths}
        for old, path in moved.items():
            self.texts[path] = self.texts.pop(old)
        self._rename(moved, (folder, new))
        return f"move {folder}/ to {new}/"


class Folder(Files):
    """Files of a folder, which is made."""

    def __init__(self, path: Path, seed: str) -> None:
        super().__init__(str(path), seed)
        self.path = path
        path.mkdir(parents=True)

    def contents(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for folder, _, names in os.walk(self.path):  # a job may take files and folders away meanwhile
            for one in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):
                    found[one.relative_to(self.path).as_posix()] = one.read_text(encoding="utf-8")
        return found

    def _write(self, paths: Sequence[str]) -> None:
        write(self.path, {path: self.texts[path] for path in paths})

    def _remove(self, paths: Sequence[str], folder: str | None = None) -> None:
        if folder is not None:
            shutil.rmtree(self.path / folder)
            return
        for path in paths:
            (self.path / path).unlink()

    def _rename(self, moved: Mapping[str, str], folders: tuple[str, str] | None = None) -> None:
        for old, new in [folders] if folders is not None else moved.items():
            target = self.path / new
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.path / old).rename(target)


class Landing(Folder):
    """A folder in which files land that a job takes away: new ones, some under a path that was there, or still is.

    Attributes:
        written: all texts that ever were written, each different, by path.
    """

    def __init__(self, path: Path, seed: str) -> None:
        super().__init__(path, seed)
        self.written: dict[str, list[str]] = {}

    def change(self) -> str:
        again = self._chance.random() < 0.3
        return self._replace() if again else self._add()

    def contents(self) -> Mapping[str, str]:
        return {
            path: text for path, text in super().contents().items() if not any(part.startswith(".") for part in path.split("/"))
        }

    def archived(self) -> Sequence[str]:
        """The texts of the files in the archive."""
        return [one.read_text(encoding="utf-8") for one in (self.path / ARCHIVE).rglob("*") if one.is_file()]

    def _write(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.written.setdefault(path, []).append(self.texts[path])
        super()._write(paths)
