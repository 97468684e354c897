"""The console of a real home: each page as HTML and as JSON, actions, and what they leave behind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from tests.integration.conftest import place_in, settings_in
from tests.integration.server.console.collectors import Empty
from tests.integration.server.working import working
from tests.waiting import eventually
from volstream.base.definitions import QueueType
from volstream.base.model.work import BatchState
from volstream.base.privacy import token_of
from volstream.errors import StreamBusyError
from volstream.jobs.runs.lease import held
from volstream.ops.inspection.doctor import shown_settings
from volstream.server.console.app import Console

if TYPE_CHECKING:
    from tests.integration.conftest import Place
    from volstream.spark.session import SparkGateway

PICKY = """
def f(file):
    text = file.read_text()
    print("has", len(text))
    if "bad" in text:
        raise ValueError(f"{file.relative_path!r} is bad")
    return {"n": len(text)}
"""

#: Notes each call, and waits in it until it may go on.
COUNTING = """
import time
from pathlib import Path


def f(file):
    with open({called!r}, "a") as called:
        called.write("1")
    while not Path({go!r}).exists():
        time.sleep(0.02)
    return {{"n": 1}}
"""

#: One by one pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c626001000000ffff03000006000557bfabd40000000049454e44ae426082"
)

HOSTILE = ["<img src=x onerror=alert(1)>", "${x}", "\x1b[31mred", "\u202egnp.exe", "x" * 220]

JSON = {"accept": "application/json"}


class Site:
    """The console of a place, as a program that has the token."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.said: dict[str, Any] = {"status": "ready", "engine": {"state": "running"}}
        self.console = Console(place.session, lambda: (True, {}), lambda: (True, self.said), Empty())  # type: ignore[arg-type]  # as one is used
        bearer = {"authorization": f"Bearer {token_of(place.session.home.settings)}"}
        self.client = TestClient(self.console.app, base_url="http://127.0.0.1", headers=bearer, follow_redirects=False)

    def json(self, path: str, status: int = 200, /, **query: str) -> dict[str, Any]:
        answer = self.client.get(path, params=query or None, headers=JSON)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def page(self, path: str, /, **query: str) -> str:
        answer = self.client.get(path, params=query or None, headers={"accept": "text/html"})
        assert answer.status_code == 200, answer.text
        return answer.text

    def post(self, path: str, status: int = 200, /, **form: str | list[str]) -> dict[str, Any]:
        answer = self.client.post(path, data=form, headers=JSON)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def audited(self) -> list[tuple[str, str, str | None]]:
        return [(one["action"], one["object"], one["result"]) for one in self.json("/audit")["entries"]]


@contextmanager
def site_of(place: Place) -> Iterator[Site]:
    made = Site(place)
    with working(place.session):
        yield made
    made.console.stop()


@pytest.fixture
def site(place: Place) -> Iterator[Site]:
    with site_of(place) as made:
        yield made


def ran(site: Site) -> Site:
    """Runs a job over 14 files: some have hostile names, and four fail."""
    place = site.place
    for number in range(4):
        place.put(f"in/good{number}", "x" * number)
        place.put(f"in/bad{number}", "bad")
    for name in HOSTILE:
        place.put(name, "fine")
    (place.folder / "p.png").write_bytes(PNG)
    place.refresh()
    place.job(PICKY.replace("read_text()", "read_bytes().decode('latin-1')"), retries=0)
    place.run()
    return site


@pytest.fixture
def busy(site: Site) -> Site:
    """A site after a run, for tests that change it."""
    return ran(site)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, gateway: SparkGateway) -> Iterator[Site]:
    """A site after a run, for all tests that leave volume, job and table as they are."""
    folder = tmp_path_factory.mktemp("shown")
    with place_in(folder, settings_in(folder), gateway) as place, site_of(place) as made:
        yield ran(made)


def paths(found: Mapping[str, Any]) -> list[str]:
    return [entry["path"] for entry in found["directory"]["entries"]]


def test_every_page_answers_as_html_and_as_json_and_is_described(shown: Site) -> None:
    batch = shown.json("/jobs/j/batches")["batches"][0]["id"]
    asked = {"/volumes/{volume}/files": {"path": "in/bad1"}, "/volumes/{volume}/content": {"path": "p.png"}}
    task = shown.post("/jobs/j/verify", 202)["audit"]
    eventually(lambda: shown.json(f"/tasks/{task}")["task"]["state"] == "finished", 60)
    described = shown.json("/openapi.json")
    schemas = described["components"]["schemas"]
    for schema in schemas.values():
        schema["additionalProperties"] = False  # nothing is left out
    for path, methods in described["paths"].items():
        if "get" not in methods or path in ("/events", "/metrics"):
            continue
        assert methods["get"]["summary"]
        real = path.format(volume="v", job="j", batch=batch, table="t", task=task)
        answer = shown.client.get(real, params=asked.get(path, {}), headers=JSON)
        assert answer.status_code == 200, (path, answer.text)
        if "content" not in path and "z" not in path:
            assert answer.headers["content-type"] == "application/json"
            (content,) = methods["get"]["responses"]["200"]["content"].values()
            jsonschema.validate(answer.json(), {**content["schema"], "components": {"schemas": schemas}})
            page = shown.page(real, **asked.get(path, {}))
            assert page.startswith("<!doctype html>")
            assert "onerror=alert(1)>" not in page.replace("&gt;", ">").replace("&lt;img src=x onerror=alert(1)>", "")


@pytest.mark.long
def test_versions_of_code_stand_side_by_side_and_files_of_older_code_are_replayed(busy: Site) -> None:
    code = busy.place.folder.parent / "code" / "job.py"
    code.write_text(code.read_text() + "# no change\nEDITED = '<b>edited</b>'\n")
    before = busy.json("/jobs/j/code")
    assert (before["old"]["number"], before["new"], len(before["versions"])) == (1, before["edited"], 1)
    assert "not run yet" in busy.page("/jobs/j/code")
    busy.place.put("in/good9", "new")
    busy.place.refresh()
    busy.place.run()
    found = busy.json("/jobs/j/code")
    assert [(one["number"], one["files"], one["current"]) for one in found["versions"]] == [(2, 1, True), (1, 10, False)]
    ((changed,),) = [[file["lines"] for file in found["files"]]]
    assert changed[-1] == "+EDITED = '<b>edited</b>'"
    page = busy.page("/jobs/j/code", old="1", new="2")
    assert "+EDITED = &#39;&lt;b&gt;edited" in page
    assert "<b>edited" not in page
    assert busy.json("/jobs/j/code", 404, old="3")["error"]["type"] == "NotFoundError"
    assert "10 files last processed by older code." in busy.page("/jobs/j")
    task = busy.post("/jobs/j/replay", 202, stale="1")["audit"]
    eventually(lambda: busy.json(f"/tasks/{task}")["task"]["state"] == "finished", 60)
    assert [one["files"] for one in busy.json("/jobs/j/code")["versions"]] == [11, 0]
    assert "older code" not in busy.page("/jobs/j")


def test_the_overview_says_what_is_wrong(shown: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown.json("/")
    (job,) = found["jobs"]
    (volume,) = found["volumes"]
    assert (job["failed"], job["waiting"], job["into"], volume["files"]) == (4, 0, "t", 14)
    assert [(one["kind"], one["name"], one["severe"]) for one in found["problems"]] == [("job", "j", False)]
    monkeypatch.setitem(shown.said, "failing_volumes", {"v": "The folder does not exist."})
    assert shown.json("/")["problems"][0]["why"] == "The folder does not exist."
    assert "The folder does not exist." in shown.page("/")


def test_an_overview_without_jobs_says_how_to_make_one(site: Site) -> None:
    assert "create-job NAME --volume v --function" in site.page("/")


def test_the_overview_shows_when_jobs_worked(shown: Site) -> None:
    for span in (None, "minutes", "hour", "day", "week"):
        found = shown.json("/", **({} if span is None else {"span": span}))["timeline"]
        assert (found["span"], found["idle"]) == (span or "minutes", 0)
        ((line),) = found["lines"]
        (bar,) = line["bars"]
        assert (line["job"], bar["kind"], bar["batches"], bar["files"], bar["failed"]) == ("j", "bad", 1, 14, 4), span
        assert 0 < bar["start"] < bar["end"] <= 1
        assert (sum(found["done"]), sum(found["failed"])) == (10, 4)
        assert max(found["waiting"]) == 14, "they waited from the refresh until their commit"
        assert found["waiting"][0] == 0
    assert shown.client.get("/?span=century", headers=JSON).status_code == 400


def test_what_waits_now_is_in_the_picture_until_now(busy: Site) -> None:
    busy.place.put("in/later", "later")
    busy.place.refresh()
    assert busy.json("/")["timeline"]["waiting"][-1] in (1, 15), "the others may have waited in the same part of the hour"


def test_a_job_says_how_long_changes_waited_and_what_was_counted_by_day(site: Site) -> None:
    site.place.put("a", "abc")
    site.place.refresh()
    site.place.job("def f(file):\n    file.count('tokens', file.size)\n    return {'n': 1}")
    site.place.run()
    found = site.json("/jobs/j")
    assert [(one["name"], one["numbers"][-1], sum(one["numbers"])) for one in found["counted_days"]] == [("tokens", 3.0, 3.0)]
    (point,) = found["history"]
    assert 0 <= point["seconds"] <= point["waited"] < 60
    assert "tokens" in site.page("/jobs/j")


def test_the_overview_says_why_files_of_a_job_failed_and_links_to_them(shown: Site) -> None:
    cause = shown.json("/")["causes"]["j"]
    assert (cause["kind"], cause["files"], cause["why"].startswith("ValueError: ")) == ("raised", 4, True)
    link = f'href="/jobs/j/failures?group={cause["id"]}"'
    (line,) = (one for one in shown.page("/").split("<li>") if "quarantined." in one and "problems" not in one)
    assert (link in line, "is bad" in line) == (True, True)
    assert len(shown.json("/jobs/j/failures", group=cause["id"])["failures"]) == 4


def test_failures_of_all_jobs_have_a_page(shown: Site) -> None:
    (job,) = shown.json("/failures")["jobs"]
    (group,) = job["groups"]
    assert (job["job"], job["volume"], group["files"]) == ("j", "v", 4)
    assert re.fullmatch(r"ValueError: \S+ is bad \(for example\)", group["why"])
    assert "is bad" in shown.page("/failures")
    path = shown.json("/jobs/j/failures")["failures"][0]["path"]
    found = {text: shown.json("/failures", search=text)["jobs"] for text in ("IS BAD", path, "j", "of another")}
    assert [(text, sum(group["files"] for of in jobs for group in of["groups"])) for text, jobs in found.items()] == [
        ("IS BAD", 4),
        (path, 1),
        ("j", 4),
        ("of another", 0),
    ]
    assert "No failure has this" in shown.page("/failures", search="of another")


def test_objects_are_searched_by_a_part_of_their_names(shown: Site) -> None:
    found = shown.json("/", search="v")
    assert (len(found["volumes"]), len(found["jobs"]), found["all_tables"], found["counts"]["jobs"]) == (1, 0, [], 1)
    assert 'value="v"' in shown.page("/", search="v")


def test_the_overview_says_how_many_files_have_rows_made_by_older_code(busy: Site) -> None:
    assert busy.json("/")["jobs"][0]["older_code"] == 0
    source = Path(str(busy.json("/jobs/j")["job"]["function"]).rpartition(":")[0])
    source.write_text(source.read_text().replace('"has"', '"had"'))
    assert busy.json("/")["jobs"][0]["older_code"] == 10
    assert "10 from older code" in busy.page("/")


def test_a_directory_is_shown_folder_by_folder_and_searched(shown: Site) -> None:
    assert paths(shown.json("/volumes/v")) == sorted([*HOSTILE, "in/", "p.png"])
    assert paths(shown.json("/volumes/v", prefix="in/", limit="3")) == ["in/bad0", "in/bad1", "in/bad2"]
    after = shown.json("/volumes/v", prefix="in/", limit="3")["directory"]["next"]
    assert paths(shown.json("/volumes/v", prefix="in/", limit="3", after=after))[0] == "in/bad3"
    assert paths(shown.json("/volumes/v", search="GOOD3")) == ["in/good3"]


def test_a_file_has_its_story(shown: Site) -> None:
    found = shown.json("/volumes/v/files", path="in/bad1")
    assert [event["what"] for event in found["events"]][-1] == "exists now"
    assert "failed" in [event["what"] for event in found["events"]]
    for name in HOSTILE:
        said = shown.page("/volumes/v/files", path=name)
        assert "<img src=x" not in said
        assert all(one.isprintable() or one == "\n" for one in said)
    assert shown.json("/volumes/v/files", 404, path="never")["error"]["type"] == "NotFoundError"


def test_failures_are_grouped_by_cause_and_retried_by_group(busy: Site) -> None:
    (group,) = busy.json("/jobs/j")["groups"]
    assert (group["files"], group["kind"], group["states"]) == (4, "raised", {"quarantined": 4})
    assert "ValueError" in group["example"]["traceback"]
    page = busy.json("/jobs/j/failures", group=group["id"], limit="3")
    rest = busy.json("/jobs/j/failures", group=group["id"], limit="3", after=str(page["next"]))
    found = [one["path"] for one in [*page["failures"], *rest["failures"]]]
    assert sorted(found) == [f"in/bad{number}" for number in range(4)]
    assert rest["next"] is None
    done = busy.post("/jobs/j/retry", group=group["id"])
    assert done["result"] == "4 files due again at the next run."
    assert busy.post("/jobs/j/skip", path=["in/bad0", "in/bad1"])["result"] == "2 files skipped."
    assert busy.json("/jobs/j")["status"]["failures"] == {"retrying": 2, "skipped": 2}
    assert busy.post("/jobs/j/skip", all="1")["result"] == "4 files skipped."
    assert [entry[:2] for entry in busy.audited()] == [("skip", "job j"), ("skip", "job j"), ("retry", "job j")]


def test_an_action_that_cannot_be_done_says_why(site: Site) -> None:
    site.place.job(PICKY)
    wrong: list[tuple[dict[str, str], int]] = [
        ({}, 400),
        ({"all": "1", "path": "x"}, 400),
        ({"group": "none"}, 404),
        ({"path": "never"}, 404),
    ]
    for form, status in wrong:
        assert site.post("/jobs/j/retry", status, **form)["error"]["message"]
    assert site.post("/jobs/none/retry", 404, all="1")["error"]["type"] == "NotFoundError"
    assert [entry["state"] for entry in site.json("/audit")["entries"]] == ["failed"] * len(wrong)


def test_what_is_requested_while_a_run_is_in_progress_follows_it(shown: Site) -> None:
    home = shown.place.session.home
    job = shown.place.session.jobs.get("j")
    with held(home.catalog, job.id, job.name, 10.0):
        begun = shown.post("/jobs/j/run", 202)
        eventually(lambda: "Another run of the job j is in progress" in (shown.json(begun["url"])["task"]["step"] or ""))
        assert ">Queued<" in shown.page("/audit")
        task = shown.json(begun["url"])["task"]
        assert (task["id"], task["state"]) == (begun["audit"], "queued")
        assert shown.json("/audit")["entries"][0] == task
        assert "Another run of the job j is in progress" in shown.page("/jobs/j")
        status, problem = (shown.json("/jobs/j")[key] for key in ("status", "problem"))
        assert (status["running"], status["outcome"], problem["severe"]) == (True, "running", False)
    eventually(lambda: shown.audited()[0] == ("run", "job j", "There was nothing to do."), timeout=60)


@pytest.mark.long
def test_what_a_verification_found_has_a_page_that_puts_it_right(busy: Site) -> None:
    busy.place.session.spark.sql(f"DELETE FROM {busy.place.at} WHERE _file_path = 'p.png'").collect()
    assert "fix cannot be" in busy.post("/jobs/j/verify", 400, fix="no")["error"]["message"]
    begun = busy.post("/jobs/j/verify", 202, fix="0")
    eventually(lambda: busy.json(begun["url"])["task"]["state"] == "finished", timeout=60)
    page = busy.page(begun["url"])
    assert "14 files compared with a table of 9 rows: 1 missing." in page
    assert '<button type="submit">Repair</button>' in page
    assert busy.audited()[0] == ("verify", "job j", "14 files compared with a table of 9 rows: 1 missing.")


def test_a_run_that_waits_for_another_one_is_cancelled(shown: Site) -> None:
    session = shown.place.session
    job = session.jobs.get("j")
    with held(session.home.catalog, job.id, job.name, 10.0):
        begun = shown.post("/jobs/j/run", 202)
        eventually(lambda: shown.json("/tasks")["tasks"][0]["step"])
        done = shown.post(f"/tasks/{begun['audit']}/cancel")
        assert (done["action"], done["object"], done["finished"]) == ("cancel", "run job j", True)
        eventually(lambda: shown.json("/tasks")["tasks"][0]["state"] == "cancelled")


def test_no_page_shows_the_names_of_processes(shown: Site) -> None:
    batch = shown.json("/jobs/j/batches")["batches"][0]["id"]
    job = shown.place.session.jobs.get("j")
    with held(shown.place.session.home.catalog, job.id, job.name, 10.0) as owner:
        said = [shown.client.get(path, headers=JSON).text for path in ("/", "/jobs/j", f"/jobs/j/batches/{batch}")]
        said += [shown.page(path) for path in ("/", "/jobs/j", f"/jobs/j/batches/{batch}")]
        with pytest.raises(StreamBusyError) as refused:
            shown.place.run()
        said.append(str(refused.value))
    host, pid, *_ = owner.rsplit("/", 3)
    assert not [text[text.index(f"{host}/{pid}") - 60 :][:200] for text in said if f"{host}/{pid}" in text]


def test_a_job_is_paused_resumed_and_run(busy: Site) -> None:
    assert busy.post("/jobs/j/pause")["finished"]
    assert busy.json("/jobs/j")["status"]["state"] == "paused"
    busy.post("/jobs/j/resume")
    assert busy.json("/jobs/j")["status"]["state"] == "active"
    busy.place.put("new", "abc")
    busy.place.refresh()
    begun = busy.post("/jobs/j/run", 202)
    assert not begun["finished"]
    eventually(lambda: busy.audited()[0] == ("run", "job j", "1 file processed, 0 failed; 1 row."), timeout=60)
    assert ("new", 3) in busy.place.table()


@pytest.mark.long
def test_a_replay_goes_on_after_the_end_of_the_daemon_that_began_it(place: Place) -> None:
    for number in range(3):
        place.put(str(number), "x")
    place.refresh()
    called, go = place.folder.parent / "called", place.folder.parent / "go"
    place.job(COUNTING.format(called=str(called), go=str(go)), returns="n INT", max_files=1)
    go.touch()
    place.run()
    called.write_text("")
    go.unlink()
    site, catalog = Site(place), place.session.home.catalog
    with working(place.session) as worker:
        task = site.post("/jobs/j/replay", 202)["audit"]
        try:
            eventually(lambda: called.read_text() != "", 60)
            eventually(lambda: catalog.audit.task(str(task)).plan_id is not None)
            worker.end()
        finally:
            go.touch()  # or the calls would wait for ever, and with them the engine
    before = len(called.read_text())
    plan = catalog.audit.task(str(task)).plan_id
    batches = [batch for batch in catalog.reports.batches_of() if batch.plan_id == plan]
    committed = sum(batch.state is BatchState.COMMITTED for batch in batches)
    assert (len(batches), committed < 3) == (3, True), "a batch may be called beside the one before"
    with working(place.session):
        eventually(lambda: site.json(f"/tasks/{task}")["task"]["state"] == "finished", 60)
    site.console.stop()
    assert len(called.read_text()) - before == 3 - committed


def test_a_refresh_and_held_removals_are_done_from_the_page(busy: Site) -> None:
    for path in ("in/good0", "p.png", *HOSTILE):
        busy.place.delete(path)
    busy.place.session.volumes.alter("v", max_removals="1")
    busy.post("/volumes/v/refresh", 202)
    eventually(lambda: busy.json("/volumes/v")["status"]["held_removals"] == 7, timeout=30)
    assert "Accept the removals" in busy.page("/volumes/v")
    busy.post("/volumes/v/accept-removals", 202)
    eventually(lambda: busy.json("/volumes/v")["status"]["files"] == 7, timeout=30)
    assert busy.json("/volumes/v")["status"]["held_removals"] == 0


def test_a_browser_is_sent_back_to_its_page_with_the_result(busy: Site) -> None:
    form = {"all": "1", "back": "/jobs/j"}
    answer = busy.client.post("/jobs/j/skip", data=form, headers={"accept": "text/html"})
    assert answer.status_code == 303
    assert re.fullmatch(r"/jobs/j\?done=\d+", answer.headers["location"])
    assert "4 files skipped." in busy.page(answer.headers["location"])
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
        answer = busy.client.post("/jobs/j/pause", data={"back": elsewhere}, headers={"accept": "text/html"})
        assert answer.headers["location"].startswith("/?done=")


def test_a_batch_has_its_files_its_attempts_and_its_failures(busy: Site) -> None:
    (batch,) = busy.json("/jobs/j/batches")["batches"]
    found = busy.json(f"/jobs/j/batches/{batch['id']}", limit="5")
    assert [one["state"] for one in found["attempts"]] == ["committed"]
    assert len(found["failures"]) == 4
    files = [one["path"] for one in found["files"]]
    while found["next"]:
        found = busy.json(f"/jobs/j/batches/{batch['id']}", limit="5", after=found["next"])
        files += [one["path"] for one in found["files"]]
    assert files == sorted([*HOSTILE, "p.png", *(f"in/{kind}{n}" for kind in ("good", "bad") for n in range(4))])
    busy.place.put("in/good0", "changed")
    busy.place.delete("p.png")
    busy.place.refresh()
    busy.place.run()
    newest = busy.json("/jobs/j/batches")["batches"][0]["id"]
    shown = busy.json(f"/jobs/j/batches/{newest}")["files"]
    assert [(one["path"], one["action"]) for one in shown] == [("in/good0", "changed"), ("p.png", "removed")]
    assert busy.json("/jobs/j/batches", before=newest)["batches"][0]["id"] == batch["id"]
    assert busy.json("/jobs/j/batches/none", 404)["error"]["type"] == "NotFoundError"


def test_only_pictures_of_the_directory_are_served_and_they_cannot_run(shown: Site) -> None:
    answer = shown.client.get("/volumes/v/content", params={"path": "p.png"})
    assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    (shown.place.folder / "hidden.png").write_bytes(PNG)
    for path, status in (("in/good1", 400), ("hidden.png", 404), ("../home/catalog.db", 404), ("", 404)):
        assert shown.client.get("/volumes/v/content", params={"path": path}, headers=JSON).status_code == status


def test_a_text_is_shown_as_it_begins_and_a_pdf_opens(site: Site) -> None:
    found = {
        "text": ("ä" * 5000).encode(),
        "pdf": b"%PDF-1.4",
        "binary": b"ab\0c",
        "latin": b"caf\xe9",
        "empty": b"",
        "p.png": PNG,
    }
    for name, content in found.items():
        (site.place.folder / name).write_bytes(content)
    site.place.refresh()
    shown = {name: site.json("/volumes/v/files", path=name)["preview"] for name in found}
    assert shown == {
        "text": {"content": None, "text": "ä" * 2048 + " ..."},
        "pdf": {"content": "application/pdf", "text": None},
        "p.png": {"content": "image/png", "text": None},
        **{name: {"content": None, "text": None} for name in ("binary", "latin", "empty")},
    }
    answer = site.client.get("/volumes/v/content", params={"path": "pdf"})
    assert (answer.content, answer.headers["content-type"]) == (b"%PDF-1.4", "application/pdf")
    (site.place.folder / "text").unlink()
    assert site.json("/volumes/v/files", path="text")["preview"]["text"] is None, "its object was deleted from the store"


def test_an_image_of_a_page_that_is_none_is_no_error(shown: Site) -> None:
    asked = {"path": "in/bad1"}
    assert shown.client.get("/volumes/v/content", params=asked, headers=JSON).status_code == 400
    assert shown.client.get("/volumes/v/content", params=asked, headers={"sec-fetch-dest": "image"}).status_code == 204


def test_a_table_shows_columns_rows_and_commits(shown: Site) -> None:
    found = shown.json("/tables/t")
    assert (found["rows"], found["job"]) == (10, "j")
    assert found["columns"][0] == {"column": "n", "type": "INT", "least": 0, "most": 73, "nulls": 0}
    assert len(found["sample"]["rows"]) == 10
    assert found["history"][0]["version"] == found["version"]
    (row,) = shown.json("/tables")["tables"]
    assert (row["table"], row["job"], row["filled_by"]) == ("t", "j", "job j")
    shown.json("/tables/none", 404)


def test_the_page_of_queries_offers_tables_examples_and_what_was_run(busy: Site) -> None:
    found = busy.json("/sql")
    assert found["tables"] == ["t"]
    for one in found["examples"]:
        if not one.startswith("DESCRIBE"):  # the engine of all tests does not know the table by its name
            busy.post("/sql", q=one)
    assert busy.json("/sql")["recent"] == [one for one in reversed(found["examples"]) if not one.startswith("DESCRIBE")]
    page = busy.page("/sql")
    assert page.count("volstream.failures LIMIT 20</a>") == 2
    assert ">t</a>" in page


def test_tables_have_rows_size_and_last_write_on_their_page_and_on_the_overview(shown: Site) -> None:
    (row,) = shown.json("/tables")["tables"]
    assert (row["rows"], row["note"]) == (10, None)
    assert row["bytes"] > 1000
    assert row["written_on"] is not None
    assert shown.json("/")["all_tables"] == [row]
    for path in ("/", "/tables"):
        assert 'data-label="Last write"><time' in shown.page(path)


def test_queries_run_and_nothing_else(shown: Site) -> None:
    found = shown.post("/sql", q="SELECT job, path FROM volstream.failures ORDER BY path", limit="3")["result"]
    assert found["columns"] == ["job", "path"]
    assert found["rows"] == [["j", f"in/bad{number}"] for number in range(3)]
    assert found["more"]
    assert shown.post("/sql", 400, q="DROP JOB j")["error"]["type"] == "SqlError"
    assert shown.post("/sql", 400, q="SELECT nothing FROM nowhere")["error"]["type"] == "SqlError"
    page = shown.client.post("/sql", data={"q": "SELECT '<b>' AS `<i>`"}, headers={"accept": "text/html"}).text
    assert "&lt;b&gt;" in page
    assert "<i>" not in page
    assert "SELECT 1 &lt;" in shown.page("/sql", q="SELECT 1 <")
    wrong = {"q": "SELECT nothing FRM nowhere at all"}
    page = shown.client.post("/sql", data=wrong, headers={"accept": "text/html"}).text
    said = page.partition('aria-label="Error">')[2].partition("</pre>")[0]
    assert "\n" in said
    assert "\\n" not in said
    [totals] = [row for row in shown.post("/sql", q="DESCRIBE JOB j", limit="200")["result"]["rows"] if row[0] == "totals"]
    assert totals[1].startswith('{"batches": ')
    assert "\n" not in totals[1]


def test_settings_have_no_secrets(place: Place) -> None:
    secret = {"spark_conf": {"spark.secret": "hidden-1"}, "ingest_token": SecretStr("hidden-2")}
    settings = place.session.home.settings.model_copy(
        update={"catalog_url": "", "spark_remote": "sc://h/;token=hidden-3", **secret}
    )
    shown = str(shown_settings(settings, "postgresql://user@host/db"))
    assert "hidden" not in shown
    assert "spark.secret" in shown


def test_the_doctor_checks_when_asked(shown: Site) -> None:
    assert shown.json("/doctor")["checks"] is None
    checks = shown.post("/doctor", volume="v")["checks"]
    assert {"catalog", "listing"} <= {check["what"] for check in checks}
    shown.post("/doctor", 404, volume="none")


def test_large_and_odd_forms_are_refused(site: Site) -> None:
    assert site.client.post("/sql", content=b"q=" + b"x" * (2 << 20), headers=JSON).status_code == 413
    assert site.client.post("/sql", content=b"\xff", headers=JSON).status_code == 400
    assert site.client.post("/", headers=JSON).status_code == 405
    assert site.client.get("/nowhere", headers=JSON).status_code == 404


def test_an_empty_home_says_how_to_begin(site: Site) -> None:
    site.place.session.volumes.drop("v")
    assert "volstream create-volume" in site.page("/")


def test_an_unlisted_volume_and_a_job_that_never_ran_have_pages(site: Site) -> None:
    site.place.session.volumes.create("w", str(site.place.folder), queue_type=QueueType.POLL)
    site.place.job(PICKY)
    for path in ("/", "/volumes/w", "/jobs/j", "/jobs/j/failures", "/jobs/j/logs", "/jobs/j/batches", "/tables"):
        assert site.page(path)


def test_probes_and_metrics_are_open(site: Site) -> None:
    stranger = TestClient(site.console.app, base_url="http://127.0.0.1")
    assert stranger.get("/readyz").json() == {**site.said, "problems": []}
    assert [stranger.get(path).status_code for path in ("/healthz", "/metrics", "/")] == [200, 200, 401]


def test_small_pictures_in_rows_are_shown_and_other_binary_values_are_not(site: Site) -> None:
    site.place.folder.mkdir(exist_ok=True)
    for name, content in {"p.png": PNG, "other": b"<svg onload=alert(1)>", "large.png": PNG + bytes(20_000)}.items():
        (site.place.folder / name).write_bytes(content)
    site.place.refresh()
    site.place.job("def f(file):\n    return {'b': file.read_bytes()}\n", returns="b BINARY")
    site.place.run()
    rows = {row["_file_path"]: row["b"] for row in site.json("/tables/t")["sample"]["rows"]}
    assert rows["p.png"].startswith("data:image/png;base64,iVBOR")
    assert (rows["other"], rows["large.png"]) == ("(21 bytes)", f"({len(PNG) + 20_000} bytes)")
    for page in (site.page("/tables/t"), site.page("/jobs/j")):
        assert page.count('<img class="picture" alt="" src="data:image/png;base64,') == 1
