"""Events about objects of buckets, and the volumes they concern."""

from __future__ import annotations

from datetime import UTC, datetime

from volstream.base.definitions import QueueType, Volume
from volstream.base.model.hints import KeyHint, ObjectHint, SubtreeHint
from volstream.base.model.names import Name
from volstream.files.volumes.routing import Router


def volume(name: str, location: str, **more: object) -> Volume:
    given = {"recursive": True, "patterns": (), "ignores": (), "comment": None, **more}
    return Volume(
        id=name,
        name=Name("public", name),
        location=location,
        connection_id=None,
        queue_type=QueueType("sqs"),
        queue_name="q",
        virtual_cluster="DEFAULT",
        created_on=datetime.now(UTC),
        **given,  # type: ignore[arg-type]
    )


def test_a_key_belongs_to_every_volume_whose_location_contains_it() -> None:
    whole, part, other = volume("w", "s3://bucket"), volume("p", "s3://bucket/x y"), volume("o", "s3://other/x y")
    routed = Router([whole, part, other]).route(
        whole, [ObjectHint("bucket", "x y/1"), ObjectHint("bucket", "x yz"), ObjectHint("other", "a")]
    )
    assert routed.own == [KeyHint("x y/1"), KeyHint("x yz")]
    assert routed.others == {"p": {"1"}}
    assert [*routed.strays] == ["s3://other/"]


def test_a_bucket_of_the_same_name_at_another_provider_is_another_one() -> None:
    mine, other = volume("m", "oss://bucket"), volume("o", "s3://bucket")
    routed = Router([mine, other]).route(mine, [ObjectHint("bucket", "k")])
    assert (routed.own, routed.others, routed.strays) == ([KeyHint("k")], {}, {})


def test_odd_keys_keep_their_slashes_and_the_prefix_itself_is_not_a_file() -> None:
    mine = volume("m", "s3://bucket/p")
    routed = Router([mine]).route(mine, [ObjectHint("bucket", "p//k"), ObjectHint("bucket", "p/"), ObjectHint("bucket", "p")])
    assert routed.own == [KeyHint("/k")]
    assert sum(1 for _ in routed.strays) == 2


def test_strays_are_grouped_so_that_millions_of_them_are_a_few_rows() -> None:
    mine = volume("m", "s3://bucket/p")
    routed = Router([mine]).route(mine, [ObjectHint("bucket", f"logs/{number}") for number in range(1000)])
    assert [rejection.subject for rejection in routed.strays.values()] == ["s3://bucket/logs/"]


def test_a_volume_gets_no_hints_about_keys_it_does_not_select() -> None:
    mine, pictures = volume("m", "s3://bucket"), volume("p", "s3://bucket", patterns=("*.jpg",))
    routed = Router([mine, pictures]).route(mine, [ObjectHint("bucket", "a.txt"), ObjectHint("bucket", "a.jpg")])
    assert routed.others == {"p": {"a.jpg"}}


def test_hints_from_a_watcher_belong_to_its_volume() -> None:
    mine = volume("m", "file:///data")
    routed = Router([]).route(mine, [KeyHint("a"), SubtreeHint("b/", "moved")])
    assert routed.own == [KeyHint("a"), SubtreeHint("b/", "moved")]


def test_a_change_of_a_folder_concerns_every_volume_below_it_around_it_or_in_it() -> None:
    whole, inside, outside = volume("w", "s3://bucket/a"), volume("i", "s3://bucket/a/b/c"), volume("o", "s3://bucket/z")
    routed = Router([whole, inside, outside]).route(
        whole, [ObjectHint("bucket", "a/b/", below=True), ObjectHint("bucket", "a/", below=True)]
    )
    assert routed.own == [SubtreeHint("b/", "moved"), SubtreeHint("", "moved")]
    assert (routed.others, routed.strays) == ({"i": {""}}, {})
