"""A job over the files of a bucket: keys that travel to its tasks, changed and deleted objects, and a stream of its table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.clouds import Cloud, unused_name
from tests.integration.conftest import session_on
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.spark.session import SparkGateway

_FUNCTION = """
import os

def f(file):
    return {'text': file.read_text(), 'at': os.getpid()}
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_table_follows_the_objects_of_a_bucket(cloud: Cloud, tmp_path: Path, gateway: SparkGateway) -> None:
    keys, kind, bucket = cloud.access.keys, cloud.access.provider, unused_name()
    secrets = {} if keys is None else {"c": {"access_key_id": keys.id, "access_key_secret": keys.secret}}
    settings = config.load(tmp_path / "home", credentials=secrets)
    cloud.make_bucket(bucket)
    expected = {f"{number % 3}/ü {number}+%.txt": f"text {number}" for number in range(20)}
    for path, text in expected.items():
        cloud.put(bucket, f"in/{path}", text.encode())
    (tmp_path / "job.py").write_text(_FUNCTION)
    access = cloud.access
    with session_on(gateway, settings) as session:
        table = f"delta.`{session.home.warehouse}/tables/public/t`"

        def rows() -> dict[str, str]:
            found = session.sql(f"SELECT _file_path, text FROM {table}").toArrow().to_pylist()
            assert len({row["_file_path"] for row in found}) == len(found)
            return {row["_file_path"]: row["text"] for row in found}

        place = {"region": access.region, "endpoint": access.endpoint, "credentials": access.credentials}
        session.connections.create("c", access.provider, **place)  # type: ignore[arg-type]  # as the provider has them
        session.volumes.create("v", f"{kind}://{bucket}/in", connection="c", queue_type=QueueType.NONE)
        session.streams.create("s", volume="v")
        session.jobs.create("j", f"{tmp_path}/job.py:f", "t", volume="v", returns="text STRING, at BIGINT")
        session.jobs.run("j")
        assert rows() == expected
        processes = session.sql(f"SELECT at FROM {table}").toArrow().to_pylist()
        assert os.getpid() not in {row["at"] for row in processes}

        changed, deleted = sorted(expected)[:2]
        expected[changed] = "changed"
        del expected[deleted]
        cloud.put(bucket, f"in/{changed}", b"changed")
        cloud.delete(bucket, f"in/{deleted}")
        session.volumes.refresh("v")
        done = session.jobs.run("j")
        assert rows() == expected
        assert done is not None
        waiting = session.sql("SELECT relative_path FROM s").toArrow().to_pylist()
        assert sorted(row["relative_path"] for row in waiting) == sorted(expected)
