"""Who writes to the warehouse cannot make a job evaluate expressions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import COUNT, Home, Place
from volstream.errors import InvalidStateError
from volstream.tables.delta.opened import OpenTable

Change = Callable[[dict[str, Any], list[dict[str, Any]]], None]

READ = "reflect('java.lang.System', 'getenv', 'HOME')"


def commit(location: str, feature: str, change: Change) -> Path:
    """Commits other metadata, as a program can that only writes files; returns the commit's file.

    Args:
        change: of the metadata and its columns.
    """
    log = Path(location) / "_delta_log"
    versions = sorted(log.glob("*.json"))
    actions = [json.loads(line) for path in versions for line in path.read_text(encoding="utf-8").splitlines()]
    (*_, metadata) = (action["metaData"] for action in actions if "metaData" in action)
    (*_, protocol) = (action["protocol"] for action in actions if "protocol" in action)
    schema = json.loads(metadata["schemaString"])
    change(metadata, schema["fields"])
    metadata["schemaString"] = json.dumps(schema)
    features = {*protocol.get("writerFeatures", ()), "invariants", "appendOnly", feature}
    protocol |= {"minWriterVersion": 7, "writerFeatures": sorted(features)}
    now = int(time.time() * 1000)
    info = {"timestamp": now, "inCommitTimestamp": now, "operation": "SET TBLPROPERTIES", "operationParameters": {}}
    lines = [json.dumps(one) for one in ({"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata})]
    made = log / f"{len(versions):020d}.json"
    made.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return made


def generated(_: dict[str, Any], fields: list[dict[str, Any]]) -> None:
    fields.append({"name": "x", "type": "string", "nullable": True, "metadata": {"delta.generationExpression": READ}})


def constrained(metadata: dict[str, Any], _: list[dict[str, Any]]) -> None:
    metadata["configuration"]["delta.constraints.Mine"] = f"{READ} IS NOT NULL"


def invariant(_: dict[str, Any], fields: list[dict[str, Any]]) -> None:
    fields[0]["metadata"]["delta.invariants"] = json.dumps({"expression": {"expression": f"{READ} IS NOT NULL"}})


def default(_: dict[str, Any], fields: list[dict[str, Any]]) -> None:
    inside = {"name": "i", "type": "string", "nullable": True, "metadata": {"CURRENT_DEFAULT": READ}}
    fields.append({"name": "x", "type": {"type": "struct", "fields": [inside]}, "nullable": True, "metadata": {}})


def test_a_job_refuses_a_table_that_got_expressions(place: Place) -> None:
    place.put("a", "1")
    place.refresh()
    place.job(COUNT)
    place.run()
    location = f"{place.session.home.warehouse}/tables/public/t"
    place.put("b", "22")
    place.refresh()
    for feature, change, named in (
        ("generatedColumns", generated, "a generation expression of column x"),
        ("checkConstraints", constrained, "the constraint Mine"),
        ("invariants", invariant, "an invariant of column n"),
        ("allowColumnDefaults", default, "a default of column x"),
    ):
        made = commit(location, feature, change)
        with pytest.raises(InvalidStateError, match=f"The table t has {named}, which Spark would evaluate"):
            place.run()
        made.unlink()
    table = OpenTable.newest(location)
    assert table is not None
    assert table.rows == 1


@pytest.mark.long
def test_a_dynamic_table_that_got_expressions_is_not_refreshed(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("CREATE DYNAMIC TABLE d$ AS SELECT id FROM t$")
    commit(home.location("d"), "generatedColumns", generated)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1)")
    with pytest.raises(InvalidStateError, match="a generation expression of column x"):
        home.session.jobs.run(home.name("d"))


def test_a_users_own_table_keeps_its_constraints(home: Home) -> None:
    home.sql("CREATE TABLE t$ (n INT); ALTER TABLE t$ ADD CONSTRAINT small CHECK (n < 9); INSERT INTO t$ VALUES (1)")
    assert home.rows("SELECT * FROM t$") == [(1,)]
