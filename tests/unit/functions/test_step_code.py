"""Edits of code around and below steps: the rows afterwards are those of a function without steps, or the step is refused.

``step_cases.json`` has what an adversary found or tried: files, an edit, and what is expected.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.memory import MemoryStore
from tests.running import planned, replied
from volstream.functions.call import Work
from volstream.functions.finding import find
from volstream.functions.rows import Bounds
from volstream.functions.schema import from_ddl
from volstream.functions.steps import StepTarget
from volstream.jobs.batches.step_values import FolderOfBlobs

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("step_cases.json").read_text(encoding="utf-8"))

#: What a step says whose code cannot be told.
REFUSED = ("cannot be told", "cannot be a step", "above @volstream.step")


def called(root: Path, function: str, store: MemoryStore, steps: StepTarget | None) -> tuple[list[Any], str, str]:
    """The rows, the failures and the counts of a call."""
    place = f"{root}/{function}" if ".py:" in function else function
    source, schema = find(place, str(root)), from_ddl("n STRING")
    work = Work(source, {}, store, schema, bounds=Bounds(), steps=steps)
    table = replied(work, planned([store.put("a", b"ab cd")]))
    rows = [row and row["n"] for row in table["result"].to_pylist()]
    failures, counted = ("".join(filter(None, table[name].to_pylist())) for name in ("error_message", "counted"))
    return rows, failures, counted


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_an_edit_is_seen(store: MemoryStore, tmp_path: Path, case: dict[str, Any]) -> None:
    root, steps = tmp_path / "code", StepTarget(FolderOfBlobs(str(tmp_path / "warehouse"), "_steps/j"), 1 << 20)
    for name, content in case["files"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    before, failures, _ = called(root, case["function"], store, steps)
    if case["expected"] == "refused":
        assert any(text in failures for text in REFUSED)
        return
    assert failures == ""
    assert before == called(root, case["function"], store, None)[0]
    for name, old, new in case["edits"]:
        (root / name).write_text((root / name).read_text().replace(old, new))
    after, failures, counted = called(root, case["function"], store, steps)
    assert failures == ""
    assert after == called(root, case["function"], store, None)[0]
    if case["expected"] == "kept":
        assert "computed" not in counted
