"""Events belong to the volumes that there are when they arrive."""

from __future__ import annotations

from pathlib import Path

from volstream.api.session import Session
from volstream.base.config import load
from volstream.base.definitions import QueueType, Volume
from volstream.base.model.hints import ObjectHint
from volstream.files.volumes.routing import Routing


def volume(session: Session, name: str, location: str) -> Volume:
    return session.volumes.create(name, location, connection="c", queue_type=QueueType.NONE, check=False)


def test_an_event_for_a_volume_that_another_process_has_just_made_is_no_stray(tmp_path: Path) -> None:
    with Session(load(tmp_path)) as session, Session(load(tmp_path)) as other:
        session.connections.create("c", "s3", region="us-east-1", endpoint="http://127.0.0.1:1")
        first = volume(session, "first", "s3://bucket/a/")
        routing = Routing(session.home.catalog)
        hints = [ObjectHint("bucket", "a/x"), ObjectHint("bucket", "b/y")]
        routed = routing.route(first, hints)
        assert (len(routed.own), routed.others, len(routed.strays)) == (1, {}, 1)
        assert not routing.has_neighbours(first)
        second, outer = volume(other, "second", "s3://bucket/b/"), volume(other, "outer", "s3://bucket/")
        routed = routing.route(first, hints)
        assert (len(routed.own), routed.strays) == (1, {})
        assert routed.others == {second.id: {"y"}, outer.id: {"a/x", "b/y"}}
        assert routing.has_neighbours(first)
        other.volumes.drop("second")
        assert routing.route(first, hints).others == {outer.id: {"a/x", "b/y"}}
