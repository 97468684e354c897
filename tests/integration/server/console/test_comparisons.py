"""Other code is compared from a page: in the background, with an entry in the audit, and without a trace in the table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.server.console.test_pages import Site, busy, site
from tests.waiting import eventually
from volstream.errors import VolstreamError
from volstream.server.console.http import Query
from volstream.server.console.queries import Work, compare

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
    eventually(lambda: site.json(path)["task"]["ended_on"] is not None, 60)
    return site.json(path)


@pytest.mark.long
def test_other_code_is_compared_from_the_page_and_writes_nothing(busy: Site) -> None:
    before = busy.json("/jobs/j")["preview"], busy.json("/jobs/j")["batches"]
    begun = busy.post("/jobs/j/compare", 202, function=code(busy, OTHER), sample="100", both="1")
    path = begun["url"]
    assert path == f"/jobs/j/compare/{begun['audit']}"
    found = ended(busy, path)
    assert found["task"]["state"] == "finished"
    differences = found["comparison"]["differences"]
    assert differences["columns"]["n"] == {"count": 1, "examples": [{"path": "in/good3", "old": 3, "new": 4}]}
    assert [(one["kind"], one["files"]) for one in differences["healed"]] == [("raised", 4)]
    assert (differences["files"], differences["same"], differences["new_failures"]) == (14, 9, [])
    assert found["comparison"]["cost"]["seconds"]["median"] > 0
    assert found["comparison"]["own"]["files"] == found["comparison"]["own"]["same"]
    assert found["next"][1] == "volstream replay j"
    assert (busy.json("/jobs/j")["preview"], busy.json("/jobs/j")["batches"]) == before
    assert ("compare", "job j", "5 of 14 files would change; nothing was written.") in busy.audited()

    page = busy.page(path)
    for text in ("in/good3", "Healed failures", "volstream alter-job j --function"):
        assert text in page
    assert "5 of 14 files would change" in busy.page("/jobs/j/compare")
    assert "/jobs/j/compare" in busy.page("/jobs/j")


@pytest.mark.long
def test_a_condition_chooses_files_and_mistakes_are_told(busy: Site) -> None:
    other = code(busy, OTHER)
    chosen = busy.post("/jobs/j/compare", 202, function=other, where="relative_path LIKE 'in/good%'")
    assert ended(busy, chosen["url"])["comparison"]["differences"]["files"] == 4
    wrong = busy.post("/jobs/j/compare", 202, function="nowhere.py:f")
    found = ended(busy, wrong["url"])["task"]
    assert found["state"] == "failed"
    assert "nowhere.py" in found["result"]
    assert found["result"] in busy.page(wrong["url"]).replace("&#39;", "'")
    for status, form in ((400, {}), (400, {"function": other, "sample": "2001"}), (400, {"function": other, "sample": "x"})):
        assert busy.post("/jobs/j/compare", status, **form)["error"]["message"]
    assert busy.post("/jobs/none/compare", 404, function=other)["error"]["type"] == "NotFoundError"
    assert busy.json("/jobs/j/compare/999999", 404)["error"]["type"] == "NotFoundError"
    assert busy.json("/jobs/j/compare/x", 404)["error"]["type"] == "NotFoundError"
    refused = busy.client.post("/jobs/j/compare", data={"function": other}, headers={"authorization": "Bearer wrong"})
    assert refused.status_code == 401


def test_code_that_ends_the_process_that_imports_it_does_not_end_the_daemon(busy: Site) -> None:
    begun = busy.post("/jobs/j/compare", 202, function=code(busy, "import os\nos._exit(7)"))
    found = ended(busy, begun["url"])["task"]
    assert found["result"] == "The module other cannot be imported: its process ended with exit status 7."


@pytest.mark.long
def test_a_comparison_is_cancelled_while_the_code_runs(busy: Site) -> None:
    begun = busy.post("/jobs/j/compare", 202, function=code(busy, SLOW, "slow.py"), sample="2")
    eventually(lambda: busy.json(begun["url"])["task"]["step"] == "Running the other code", 60)
    assert "Running the other code" in busy.page("/jobs/j")
    busy.post(f"/tasks/{begun['audit']}/cancel")
    found = ended(busy, begun["url"])
    assert (found["task"]["state"], found["comparison"]) == ("cancelled", None)
    assert ("compare", "job j", "It was cancelled.") in busy.audited()
    assert ">Cancelled<" in busy.page(begun["url"])
    assert busy.post(f"/tasks/{begun['audit']}/cancel", 409)["error"]["message"].endswith("has already ended.")
    other = busy.post("/jobs/j/compare", 202, function=code(busy, OTHER))
    assert ended(busy, other["url"])["task"]["state"] == "finished"


def test_a_comparison_ends_at_its_limit_of_time(busy: Site) -> None:
    session = busy.place.session
    audit = session.home.catalog.audit
    slow = compare(session, "j", Query({"function": [code(busy, SLOW, "slow.py")], "sample": ["2"]}), max_seconds=2)
    task = audit.queue(audit.begin("compare", "job j", "test"), {}, "ELSEWHERE")
    work = Work(task, audit)
    with pytest.raises(VolstreamError):  # the interrupted query's
        slow(work)
    work.over.set()
    assert (work.why, work.outcome) == ("The comparison took longer than 2s and was stopped.", None)
    assert work.remedy == "To run it without a time limit: volstream compare j."
