"""The client for programs, against the console of a real home behind its HTTP server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.server.console.collectors import Empty
from tests.integration.server.working import working
from tests.waiting import eventually
from volstream.base.privacy import token_of
from volstream.client import Client
from volstream.errors import DependencyError, InvalidStateError, InvalidValueError, NotFoundError, VolstreamError
from volstream.jobs.runs.lease import held
from volstream.server.console.app import Console
from volstream.server.console.server import HttpServer

if TYPE_CHECKING:
    from tests.integration.conftest import Place

CODE = """
def f(file):
    text = file.read_text()
    if "bad" in text:
        raise ValueError("it is bad")
    return {"n": len(text)}
"""


class Served:
    """A place whose daemon can be asked."""

    def __init__(self, place: Place, client: Client, url: str) -> None:
        self.place = place
        self.client = client
        self.url = url


@pytest.fixture
def served(place: Place) -> Iterator[Served]:
    for number in range(4):
        place.put(f"{number}.txt", "x" * (number + 1))
    place.put("bad.txt", "bad")
    place.refresh()
    place.job(CODE, returns="n INT", retries=0)
    console = Console(place.session, lambda: (True, {}), lambda: (True, {"status": "ready"}), Empty())  # type: ignore[arg-type]  # as one is used
    server = HttpServer(console.app, 0)
    server.start()
    url = f"http://127.0.0.1:{server.port}"
    with working(place.session), Client(url, token_of(place.session.home.settings)) as client:
        yield Served(place, client, url)
    console.stop()
    server.stop()


@pytest.mark.long
def test_a_program_runs_a_job_and_has_its_table_verified(served: Served) -> None:
    client, place = served.client, served.place
    done = client.run("j")
    assert (done["processed"], done["failed"], done["rows"]) == (4, 1, 4)
    assert client.status()["jobs"][0]["job"] == "j"
    assert client.job("j")["status"]["failed"] == 1
    place.session.spark.sql(f"DELETE FROM {place.at} WHERE _file_path = '2.txt'").collect()
    found = client.verify("j")
    assert (found["files"], found["wrong"]) == (5, {"missing": 1})
    assert found["examples"] == [{"path": "2.txt", "problem": "missing"}]
    assert "  missing   2.txt" in found["report"].splitlines()
    assert client.verify("j", fix=True)["fixed"] == 1
    assert client.replay("j", "size > 2")["processed"] == 2


@pytest.mark.long
def test_a_program_refreshes_pauses_and_retries(served: Served) -> None:
    client, place = served.client, served.place
    client.run("j")
    place.put("new.txt", "new")
    assert client.refresh(str(place.volume.name)) == "1 new, 0 changed, 0 removed."
    client.pause("j")
    assert client.job("j")["status"]["state"] == "paused"
    with pytest.raises(InvalidStateError, match="is paused"):
        client.run("j")
    client.resume("j")
    with pytest.raises(InvalidValueError, match="No files are selected"):
        client.retry("j", [])
    with pytest.raises(InvalidValueError, match="not a name"):
        client.job("..")
    assert client.retry("j", ["bad.txt"]) == "1 file due again at the next run."
    place.put("bad.txt", "good")
    client.refresh(str(place.volume.name))
    assert client.run("j")["processed"] == 2


@pytest.mark.long
def test_errors_of_the_daemon_are_raised_as_its_own(served: Served) -> None:
    client, place = served.client, served.place
    with pytest.raises(NotFoundError, match="no job none"):
        client.run("none")
    with pytest.raises(InvalidValueError, match="no_such_column"):
        client.replay("j", "no_such_column = 1")
    job = place.session.jobs.get("j")
    with held(place.session.home.catalog, job.id, job.name, 10.0):
        with pytest.raises(VolstreamError, match="Another run of the job j is in progress"):
            client.verify("j")
        with pytest.raises(TimeoutError, match="it goes on"):
            client.run("j", seconds=0.1)
    eventually(lambda: client.job("j")["status"]["done"] == 4, timeout=60)
    with pytest.raises(NotFoundError, match="no task 999"):
        client.wait(999)
    with Client(served.url, "wrong") as stranger, pytest.raises(VolstreamError, match="token"):
        stranger.status()


def test_a_daemon_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOLSTREAM_TOKEN", raising=False)
    with Client("http://127.0.0.1:9", "x") as client, pytest.raises(DependencyError, match="did not answer"):
        client.status()
    with Client("nonsense", "x") as client, pytest.raises(VolstreamError):
        client.status()
    with pytest.raises(InvalidValueError, match="token is missing"):
        Client("http://127.0.0.1:9")
