"""A job whose function makes files in a bucket."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.clouds import Cloud, unused_name
from tests.integration.conftest import session_on
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.base.model.paths import FileInfo, Selection
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
    secrets = {} if keys is None else {"c": {"access_key_id": keys.id, "access_key_secret": keys.secret}}
    settings = config.load(tmp_path / "home", credentials=secrets)
    name = unused_name()
    cloud.make_bucket(name)
    location = f"{kind}://{name}/site"
    files = tmp_path / "files"
    files.mkdir()
    (tmp_path / "job.py").write_text(_FUNCTION)
    for file in "abc":
        (files / file).write_text(file)
    place = {"region": cloud.access.region, "endpoint": cloud.access.endpoint, "credentials": cloud.access.credentials}
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


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("after_load", ["archive:.done", "delete"])
def test_files_leave_a_bucket_once_they_are_loaded(cloud: Cloud, tmp_path: Path, gateway: SparkGateway, after_load: str) -> None:
    keys, kind = cloud.access.keys, cloud.access.provider
    secrets = {} if keys is None else {"c": {"access_key_id": keys.id, "access_key_secret": keys.secret}}
    settings = config.load(tmp_path / "home", credentials=secrets)
    name = unused_name()
    cloud.make_bucket(name)
    contents = {"in/a.csv": b"n\n1\n", "in/d/b.csv": gzip.compress(b"n\n2\n"), "in/bad.csv": b"?\n1\n"}
    for key, content in contents.items():
        cloud.put(name, key, content)
    place = {"region": cloud.access.region, "endpoint": cloud.access.endpoint, "credentials": cloud.access.credentials}
    with session_on(gateway, settings) as session:
        session.connections.create("c", kind, **place)  # type: ignore[arg-type]  # as the provider has them
        session.volumes.create("v", f"{kind}://{name}/in", connection="c", queue_type=QueueType.NONE)
        session.jobs.load("j", "v", "t", schema="n INT", write="append", after_load=after_load)
        session.jobs.run("j")
        store = open_store(f"{kind}://{name}/in", cloud.access)
        there = {one.relative_path for one in store.list("", Selection(ignores=())) if isinstance(one, FileInfo)}
        assert there == {"bad.csv", *({".done/a.csv", ".done/d/b.csv"} if after_load != "delete" else ())}
        session.volumes.refresh("v", accept_removals=True)
        assert session.jobs.run("j").progress.batches == 0
        rows = session.sql(f"SELECT _file_path, n FROM delta.`{session.home.warehouse}/tables/public/t` ORDER BY n").toArrow()
        assert rows.to_pylist() == [{"_file_path": "a.csv", "n": 1}, {"_file_path": "d/b.csv", "n": 2}]
        allows = {"gs": "roles/storage.objectUser", "az": "Storage Blob Data Contributor"}.get(kind, "DeleteObject")
        assert allows in str(session.connections.policies("c"))
