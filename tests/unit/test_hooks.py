"""Names that tests reach by a string: a rename that misses one would leave a test that watches nothing."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import volstream

FOLDERS = "|".join(path.name for path in Path(volstream.__file__).parent.iterdir() if (path / "__init__.py").exists())

FILES = sorted(Path(__file__).parents[1].rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(FILES[0].parents[1])) for file in FILES])
def test_names_of_volstream_in_strings_exist(file: Path) -> None:
    for name in re.findall(rf'"(volstream\.(?:{FOLDERS})(?:\.\w+)+)"', file.read_text()):
        parts = name.split(".")
        found = None
        for end in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:end]))
            except ModuleNotFoundError:
                continue
            break
        for part in parts[end:]:
            assert hasattr(found, part), f"{name}: there is no {part}"
            found = getattr(found, part)
