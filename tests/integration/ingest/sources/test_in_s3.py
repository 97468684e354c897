"""Sources in a bucket, without Spark: events, items, and versions of items."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.s3 import bucket
from tests.servers import each
from tests.tails import no_spark
from volstream.api.session import Session
from volstream.base import config
from volstream.errors import AlreadyExistsError, InvalidValueError, NotFoundError
from volstream.files.providers.access import Access
from volstream.files.providers.aws import conditional
from volstream.tables.delta.places import is_table, open_table


@pytest.fixture(params=each("moto", "localstack", "seaweedfs"))
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    with bucket("warehouse", request.param) as options:
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
    assert [table.get(key, version=version) for key in (1, 2) for version in (1, 2)] == [{"id": 1}, None, None, {"id": 2, "n": 0}]
    with pytest.raises(AlreadyExistsError):
        session.source.create_table("v", "id", data=[{"id": 3}], immutable=True, version=1)
    session.source.drop("v")
    assert not is_table(f"{session.home.warehouse}/tables/public/v")


def test_a_name_that_is_another_one_in_a_uri_is_refused_and_harms_no_table(session: Session) -> None:
    session.source.create_stream("a").upload(1)
    session.source.close()
    for name in ("`a#b`", "`?x`", "`my table`", "`p%20q`", "`ä`"):
        with pytest.raises(InvalidValueError, match="cannot be named"):
            session.source.create_stream(name)
        with pytest.raises(NotFoundError):
            session.source.drop(name)
        assert count(session, "a") == 1


@pytest.mark.parametrize("answer", [409, 412])
def test_a_store_may_refuse_what_is_there_with_either_status(answer: int) -> None:
    class Store:
        there = b""

        def put_object(self, **_: object) -> None:
            raise ClientError({"ResponseMetadata": {"HTTPStatusCode": answer}}, "PutObject")

        def get_object(self, **_: object) -> dict[str, io.BytesIO]:
            return {"Body": io.BytesIO(self.there)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conditional, "client", lambda *_: Store())
        Store.there = b"theirs"
        assert not conditional.create_object(Access("s3"), "b", "k", b"ours")
        Store.there = b"ours"
        assert conditional.create_object(Access("s3"), "b", "k", b"ours"), "the first request had arrived"
