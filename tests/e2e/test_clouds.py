"""Buckets of each cloud as a user sees them: the commands, the SQL of the source document, and two daemons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests import buckets
from tests.buckets import KEYS, Cloud
from tests.e2e.homes import Daemon, Home, patiently

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

_FUNCTIONS = """
def read(file):
    return {"text": file.read_text()}

def described(what, url):
    return f"{what}: {url.rpartition('/')[2]}"
"""

#: The source document's OSS example and its twin, but for where the stand-ins are.
_SQL = """
CREATE STORAGE CONNECTION conn_{cloud} TYPE {cloud}{place.in_region} ENDPOINT = '{place.endpoint}';
CREATE EXTERNAL VOLUME vol_{cloud} LOCATION '{cloud}://demo/dish-images/' USING CONNECTION conn_{cloud}
  NOTIFICATION = (QUEUE_TYPE = '{place.words.sql_queue_type}', QUEUE_NAME = '{place.queue}', VIRTUAL_CLUSTER = 'DEFAULT')
  DIRECTORY = (ENABLE = TRUE) RECURSIVE = TRUE;
CREATE STREAM str_{cloud} ON VOLUME vol_{cloud};
CREATE FUNCTION IF NOT EXISTS public.fc_image_to_text AS 'functions.py:described' RETURNS STRING;
"""

_INSERT = """
CREATE TABLE IF NOT EXISTS results_{cloud} (file_path VARCHAR, file_size BIGINT, recognized VARCHAR, change_type VARCHAR);
INSERT INTO results_{cloud}
SELECT relative_path AS file_path, size AS file_size, public.fc_image_to_text('dish_recognition', url) AS recognized,
       __change_type AS change_type
FROM str_{cloud}
WHERE __change_type IN ('INSERT', 'UPDATE_AFTER') AND lower(relative_path) LIKE '%.jpg';
"""


@pytest.fixture(params=[buckets.clouds, partial(buckets.clouds, ["gs", "az"]), buckets.localstack])
def clouds(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Cloud]]:
    """All of them, then S3 by LocalStack."""
    with request.param() as running:
        yield running


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("keys")
def test_the_examples_run_on_each_cloud_and_a_second_daemon_takes_over(tmp_path: Path, clouds: Mapping[str, Cloud]) -> None:
    home = Home(tmp_path)
    (tmp_path / "functions.py").write_text(_FUNCTIONS)
    for cloud, place in clouds.items():
        (tmp_path / "made.sql").write_text(_SQL.format(cloud=cloud, place=place))
        home.ok("sql", "-f", "made.sql")
        home.ok(
            "create-job",
            f"texts_{cloud}",
            "--volume",
            f"vol_{cloud}",
            "--function",
            "functions.py:read",
            "--returns",
            "text STRING",
            "--into",
            f"texts_{cloud}",
            "--on-change",
        )
    stores = {cloud: place.bucket() for cloud, place in clouds.items()}
    expected: dict[str, dict[str, str]] = {cloud: {} for cloud in clouds}

    def put(cloud: str, path: str, text: str) -> None:
        stores[cloud].put(f"dish-images/{path}", text.encode())
        expected[cloud][path] = text

    first = Daemon(home)
    second = Daemon(home)
    try:
        patiently(lambda: "daemon_started" in first.log or "daemon_started" in second.log)
        if "daemon_started" in second.log:
            first, second = second, first
        for number in range(60):
            for cloud in clouds:
                put(cloud, f"{number % 3}/dish {number}+%.jpg", f"{cloud} {number}")
        patiently(
            lambda: any((first.metric("volstream_job_batches_total", job_name=f"texts_{cloud}") or 0) > 0 for cloud in clouds)
        )
        for number in range(40):
            for cloud in clouds:
                put(cloud, f"{number % 3}/dish {number}+%.jpg", f"{cloud} {number} again")
        first.kill()
        for number in range(0, 60, 5):
            for cloud in clouds:
                stores[cloud].delete(f"dish-images/{number % 3}/dish {number}+%.jpg")
                del expected[cloud][f"{number % 3}/dish {number}+%.jpg"]
        for cloud in clouds:
            put(cloud, "late.jpg", "late")
        second.await_ready()
        for cloud in clouds:
            second.follows(f"texts_{cloud}", expected[cloud])
            home.ok("sql", _INSERT.format(cloud=cloud) * 2)  # consumed by the first: nothing again
            rows = home.rows(f"SELECT file_path, recognized, change_type FROM results_{cloud}")
            assert sorted(row["file_path"] for row in rows) == sorted(expected[cloud])
            assert {row["change_type"] for row in rows} == {"INSERT"}
            assert {row["recognized"] for row in rows if row["file_path"] == "late.jpg"} == {"dish_recognition: late.jpg"}
            checks = {check["what"]: check["state"] for check in home.json("doctor", f"vol_{cloud}")}
            assert {what: state for what, state in checks.items() if state == "failed"} == {}
            assert (checks["wiring"], checks["writer"]) == ("ok" if cloud == "s3" else "skipped", "ok")
        for cloud in clouds:
            [volume] = [one for one in home.json("status")["volumes"] if one["volume"] == f"vol_{cloud}"]
            assert volume["files"] == len(expected[cloud])
    finally:
        first.kill()
        second.kill()
