"""What OpenLineage is told of jobs: by its file transport, and over HTTP."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.integration.conftest import COUNT, Place, session_on
from tests.integration.conftest import Home as TableHome
from tests.receivers import receiving
from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base.config import Settings
from volstream.base.definitions import QueueType
from volstream.errors import VolstreamError
from volstream.spark.session import SparkGateway

_FACETS = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "required": ["_producer", "_schemaURL"],
        "properties": {"_producer": {"format": "uri"}, "_schemaURL": {"format": "uri"}},
    },
}

_DATASETS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["namespace", "name"],
        "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": _FACETS}
        | {"inputFacets": _FACETS, "outputFacets": _FACETS},
    },
}

#: Of OpenLineage 2-0-2, what concerns run events.
RUN_EVENT = {
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": {"type": "string", "format": "uri"},
        "schemaURL": {"const": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"},
        "run": {
            "type": "object",
            "required": ["runId"],
            "properties": {"runId": {"type": "string", "format": "uuid"}, "facets": _FACETS},
        },
        "job": {
            "type": "object",
            "required": ["namespace", "name"],
            "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": _FACETS},
        },
        "inputs": _DATASETS,
        "outputs": _DATASETS,
    },
}

BROKEN = "class F:\n    def __init__(self):\n        raise OSError('no model')\n    def __call__(self, file): ...\nf = F\n"


@dataclass
class Told:
    """The events in a file, each a valid one."""

    file: Path

    def events(self) -> list[Any]:
        found = [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        for one in found:
            jsonschema.validate(one, RUN_EVENT, format_checker=jsonschema.FormatChecker())
            uuid.UUID(one["run"]["runId"])
        return found

    def states(self) -> list[tuple[str, str]]:
        return [(event["job"]["name"], event["eventType"]) for event in self.events()]


@contextmanager
def placed(gateway: SparkGateway, settings: Settings, folder: Path, transport: Mapping[str, Any]) -> Iterator[Place]:
    """A place whose home tells OpenLineage; at the end, everything was sent or given up."""
    configured = settings.model_copy(update={"openlineage": {"namespace": "tests", "transport": dict(transport)}})
    folder.mkdir()
    with session_on(gateway, configured) as session:
        session.volumes.create("v", str(folder), queue_type=QueueType.NONE)
        yield Place(session, folder, gateway)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "events.json")


def transport_of(told: Told) -> Mapping[str, Any]:
    return {"type": "file", "log_file_path": str(told.file), "append": True}


def test_a_batch_is_a_run_with_its_files_its_table_and_its_code(
    gateway: SparkGateway, settings: Settings, tmp_path: Path, told: Told
) -> None:
    with placed(gateway, settings, tmp_path / "files", transport_of(told)) as place:
        place.put("a", "1")
        place.put("b", "22")
        place.job(COUNT, comment="counts")
        place.run()
        place.put("c", "333")
        place.refresh()
        place.run()
        location = f"{place.session.home.warehouse}/tables/public/t"
    first, _, second, done = told.events()
    assert told.states() == [("j", "START"), ("j", "COMPLETE")] * 2
    assert first["run"]["runId"] != second["run"]["runId"] == done["run"]["runId"]
    assert done["job"]["namespace"] == "tests"
    facets = done["job"]["facets"]
    code = tmp_path / "code" / "job.py"
    assert facets["sourceCodeLocation"]["url"] == code.as_uri()
    assert facets["jobType"]["jobType"] == "FUNCTION"
    assert facets["documentation"]["description"] == "counts"
    (source,) = done["inputs"]
    assert (source["namespace"], source["name"]) == ("file", str(tmp_path / "files"))
    assert source["facets"]["version"]["datasetVersion"] == "2"
    assert source["facets"]["volstream_range"]["fromVersion"] == 1
    statistics = source["inputFacets"]["inputStatistics"]
    assert (statistics["fileCount"], statistics["size"]) == (1, 3)
    (table,) = done["outputs"]
    assert (table["namespace"], table["name"]) == ("file", location)
    columns = {one["name"]: one["type"] for one in table["facets"]["schema"]["fields"]}
    assert (columns["n"], columns["_file_path"]) == ("INT", "STRING")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert int(table["facets"]["version"]["datasetVersion"]) > 0


def test_code_that_no_file_has_is_told_as_its_source(
    gateway: SparkGateway, settings: Settings, tmp_path: Path, told: Told
) -> None:
    with placed(gateway, settings, tmp_path / "files", transport_of(told)) as place:
        place.put("a")
        place.session.jobs.create("j", lambda file: {"n": file.size}, "t", volume="v")
        place.run()
    facets = told.events()[-1]["job"]["facets"]
    assert 'lambda file: {"n": file.size}' in facets["sourceCode"]["sourceCode"]
    assert "sourceCodeLocation" not in facets


def test_a_batch_that_fails_as_a_whole_is_a_failed_run_with_the_reason(
    gateway: SparkGateway, settings: Settings, tmp_path: Path, told: Told
) -> None:
    with placed(gateway, settings, tmp_path / "files", transport_of(told)) as place:
        place.put("a", "1")
        place.job(BROKEN)
        with pytest.raises(VolstreamError):
            place.run()
    started, failed = told.events()
    assert (started["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert "no model" in failed["run"]["facets"]["errorMessage"]["message"]


def test_the_end_of_an_attempt_of_a_dead_process_is_told_by_who_settles_it(
    gateway: SparkGateway, settings: Settings, tmp_path: Path, told: Told
) -> None:
    with placed(gateway, settings, tmp_path / "files", transport_of(told)) as place:
        place.put("a", "1")
        place.job(COUNT)
        place.run()
        place.put("b", "1")
        place.refresh()
        services, job = place.session.jobs.services, place.session.home.catalog.jobs.list()[0]
        covered = services.reader.pin(place.session.streams.get("j_stream"))
        assert covered is not None
        made, batches = services.planner.of_range(services.session, job, covered)  # type: ignore[arg-type]  # a job of files
        services.catalog.consumptions.open((made, batches, services.stream(job)))
        intent = services.consumer.begin(batches[0], owner="dead", location=services.results.location_of(job))
        with session_on(gateway, place.session.home.settings) as other:
            other.jobs.run("j")
    mine = [event for event in told.events() if event["run"]["runId"] == str(uuid.UUID(intent.attempt))]
    assert [one["eventType"] for one in mine] == ["START", "FAIL"]
    assert mine[1]["run"]["facets"]["errorMessage"]["message"] == "Its process ended."
    assert told.states()[-1] == ("j", "COMPLETE")


@pytest.mark.long
def test_jobs_of_statements_and_dynamic_tables_have_their_sql_and_tables(
    gateway: SparkGateway, settings: Settings, told: Told
) -> None:
    configured = settings.model_copy(update={"openlineage": {"transport": transport_of(told)}})
    with session_on(gateway, configured) as session:
        home = TableHome(session)
        home.sql(f"CREATE SCHEMA {home.schema}")
        home.tracked(columns="id INT")
        home.sql("CREATE TABLE u$ (id INT)")
        session.jobs.create(home.name("copy"), statement=home.own("INSERT INTO u$ SELECT id FROM s$"))
        home.sql("INSERT INTO t$ VALUES (1), (2)")
        session.jobs.run(home.name("copy"))
        home.sql("CREATE DYNAMIC TABLE d$ AS SELECT id, id + 1 AS next FROM t$")
    events = [event for event in told.events() if event["eventType"] == "COMPLETE"]
    copied, made = events
    assert copied["job"]["facets"]["sql"]["query"].startswith("INSERT INTO")
    assert copied["inputs"][0]["name"].endswith("/t")
    assert copied["inputs"][0]["facets"]["schema"]["fields"][0]["name"] == "id"
    assert copied["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert made["job"]["facets"]["jobType"]["jobType"] == "DYNAMIC_TABLE"
    assert made["outputs"][0]["name"].endswith("/d")


@pytest.mark.long
def test_events_are_sent_over_http_and_a_receiver_that_fails_or_hangs_stops_no_job(
    gateway: SparkGateway, settings: Settings, tmp_path: Path
) -> None:
    with receiving() as server:
        transport = {"type": "http", "url": server.url, "auth": {"type": "api_key", "apiKey": "k"}, "retry": {"total": 0}}
        with placed(gateway, settings, tmp_path / "files", transport) as place:
            place.put("a", "1")
            place.job(COUNT)
            place.run()
            eventually(lambda: len(server.posts) == 2)
            server.status = 500
            place.put("b", "22")
            place.refresh()
            place.run()
            eventually(lambda: len(server.posts) == 4)
            server.hangs = threading.Event()
            place.put("c", "333")
            place.refresh()
            place.run()
            assert place.table() == [("a", 1), ("b", 2), ("c", 3)]
        assert server.posts[0].path == "/api/v1/lineage"
        assert server.posts[0].headers["authorization"] == "Bearer k"
        for payload in server.payloads:
            jsonschema.validate(payload, RUN_EVENT)


@pytest.mark.parametrize(
    "transport",
    [pytest.param({"type": "no-such"}, marks=pytest.mark.long), {"type": "file", "log_file_path": "/no/such/folder/x"}],
)
def test_a_transport_that_cannot_be_used_stops_no_job(
    gateway: SparkGateway, settings: Settings, tmp_path: Path, transport: Mapping[str, Any]
) -> None:
    with placed(gateway, settings, tmp_path / "files", transport) as place:
        place.put("a", "1")
        place.job(COUNT)
        place.run()
        assert place.table() == [("a", 1)]


def test_openlineages_own_variables_configure_it(
    gateway: SparkGateway, settings: Settings, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(dict(transport_of(told))))
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "elsewhere")
    with session_on(gateway, settings) as session, suppress(VolstreamError):
        assert session._lineage is not None
        folder = tmp_path / "files"
        folder.mkdir()
        (folder / "a").write_text("1")
        session.volumes.create("v", str(folder), queue_type=QueueType.NONE)
        place = Place(session, folder, gateway)
        place.job(COUNT)
        place.run()
    assert [event["job"]["namespace"] for event in told.events()] == ["elsewhere"] * 2
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    with Session(settings) as session:
        assert session._lineage is None
