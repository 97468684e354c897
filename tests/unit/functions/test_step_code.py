"""Edits of code around and below steps: the rows afterwards are those of a function without steps, or the step is refused.

``step_cases.json`` has what an adversary found or tried: files, an edit, and what is expected.
"""

from __future__ import annotations

import json
import sys
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

#: A refused step's message contains one of these.
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


OUTSIDE = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import volstream
from {module} import {name}

{step}

def f(file):
    for text in file.read_text().split():
        yield {{"n": embed(text)}}
"""


@pytest.mark.parametrize("step_there", [False, True])
@pytest.mark.parametrize("edited", ["helper", "inner"])
def test_a_package_that_is_neither_installed_nor_beside_the_function_counts_whole(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_there: bool, edited: str
) -> None:
    """As of a project that is installed to be edited."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python tells versions of a second by their size only
    package = f"outside_{tmp_path.name.replace('-', '_')}"
    step = "@volstream.step\ndef embed(text): return go(text)\n"
    root, there = tmp_path / "job", tmp_path / package
    root.mkdir()
    (there / "inner").mkdir(parents=True)
    (there / "inner" / "__init__.py").write_text("def inner(text): return text + '1'\n")
    here = f"import volstream\nfrom .inner import inner\ndef go(text): return inner(text) + '1'\n{step}"
    (there / "__init__.py").write_text("")
    (there / "helper.py").write_text(here)
    name, own = ("embed", "") if step_there else ("go", step)
    (root / "code.py").write_text(OUTSIDE.format(module=f"{package}.helper", name=name, step=own))
    steps = StepTarget(FolderOfBlobs(str(tmp_path / "warehouse"), "_steps/j"), 1 << 20)
    assert called(root, "code.py:f", store, steps)[0] == ["ab11", "cd11"]
    path = there / "helper.py" if edited == "helper" else there / "inner" / "__init__.py"
    path.write_text(path.read_text().replace("'1'", "'2'"))
    for module in [module for module in sys.modules if module.startswith(package)]:
        del sys.modules[module]  # as another process
    expected = ["ab12", "cd12"] if edited == "helper" else ["ab21", "cd21"]
    # Another version of the job's code, so that it is imported again.
    (root / "code.py").write_text((root / "code.py").read_text() + "\n\ndef g(): pass\n")
    assert called(root, "code.py:f", store, steps)[0] == expected
