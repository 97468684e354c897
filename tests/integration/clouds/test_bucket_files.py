"""Functions over the files of a bucket, as a worker runs them: with keys that travelled, prefetched contents, and checked versions."""

from __future__ import annotations

import pickle

import pytest

from tests.clouds import Cloud
from tests.running import Runner, failed, results
from volstream.model.files import FileInfo
from volstream.model.selection import Selection
from volstream.model.work import FailureKind
from volstream.storage import open_store

CODE = "def f(file):\n    return {'n': len(file.read_bytes())}"


@pytest.mark.parametrize("isolate", [False, True])
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
