"""Which volume receives for those that share a queue."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from volstream.errors import QueueError
from volstream.files.providers.access import Access, Keys
from volstream.files.queues import open_queue
from volstream.files.queues.base import QueueSpec
from volstream.files.queues.remote import RemoteQueue
from volstream.server.daemon.sharing import Receivers


def identity(queue_type: str, location: str, name: str, access: Access) -> object:
    queue = open_queue(queue_type, QueueSpec(location, name=name, access=access))
    assert isinstance(queue, RemoteQueue)
    return queue.identity


def test_a_queue_is_shared_only_by_volumes_that_reach_the_same_one_with_the_same_credentials() -> None:
    azure, s3 = Access("az"), Access("s3", region="eu-west-1")
    one = identity("storagequeue", "az://photos@one.blob.core.windows.net/a", "events", azure)
    assert one == identity("storagequeue", "az://photos@one.blob.core.windows.net/b", "events", azure)
    assert one != identity("storagequeue", "az://photos@two.blob.core.windows.net/a", "events", azure)
    assert identity("sqs", "s3://photos/a", "q", s3) == identity("sqs", "s3://photos/b", "q", s3)
    altered = Access("s3", region="eu-west-2"), Access("s3", region="eu-west-1", credentials="static", keys=Keys("k", "s"))
    for access in altered:
        assert identity("sqs", "s3://photos/a", "q", s3) != identity("sqs", "s3://photos/a", "q", access)


class Turns:
    """Claims a queue for turns by name, and records each call that makes a turn look again."""

    def __init__(self) -> None:
        self.receivers = Receivers(lambda _: None, Mock())
        self.looks: list[tuple[str, bool]] = []

    def claim(self, name: str) -> bool:
        return self.receivers.claim("q", name, lambda missed: self.looks.append((name, missed)))


@pytest.fixture
def turns() -> Turns:
    made = Turns()
    assert [made.claim(name) for name in "abc"] == [True, False, False]
    assert made.looks == [("a", False)], "the receiver looks again when a second turn joins"
    made.looks.clear()
    return made


def test_the_next_in_line_receives_when_the_receiver_ends(turns: Turns) -> None:
    turns.receivers.leave("q", "a")
    assert turns.looks == [("b", False)]
    assert [turns.claim(name) for name in "cb"] == [False, True]
    turns.receivers.leave("q", "c")
    assert turns.looks == [("b", False), ("b", False)], "the last turn looks again when the others have left"
    assert not turns.receivers.has_others("q")


def test_the_other_turns_look_again_once_when_a_queue_fails_and_once_when_it_answers(turns: Turns) -> None:
    for _ in range(2):
        turns.receivers.failed("q", QueueError("down"))
    assert turns.looks == [("b", False), ("c", False)]
    assert str(turns.receivers.failure("q")) == "down"
    assert [turns.receivers.recovered("q", missed=True) for _ in range(2)] == [True, False]
    assert turns.looks[2:] == [("b", True), ("c", True)]
    assert turns.receivers.failure("q") is None
