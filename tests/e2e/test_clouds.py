"""Buckets of both clouds as a user sees them: the commands, the SQL of the source document, and two daemons."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.homes import Daemon, Home, patiently

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

LOCALSTACK = Path(__file__).parent.parent.parent / "localstack"

_FUNCTIONS = """
def read(file):
    return {"text": file.read_text()}

def described(what, url):
    return f"{what}: {url.rpartition('/')[2]}"
"""

#: The source document's OSS example and its twin, but for where the stand-ins are.
_SQL = """
CREATE STORAGE CONNECTION conn_{cloud} TYPE {cloud} REGION = '{region}' ENDPOINT = '{endpoint}'{role};
CREATE EXTERNAL VOLUME vol_{cloud} LOCATION '{cloud}://demo/dish-images/' USING CONNECTION conn_{cloud}
  NOTIFICATION = (QUEUE_TYPE = '{queue_type}', QUEUE_NAME = '{queue}', VIRTUAL_CLUSTER = 'DEFAULT')
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


@pytest.fixture(scope="module")
def clouds() -> Iterator[dict[str, dict[str, str]]]:
    """Where both clouds are, on free ports."""
    command = [sys.executable, str(LOCALSTACK / "up.py"), "--s3-port", "0", "--oss-port", "0", "--mns-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if line.startswith("Ready"):
                break
        s3, oss, mns = (re.search(rf"{what} at (http://[\d.]+:\d+)", said) for what in ("STS", "OSS and STS", "MNS"))
        assert s3, said
        assert oss, said
        assert mns, said
        role = ", ".join(re.findall(r"acs:ram::\S+?(?=,)", said))
        yield {
            "s3": {
                "endpoint": s3[1],
                "queue": "demo-events",
                "region": "us-east-1",
                "queue_type": "AWS_SQS",
                "role": "",
            },
            "oss": {
                "endpoint": oss[1],
                "queue": f"{mns[1]}/queues/demo-events",
                "region": "cn-hangzhou",
                "queue_type": "ALICLOUD_MNS",
                "role": "",
                "its_role": role,
            },
        }
        process.kill()


@pytest.fixture(scope="module")
def stores(clouds: dict[str, dict[str, str]]) -> dict[str, Any]:
    """By cloud: what puts an object, and what deletes one."""
    import boto3
    import oss2

    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    s3 = boto3.client("s3", endpoint_url=clouds["s3"]["endpoint"], region_name="us-east-1", **keys)
    auth = oss2.AuthV4("test", "test")
    oss = oss2.Bucket(auth, clouds["oss"]["endpoint"], "demo", region="cn-hangzhou", is_verify_object_strict=False)
    return {
        "s3": (
            lambda key, text: s3.put_object(Bucket="demo", Key=key, Body=text.encode()),
            lambda key: s3.delete_object(Bucket="demo", Key=key),
        ),
        "oss": (lambda key, text: oss.put_object(key, text.encode()), oss.delete_object),
    }


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "ALIBABA_CLOUD_ACCESS_KEY_ID",
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
    ):
        monkeypatch.setenv(name, "test")


@pytest.mark.usefixtures("keys")
def test_the_examples_run_on_both_clouds_and_a_second_daemon_takes_over(
    tmp_path: Path, clouds: dict[str, dict[str, str]], stores: dict[str, Any]
) -> None:
    home = Home(tmp_path)
    (tmp_path / "functions.py").write_text(_FUNCTIONS)
    for cloud, place in clouds.items():
        (tmp_path / "made.sql").write_text(_SQL.format(cloud=cloud, **place))
        home.ok("sql", "-f", "made.sql")
        home.ok(
            "create-job",
            f"texts_{cloud}",
            "--on-volume",
            f"vol_{cloud}",
            "--function",
            "functions.py:read",
            "--returns",
            "text STRING",
            "--into",
            f"texts_{cloud}",
            "--on-change",
        )
    expected: dict[str, dict[str, str]] = {"s3": {}, "oss": {}}

    def put(cloud: str, path: str, text: str) -> None:
        stores[cloud][0](f"dish-images/{path}", text)
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
            lambda: any(
                (first.metric("volstream_job_batches_total", job=f"texts_{cloud}") or 0) > 0 for cloud in clouds
            )
        )
        for number in range(40):
            for cloud in clouds:
                put(cloud, f"{number % 3}/dish {number}+%.jpg", f"{cloud} {number} again")
        first.kill()
        for number in range(0, 60, 5):
            for cloud in clouds:
                stores[cloud][1](f"dish-images/{number % 3}/dish {number}+%.jpg")
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
            assert {row["recognized"] for row in rows if row["file_path"] == "late.jpg"} == {
                "dish_recognition: late.jpg"
            }
            checks = {check["what"]: check["state"] for check in home.json("doctor", f"vol_{cloud}")}
            assert {what: state for what, state in checks.items() if state == "failed"} == {}
            assert (checks["wiring"], checks["writer"]) == ("ok" if cloud == "s3" else "skipped", "ok")
        for cloud in clouds:
            [volume] = [one for one in home.json("status")["volumes"] if one["volume"] == f"vol_{cloud}"]
            assert volume["files"] == len(expected[cloud])
    finally:
        first.kill()
        second.kill()
