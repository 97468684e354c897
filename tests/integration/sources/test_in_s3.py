"""Sources in a bucket, without Spark: events, items, and versions of items."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3 import bucket
from tests.tails import no_spark
from volstream import config
from volstream.delta.places import is_table, open_table
from volstream.errors import AlreadyExistsError
from volstream.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with bucket("warehouse") as options:
        settings = config.load(tmp_path / "home", warehouse="s3://warehouse/here", warehouse_options=options)
        with Session(settings, no_spark) as opened:
            yield opened


def count(session: Session, name: str) -> int:
    return open_table(f"{session.home.warehouse}/tables/public/{name}").count()


def test_sources_work_in_a_bucket_as_in_a_folder(session: Session) -> None:
    stream = session.source.create_stream("s")
    threads = [threading.Thread(target=stream.upload_all, args=([{"n": n} for n in range(50)],)) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    table = session.source.create_table("t", "id")
    table.insert_all({"id": number, "n": 0} for number in range(200))
    table.insert({"id": 7, "n": 1})
    table.delete(8)
    assert [table.get(number) for number in (6, 7, 8)] == [{"id": 6, "n": 0}, {"id": 7, "n": 1}, None]
    session.source.close()  # commits
    assert count(session, "s") == 150
    assert count(session, "t") == 199
    assert [table.get(number) for number in (6, 7, 8)] == [{"id": 6, "n": 0}, {"id": 7, "n": 1}, None]


def test_versions_of_items_are_kept_in_a_bucket(session: Session) -> None:
    table = session.source.create_table("v", "id", data=[{"id": 1}], immutable=True, version=1)
    assert table.get(1) == {"id": 1}
    table = session.source.create_table("v", "id", data=[{"id": 2, "n": 0}], immutable=True, version=2)
    assert [table.get(key, version=version) for key in (1, 2) for version in (1, 2)] == [
        {"id": 1},
        None,
        None,
        {"id": 2, "n": 0},
    ]
    with pytest.raises(AlreadyExistsError):
        session.source.create_table("v", "id", data=[{"id": 3}], immutable=True, version=1)
    session.source.drop("v")
    assert not is_table(f"{session.home.warehouse}/tables/public/v")
