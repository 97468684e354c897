from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from volstream.tables.delta.opened import has_newer
from volstream.tables.delta.schema import Schema

_MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}


def _struct(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}}]}


@pytest.mark.parametrize(
    ("kind", "comparable"),
    [
        *(("long", True), (_struct("map", "long"), True), (_struct("variant", "long"), True)),
        *((_MAP, False), ("variant", False), (_struct("x", _MAP), False)),
        ({"type": "array", "elementType": _struct("x", "variant"), "containsNull": True}, False),
    ],
)
def test_a_map_and_a_variant_cannot_be_compared_wherever_they_are(kind: Any, comparable: bool) -> None:
    assert Schema({"c": json.dumps(kind)}, [], [], {}).comparable == (["c"] if comparable else [])


@pytest.mark.parametrize("seed", range(6))
def test_there_is_nothing_new_exactly_while_version_and_table_stay(seed: int, tmp_path: Path) -> None:
    """The shortcut against the long way, in a random history of commits, tables made again, and copies put back."""
    pick, location, aside = random.Random(seed), str(tmp_path / "t"), str(tmp_path / "aside")

    def commit() -> None:
        write_deltalake(location, pa.table({"n": [pick.randrange(9)]}), mode="append")

    def make_again() -> None:
        versions = DeltaTable(location).version() + 1
        shutil.rmtree(location)
        for _ in range(versions):
            commit()

    def back_up() -> None:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(location, aside)

    def put_back() -> None:
        shutil.rmtree(location)
        shutil.copytree(aside, location)

    commit()
    back_up()
    offsets = list[tuple[int, str]]()
    for _ in range(40):
        if (step := pick.choices([commit, make_again, back_up, put_back, None], [2, 1, 1, 1, 5])[0]) is not None:
            step()
        table = DeltaTable(location)
        head = table.version(), str(table.metadata().id)
        offsets = [*offsets[-3:], head]
        for offset in offsets:
            assert has_newer(location, *offset) == (offset != head), (seed, offset, head)
