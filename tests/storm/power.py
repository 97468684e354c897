"""The power of a storm's machine: when it fails, what was not synced is lost, as POSIX allows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Syncs what is below a folder, which comes last. Without anything of ours: it is run with the library preloaded.
_SYNC = """
import os, sys
for folder, _, files in os.walk(sys.argv[1], topdown=False):
    paths = [os.path.join(folder, file) for file in files]
    for path in (*(path for path in paths if os.path.isfile(path)), folder):
        opened = os.open(path, os.O_RDONLY)
        os.fsync(opened)
        os.close(opened)
"""


@dataclass(frozen=True)
class _Entry:
    """An entry of a synced folder. ``key``: the name of what was kept of it."""

    is_folder: bool
    mode: int
    key: str
    name: str


class Power:
    """What would survive of a folder's files if the power went now, for processes that have ``power.c`` preloaded.

    Args:
        root: the folder; it exists.
        kept: empty; gets copies of what is synced.
        preload: variables with which the library is loaded.

    Attributes:
        variables: of the environment of the processes that write.
    """

    def __init__(self, root: Path, kept: Path, preload: Mapping[str, str]) -> None:
        self._root = root
        self._kept = kept
        self.variables: Mapping[str, str] = {"POWER_ROOT": str(root), "POWER_KEPT": str(kept)}
        self._environment = {**os.environ, **preload, **self.variables}

    def begin(self) -> None:
        """Takes everything that is there for synced."""
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        subprocess.run([sys.executable, "-c", _SYNC, self._root], env=self._environment, check=True)

    def lose(self) -> Sequence[str]:
        """Replaces what is there by what was synced; returns what differs, by path. No process may be writing."""
        before = {*_files(self._root)}
        saved = self._kept.with_name(f"{self._kept.name}-saved")
        self._restore("root", saved)
        changed = [str(name) for name in sorted(before | {*_files(saved)}) if _differs(self._root / name, saved / name)]
        for one in self._root.iterdir():
            shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
        shutil.copytree(saved, self._root, dirs_exist_ok=True)
        shutil.rmtree(saved)
        self.begin()
        return changed

    def _restore(self, key: str, into: Path) -> None:
        into.mkdir()
        for entry in self._entries(key):
            target, kept = into / entry.name, self._kept / entry.key
            if entry.is_folder:
                self._restore(entry.key, target)
            elif kept.exists():
                shutil.copyfile(kept, target)
            else:
                target.touch()
            target.chmod(entry.mode)

    def _entries(self, key: str) -> Iterator[_Entry]:
        kept = self._kept / key
        if not kept.exists():  # the folder's name is known, and nothing that is in it
            return
        for line in kept.read_bytes().split(b"\0")[:-1]:
            mode, kind, entry, name = os.fsdecode(line).split(" ", 3)
            yield _Entry(kind == "d", int(mode, 8), entry, name)


def _files(folder: Path) -> Iterator[Path]:
    return (one.relative_to(folder) for one in folder.rglob("*") if one.is_file() and not one.is_symlink())


def _differs(one: Path, other: Path) -> bool:
    return not (one.exists() and other.exists()) or one.read_bytes() != other.read_bytes()
