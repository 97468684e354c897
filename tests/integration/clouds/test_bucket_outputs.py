"""A job whose function makes files in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clouds import Cloud, unused_name
from tests.integration.conftest import session_on
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.base.model.files import FileInfo
from volstream.base.model.selection import Selection
from volstream.files.storage import open_store
from volstream.spark.session import SparkGateway

_FUNCTION = """
import volstream

def f(file):
    return {'made': volstream.OutputFile(f'up/{file.relative_path}', data=file.read_bytes() * 2, content_type='text/x-own')}
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_bucket_has_exactly_the_outputs_that_rows_name(cloud: Cloud, tmp_path: Path, gateway: SparkGateway) -> None:
    keys, kind = cloud.access.keys, cloud.access.provider
    assert keys is not None
    settings = config.load(tmp_path / "home", credentials={"c": {"access_key_id": keys.id, "access_key_secret": keys.secret}})
    name = unused_name()
    cloud.make_bucket(name)
    location = f"{kind}://{name}/site"
    files = tmp_path / "files"
    files.mkdir()
    (tmp_path / "job.py").write_text(_FUNCTION)
    for file in "abc":
        (files / file).write_text(file)
    place = {"region": cloud.access.region, "endpoint": cloud.access.endpoint, "credentials": "static"}
    with session_on(gateway, settings) as session:
        session.connections.create("c", kind, **place)  # type: ignore[arg-type]  # as the provider has them
        session.volumes.create("v", str(files), queue_type=QueueType.NONE)
        session.volumes.create("out", location, connection="c", queue_type=QueueType.NONE)
        session.jobs.create("j", f"{tmp_path}/job.py:f", "t", volume="v", returns="made FILE", outputs_to="out")
        session.jobs.run("j")
        (files / "a").write_text("changed")
        (files / "b").unlink()
        session.volumes.refresh("v", accept_removals=True)
        session.jobs.run("j")

        rows = session.sql(f"SELECT made.* FROM delta.`{session.home.warehouse}/tables/public/t`").toArrow().to_pylist()
        store = open_store(location, cloud.access)
        there = [one for one in store.list("", Selection(ignores=())) if isinstance(one, FileInfo)]
        assert {one.relative_path: one.etag for one in there} == {row["relative_path"]: row["etag"] for row in rows}
        assert sorted(one.relative_path for one in there) == ["up/a", "up/c"]
        head = store.head("up/a")
        assert head is not None
        assert (head.size, head.content_type) == (14, "text/x-own")
