"""Random lives of a bucket, whose messages are duplicated, delayed, reordered and lost on their way to the directory.

The bucket is a store in memory, the directory a mapping; between them are the real parsers, routing, folding and comparison.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from urllib.parse import quote_plus

import pyarrow as pa
import pytest

from tests.memory import MemoryStore
from tests.objects import NOW
from volstream.base.definitions import QueueType, Volume
from volstream.base.model.hints import HintSet, Rejection
from volstream.base.model.names import Name
from volstream.base.model.paths import FileInfo
from volstream.changes.directory import table
from volstream.changes.directory.reconcile import Confirm, Observations
from volstream.changes.directory.table import compare_files
from volstream.files.providers.alibaba import events as oss_events
from volstream.files.providers.aws import events as s3_events
from volstream.files.volumes.routing import Router

_ODD = ["a", "b c", "b+c", "b%20c", "%", "d/e", "/lead", "d//e", "q'\"&=", "new\nline", "日/ü"]
KEYS = [*_ODD, *(f"{number:03}" for number in range(30))]

ROUNDS, CHANGES, LOST, DOUBLED = 40, 12, 0.05, 0.2


def _s3(key: str, event: str, rng: random.Random) -> bytes:
    record = {"eventName": event, "s3": {"bucket": {"name": "bucket"}, "object": {"key": quote_plus(key, safe="/")}}}
    direct = json.dumps({"Records": [record]})
    detail = {"bucket": {"name": "bucket"}, "object": {"key": key}}
    bodies = [
        direct,
        json.dumps({"Type": "Notification", "Message": direct}),
        json.dumps({"detail-type": "Object Created", "detail": detail}),
    ]
    return rng.choice(bodies).encode()


def _oss(key: str, event: str, rng: random.Random) -> bytes:
    body = json.dumps({"events": [{"eventName": event, "oss": {"bucket": {"name": "bucket"}, "object": {"key": key}}}]})
    return rng.choice([body.encode(), base64.b64encode(body.encode())])


def known_rows(files: list[FileInfo]) -> pa.Table:
    """Rows of a directory that one refresh wrote."""
    found = table.rows_of_files(files, lambda path: path)
    return pa.table([*found.columns, *table.written_columns(1, NOW, len(files))], schema=table.FILES)


class World:
    """A bucket, its messages, and the directory that follows it."""

    def __init__(self, scheme: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = MemoryStore(f"memory://trace-{scheme}-{seed}")
        self.store.create()
        self.body: Callable[[str, str, random.Random], bytes] = _s3 if scheme == "s3" else _oss
        self.parse = s3_events.parse if scheme == "s3" else oss_events.parse
        self.volume = Volume(
            id="v",
            name=Name("public", "v"),
            location=f"{scheme}://bucket/in",
            connection_id=None,
            queue_type=QueueType("sqs"),
            queue_name="q",
            virtual_cluster="DEFAULT",
            recursive=True,
            patterns=(),
            ignores=(),
            comment=None,
            created_on=datetime.now(UTC),
        )
        self.under_way: list[bytes] = []
        self.lost: set[str] = set()
        self.directory: dict[str, FileInfo] = {}
        self.listing: list[FileInfo] | None = None
        self.seen: set[str] = set()

    def change(self) -> None:
        """Puts, overwrites or deletes an object; its message may be lost, duplicated and reordered."""
        key = self.rng.choice(KEYS)
        if self.rng.random() < 0.4:
            self.store.delete(key)
            event = "ObjectRemoved:DeleteObject"
        else:
            self.store.put(key, b"x" * self.rng.randrange(3))
            event = "ObjectCreated:PutObject"
        if self.rng.random() < LOST:
            self.lost.add(key)
            return
        body = self.body(f"in/{key}", event, self.rng)
        for _ in range(2 if self.rng.random() < DOUBLED else 1):
            self.under_way.insert(self.rng.randrange(len(self.under_way) + 1), body)

    def refresh(self, count: int) -> None:
        """Folds messages and checks each key once; other changes happen meanwhile."""
        taken, self.under_way = self.under_way[:count], self.under_way[count:]
        if self.rng.random() < 0.1:  # a crash before they are acknowledged, but after the commit
            self.under_way += taken
        fold = HintSet(self.volume.selection)
        for body in taken:
            hints = self.parse(body)
            assert not isinstance(hints, Rejection)
            fold.add(Router([self.volume]).route(self.volume, hints).own)
        for key in fold.single_keys():
            now = self.store.head(key)
            if self.rng.random() < 0.2:
                self.change()  # after the look, before the commit
            self.directory.pop(key, None)
            if now is not None:
                self.directory[key] = now
        self.seen.update(fold.single_keys())

    def begin_listing(self) -> None:
        """The state of the bucket now; the directory is compared with it only later."""
        self.listing = [entry for entry in self.store.list("", self.volume.selection) if isinstance(entry, FileInfo)]
        self.seen = set()

    def end_listing(self) -> None:
        """Takes what the listing proposes, where it still holds."""
        listed = table.rows_of_files(self.listing or [], self.store.url)
        known = known_rows(list(self.directory.values()))
        confirm = Confirm(self.store, self.volume.selection, Observations(frozenset(self.seen)))
        infos = {info.relative_path: info for info in self.listing or []}
        for row in confirm(compare_files(listed, known)).to_pylist():
            if row["change"] == "delete":
                del self.directory[row["relative_path"]]
            else:
                self.directory[row["relative_path"]] = infos[row["relative_path"]]
        self.listing = None

    def truth(self) -> dict[str, FileInfo]:
        """The bucket."""
        entries = self.store.list("", self.volume.selection)
        return {entry.relative_path: entry for entry in entries if isinstance(entry, FileInfo)}


@pytest.fixture(params=[(scheme, seed) for scheme in ("s3", "oss") for seed in range(12)], ids=lambda it: f"{it[0]}{it[1]}")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(*request.param)
    yield made
    made.store.drop()


def test_a_drained_queue_leaves_the_directory_correct_except_for_lost_messages_and_a_listing_repairs_those(world: World) -> None:
    for number in range(ROUNDS):
        for _ in range(world.rng.randrange(CHANGES)):
            world.change()
        if number % 7 == 2:
            world.begin_listing()
        world.refresh(world.rng.randrange(CHANGES))
        if number % 7 == 5:
            world.end_listing()
    while world.under_way:
        world.refresh(CHANGES)
    truth = world.truth()
    assert {key: info for key, info in world.directory.items() if key not in world.lost} == {
        key: info for key, info in truth.items() if key not in world.lost
    }
    world.begin_listing()
    world.end_listing()
    assert world.directory == truth


def test_these_traces_include_lost_messages() -> None:
    world = World("s3", 1)
    for _ in range(500):
        world.change()
    world.store.drop()
    assert 5 < len(world.lost) < len(KEYS)
    assert len(world.under_way) > 500 * (1 - LOST)
