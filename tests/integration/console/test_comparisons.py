"""Other code is compared from a page: in the background, with an entry in the audit, and without a trace in the table."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.integration.console.test_pages import Site, busy, site
from tests.waiting import eventually
from volstream import config
from volstream.console.comparisons import Comparing, Comparisons
from volstream.console.query import Query
from volstream.errors import InvalidStateError
from volstream.jobs.comparison import Comparison
from volstream.session import Session

__all__ = ["busy", "site"]

#: Like the job's, but counts one more in what has three characters, and reads what is bad.
OTHER = """
def f(file):
    text = file.read_bytes().decode("latin-1")
    return {"n": len(text) + (text == "xxx")}
"""

#: Never ends by itself.
SLOW = """
import time
def f(file):
    time.sleep(600)
    return {"n": 1}
"""


def code(site: Site, text: str, name: str = "other.py") -> str:
    (site.place.folder.parent / "code" / name).write_text(text)
    return f"{name}:f"


def ended(site: Site, path: str) -> dict[str, Any]:
    """The comparison at a path, once it has ended."""
    eventually(lambda: site.json(path)["comparison"]["state"] != "running", 60)
    found: dict[str, Any] = site.json(path)["comparison"]
    return found


def test_other_code_is_compared_from_the_page_and_writes_nothing(busy: Site) -> None:
    before = busy.json("/jobs/j")["preview"], busy.json("/jobs/j")["batches"]
    begun = busy.post("/jobs/j/compare", 202, function=code(busy, OTHER), sample="100", both="1")
    path = begun["url"]
    assert path == f"/jobs/j/compare/{begun['comparison']['id']}"
    found = ended(busy, path)
    assert found["error"] is None
    differences = found["result"]["differences"]
    assert differences["columns"]["n"] == {"count": 1, "examples": [{"path": "in/good3", "old": 3, "new": 4}]}
    assert [(one["kind"], one["files"]) for one in differences["healed"]] == [("raised", 4)]
    assert (differences["files"], differences["same"], differences["new_failures"]) == (14, 9, [])
    assert found["result"]["cost"]["seconds"]["median"] > 0
    assert found["result"]["own"]["files"] == found["result"]["own"]["same"]
    assert found["next"][1] == "volstream replay j"
    assert (busy.json("/jobs/j")["preview"], busy.json("/jobs/j")["batches"]) == before
    assert ("compare", "job j with other.py:f", "5 of 14 files would change; nothing was written.") in busy.audited()

    page = busy.page(path)
    for text in ("in/good3", "Healed failures", "volstream alter-job j --function"):
        assert text in page
    assert "5 of 14 files would change" in busy.page("/jobs/j/compare")
    assert "/jobs/j/compare" in busy.page("/jobs/j")


@pytest.mark.long
def test_a_condition_chooses_files_and_mistakes_are_told(busy: Site) -> None:
    other = code(busy, OTHER)
    chosen = busy.post("/jobs/j/compare", 202, function=other, where="relative_path LIKE 'in/good%'")
    assert ended(busy, chosen["url"])["result"]["differences"]["files"] == 4
    wrong = busy.post("/jobs/j/compare", 202, function="nowhere.py:f")
    found = ended(busy, wrong["url"])
    assert found["state"] == "failed"
    assert "nowhere.py" in found["error"]
    assert found["error"] in busy.page(wrong["url"]).replace("&#39;", "'")
    for status, form in (
        (400, {}),
        (400, {"function": other, "sample": "2001"}),
        (400, {"function": other, "sample": "x"}),
    ):
        assert busy.post("/jobs/j/compare", status, **form)["error"]["message"]
    assert busy.post("/jobs/none/compare", 404, function=other)["error"]["type"] == "NotFoundError"
    assert busy.json("/jobs/j/compare/999999", 404)["error"]["type"] == "NotFoundError"
    assert busy.json("/jobs/j/compare/x", 404)["error"]["type"] == "NotFoundError"
    refused = busy.client.post("/jobs/j/compare", data={"function": other}, headers={"authorization": "Bearer wrong"})
    assert refused.status_code == 401


def test_code_that_ends_the_process_that_imports_it_does_not_end_the_daemon(busy: Site) -> None:
    begun = busy.post("/jobs/j/compare", 202, function=code(busy, "import os\nos._exit(7)"))
    found = ended(busy, begun["url"])
    assert found["error"] == "The module other cannot be imported: its process ended with exit status 7."


@pytest.mark.long
def test_one_comparison_of_a_job_at_a_time_which_ends_at_its_limit(busy: Site) -> None:
    told: list[Collection[str]] = []
    comparisons = Comparisons(busy.place.session, told.append, max_seconds=4)
    slow = Query({"function": [code(busy, SLOW, "slow.py")], "sample": ["2"]})
    one = comparisons.begin("j", slow, "test")
    with pytest.raises(Exception, match="being compared already"):
        comparisons.begin("j", slow, "test")
    eventually(lambda: one.ended_on is not None, 60)
    assert (one.state, one.result) == ("failed", None)
    assert one.error is not None
    assert one.error.startswith("The comparison took longer than 4s")
    eventually(lambda: any(f"comparison:{one.id}" in topics for topics in told))
    assert ("compare", "job j with slow.py:f", f"failed: {one.error}") in busy.audited()
    again = comparisons.begin("j", Query({"function": [code(busy, OTHER)]}), "test")
    comparisons.stop()
    assert again.ended_on is not None
    with pytest.raises(Exception, match="stopping"):
        comparisons.begin("j", slow, "test")


class Instant(Comparisons):
    """Comparisons that fail at once, but one that waits to be let go."""

    go = threading.Event()

    def _compare(self, one: Comparing, *_: object) -> Comparison:
        if one.job == "slow":
            assert self.go.wait(60)
        raise InvalidStateError("There is nothing to compare with.")


def test_a_comparison_in_hand_is_known_however_many_others_have_ended_since(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def f(file): pass")
    (tmp_path / "files").mkdir()
    with Session(config.load(tmp_path / "home")) as session:
        session.volumes.create("v", str(tmp_path / "files"))
        for job in ("slow", "quick"):
            session.jobs.create(job, volume="v", function=f"{tmp_path}/code.py:f", into=job, returns="n INT")
        made = Instant(session, lambda _: None)
        form = Query({"function": ["code.py:f"]})
        slow = made.begin("slow", form, "test")
        for _ in range(60):
            quick = made.begin("quick", form, "test")
            eventually(lambda one=quick: one.ended_on is not None)  # type: ignore[misc]
        assert made.get("slow", str(slow.id)) is slow
        assert len(made.of("quick")) < 60
        made.go.set()
        eventually(lambda: slow.ended_on is not None)
        made.stop()
