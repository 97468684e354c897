"""Functions over the files of a bucket, as a worker runs them: with keys that travelled, prefetched contents, and checked versions."""

from __future__ import annotations

import pickle
import urllib.request

import oss2
import pytest

from tests.clouds import Cloud
from tests.running import EVERYWHERE, Runner, failed, results
from tests.servers import each
from volstream.base.model.paths import FileInfo, Selection
from volstream.base.model.work import FailureKind
from volstream.files.providers.aws import credentials
from volstream.files.storage import open_store
from volstream.files.storage.base import HasDetails
from volstream.functions.sql import FileContent, PresignedUrl

CODE = "def f(file):\n    return {'n': len(file.read_bytes())}"


@pytest.mark.parametrize("isolate", EVERYWHERE)
def test_each_file_is_read_and_one_that_changed_or_vanished_meanwhile_is_reported(
    cloud: Cloud, run: Runner, isolate: bool
) -> None:
    bucket = f"worked-{isolate}".lower()
    cloud.make_bucket(bucket)
    for number in range(6):
        cloud.put(bucket, f"in/ü {number}.txt", b"x" * number)
    store = open_store(f"{cloud.access.provider}://{bucket}/in", cloud.access)
    files = [one for one in store.list("", Selection()) if isinstance(one, FileInfo)]
    cloud.put(bucket, "in/ü 4.txt", b"changed")
    cloud.delete(bucket, "in/ü 5.txt")
    assert b"long-lived" not in pickle.dumps(run.work(CODE, store=store, isolate=isolate))
    table = run(CODE, files, store=store, isolate=isolate)
    assert {path: kind for path, (kind, _) in failed(table).items()} == {
        "ü 4.txt": FailureKind.CHANGED,
        "ü 5.txt": FailureKind.VANISHED,
    }
    rows = [(path, row["n"]) for path, row in results(table) if row is not None]
    assert rows == [(f"ü {number}.txt", number) for number in range(4)]


ASKING = """
import urllib.request
def f(file):
    with urllib.request.urlopen(file.presigned_url(60)) as reply:
        by_url = reply.read().decode()
    parts = [file.read_range(start, 2).decode() for start in (0, 3, 4, 9)]
    return {"s": repr([dict(file.metadata), dict(file.tags), file.storage_class, by_url, parts])}
"""


@pytest.mark.parametrize("cloud", each("moto", "oss", "localstack", "seaweedfs"), indirect=True)  # Google signs by an account
@pytest.mark.parametrize("isolate", EVERYWHERE)
def test_a_function_may_ask_what_the_store_knows_of_a_file(cloud: Cloud, run: Runner, isolate: bool) -> None:
    bucket = f"asked-{isolate}".lower()
    cloud.make_bucket(bucket)
    if cloud.access.provider == "s3":
        client = credentials.client(cloud.access, "s3")
        client.put_object(Bucket=bucket, Key="in/ü+a.txt", Body=b"01234", Metadata={"camera": "left"}, Tagging="a=1&b=%C3%BC")
    else:
        oss = oss2.Bucket(oss2.AuthV4("LTAITEST", "oss-long-lived-secret"), cloud.access.endpoint, bucket, region="cn-hangzhou")
        oss.put_object("in/ü+a.txt", b"01234", headers={"x-oss-meta-camera": "left"})
        rule = oss2.models.TaggingRule()
        rule.add("a", "1")
        rule.add("b", "ü")
        oss.put_object_tagging("in/ü+a.txt", oss2.models.Tagging(rule))
    store = open_store(f"{cloud.access.provider}://{bucket}/in", cloud.access)
    files = [info for info in store.list("", Selection()) if isinstance(info, FileInfo)]
    table = run(ASKING, files, "s STRING", store=store, isolate=isolate)
    storage_class = "STANDARD" if cloud.access.provider == "s3" else "Standard"
    wanted = [{"camera": "left"}, {"a": "1", "b": "ü"}, storage_class, "01234", ["01", "34", "4", ""]]
    assert results(table) == [("ü+a.txt", {"s": repr(wanted)})]
    assert isinstance(store, HasDetails)
    with urllib.request.urlopen(str(PresignedUrl(store)("ü+a.txt", 60))) as reply:  # made by the store
        assert reply.read() == b"01234"
    assert FileContent(store)("ü+a.txt") == b"01234"
    # No request was made for what the store does not hold any more.
    cloud.delete(bucket, "in/ü+a.txt")
    gone = run("def f(file):\n    file.metadata", files, store=store, isolate=isolate)
    assert failed(gone)["ü+a.txt"][0] is FailureKind.VANISHED
