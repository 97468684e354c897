"""The files, generated reproducibly from a seed, and their expected rows, computed independently of all contenders."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from benchmarks.functions import Summary, summary_of

_SMALLEST, _LARGEST = 1 << 10, 20 << 10

#: Contents are slices of one text of this length, so that time goes into writing, not into drawing words.
_TEXT_LENGTH = 1 << 20

#: Modification time of the first file. All are old, so that no contender waits for writers to finish.
LONG_AGO = 1_700_000_000


class Tree:
    """A folder of small text files, nested three deep; re-created by :meth:`make`, changed by :meth:`change`."""

    def __init__(self, folder: Path, seed: int = 4) -> None:
        self.folder = folder
        self._random = random.Random(seed)
        words = ("".join(self._random.choices("abcdefghijklmnopqrstuvwxyz", k=length)) for length in range(2, 12))
        vocabulary = [*words, "the\n"]
        self._text = " ".join(self._random.choices(vocabulary, k=_TEXT_LENGTH // 7))
        self._paths: list[str] = []
        self._written = 0

    def make(self, count: int) -> None:
        """Replaces the folder with one of ``count`` files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._paths = []
        self._add(count)

    def change(self, *, new: int, overwritten: int, deleted: int) -> None:
        """Adds, overwrites and deletes files, different ones each."""
        touched = self._random.sample(self._paths, overwritten + deleted)
        for path in touched[:overwritten]:
            self._write(path)
        for path in touched[overwritten:]:
            (self.folder / path).unlink()
            self._paths.remove(path)
        self._add(new)

    def add_one(self) -> str:
        """Adds one file beside others, modified now; returns its path."""
        path = f"{self._random.choice(self._paths).rpartition('/')[0]}/file-{self._written:07d}.txt"
        self._write(path, old=False)
        self._paths.append(path)
        return path

    def _add(self, count: int) -> None:
        for _ in range(count):
            path = self._next()
            self._write(path)
            self._paths.append(path)

    def _next(self) -> str:
        one, two, three = (self._random.randrange(8) for _ in range(3))
        return f"part-{one}/section-{two}/group-{three}/file-{self._written:07d}.txt"

    def _write(self, path: str, *, old: bool = True) -> None:
        self._written += 1
        size = self._random.randint(_SMALLEST, _LARGEST)
        first_line = f"{path}, written as number {self._written}\n"
        start = self._random.randrange(len(self._text) - _LARGEST)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(first_line + self._text[start : start + size - len(first_line)], encoding="utf-8")
        if old:
            os.utime(target, (LONG_AGO + self._written, LONG_AGO + self._written))


def truth(folder: Path) -> dict[str, Summary]:
    """Returns the expected row of every file in ``folder``, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): summary_of(path.read_bytes()) for path in files}


def wrong_rows(found: Mapping[str, Summary], expected: Mapping[str, Summary]) -> int:
    """Returns how many files have no row or a wrong one, or have a row although they are gone."""
    return sum(found.get(path) != expected.get(path) for path in found.keys() | expected.keys())
