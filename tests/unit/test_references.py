"""Rooms that comments and docstrings name, as architecture.md does: without their folders."""

from __future__ import annotations

import re
from pathlib import Path

import volstream

ROOT = Path(volstream.__file__).parent

#: Such as ``queues.kafka``. Others with a point are attributes, files and settings.
_NAMED = re.compile(r"``([a-z_]+)\.([a-z_]+)``")
_OTHERS = {"``console.token``", "``sources.yml``", "``spark.conf``"}


def test_a_room_that_a_comment_names_exists() -> None:
    modules = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
    rooms = {(path.parent.name, path.stem) for path in modules} | {
        (path.parent.parent.name, path.parent.name) for path in modules if path.stem == "__init__"
    }
    folders = {folder for folder, _ in rooms}
    missing = [
        f"{path}: {match[0]}"
        for path in modules
        for match in _NAMED.finditer((ROOT / path).read_text(encoding="utf-8"))
        if match[1] in folders
        and match[0] not in _OTHERS
        and (match[1], match[2]) not in rooms
        and not _is_attribute(match[1], match[2], modules)
    ]
    assert not missing, "named in comments, and gone or elsewhere"


def _is_attribute(module: str, name: str, modules: list[Path]) -> bool:
    """True if a module, or a package, of that name has the word."""
    of = [path for path in modules if path.stem == module or (path.stem == "__init__" and path.parent.name == module)]
    return any(re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8")) for path in of)
