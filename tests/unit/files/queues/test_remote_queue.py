"""What all providers' queues have in common, with a provider in memory."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence

import pytest

from tests.waiting import eventually
from volstream.base.model.hints import KeyHint
from volstream.errors import QueueError, StorageDeniedError, VolstreamError
from volstream.files.queues.base import Message, QueueSettings, QueueState
from volstream.files.queues.remote import Delivery, ReceivedMessages, RemoteQueue

SETTINGS = QueueSettings(visibility_seconds=60, wait_seconds=20)


def as_key(body: bytes) -> Sequence[KeyHint]:
    return (KeyHint(body.decode()),)


class Provider:
    """A queue whose messages get a new handle each time they are kept."""

    batch = 3

    def __init__(self, count: int = 0) -> None:
        self.changed = threading.Condition()
        self.ready = [f"m{number}" for number in range(count)]
        self.handles: dict[str, str] = {}  # of what is in flight, by handle
        self.numbers = itertools.count()
        self.kept: list[tuple[str, float]] = []
        self.polls = 0
        self.waits = True
        self.errors: list[VolstreamError] = []
        self.undeletable: dict[str, int] = {}  # how often deleting a message still fails
        self.gives_up = False
        self.visibility = 60.0

    def open(self) -> float:
        return self.visibility

    def send(self, *messages: str) -> None:
        with self.changed:
            self.ready.extend(messages)
            self.changed.notify_all()

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        with self.changed:
            self.polls += 1
            self._fail()
            if not self.ready and self.waits:
                self.changed.wait(wait_seconds)
                self._fail()
            return self._taken(limit)

    def delete(self, handles: Sequence[str]) -> Sequence[str]:
        with self.changed:
            self._fail()
            failed = []
            for handle in handles:
                message = self.handles[handle]
                if self.undeletable.get(message, 0) > 0:
                    self.undeletable[message] -= 1
                    failed.append(handle)
                else:
                    del self.handles[handle]
            return failed

    def keep(self, handles: Sequence[str], seconds: float) -> Mapping[str, str | None]:
        with self.changed:
            messages = [self.handles.pop(handle) for handle in handles]
            self.kept += [(message, seconds) for message in messages]
            if seconds == 0:
                self.ready += messages
            if self.gives_up or seconds == 0:
                return dict.fromkeys(handles)
            return {handle: self._handle(message) for handle, message in zip(handles, messages, strict=True)}

    def describe(self) -> QueueState:
        return QueueState(len(self.ready), len(self.handles), 60, 3600)

    def _taken(self, limit: int) -> Sequence[Delivery]:
        taken, self.ready = self.ready[:limit], self.ready[limit:]
        return [Delivery(message, self._handle(message), message.encode()) for message in taken]

    def _handle(self, message: str) -> str:
        handle = f"{message}#{next(self.numbers)}"
        self.handles[handle] = message
        return handle

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


class UnattendedProvider(Provider):
    """One whose requests wait in the event loop."""

    async def unattended(self, wait_seconds: float) -> AsyncGenerator[Sequence[Delivery], None]:
        while True:
            with self.changed:
                self.polls += 1
                self._fail()
            for _ in range(round(wait_seconds / 0.01)):
                if self.ready or not self.waits:
                    break
                await asyncio.sleep(0.01)
            with self.changed:
                deliveries = self._taken(self.batch)
            yield deliveries


PROVIDERS: Sequence[type[Provider]] = (Provider, UnattendedProvider)

Start = Callable[..., RemoteQueue]


@pytest.fixture(params=PROVIDERS)
def make(request: pytest.FixtureRequest) -> type[Provider]:
    kind: type[Provider] = request.param
    return kind


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[tuple[RemoteQueue, Provider]] = []

    def begin(provider: Provider, settings: QueueSettings = SETTINGS) -> RemoteQueue:
        queue = RemoteQueue(provider, settings, as_key)
        queue.start()
        started.append((queue, provider))
        return queue

    yield begin
    for queue, provider in started:
        queue.stop()
        provider.send()  # ends its waits


def bodies(messages: Sequence[Message]) -> list[str]:
    return [hint.path for message in messages for hint in message.hints if isinstance(hint, KeyHint)]


def test_messages_are_delivered_once_and_deleted_when_acknowledged(make: type[Provider], start: Start) -> None:
    provider = make(count=7)
    queue = start(provider)
    messages: list[Message] = []

    def all_received() -> bool:
        messages.extend(queue.receive(10, 0.1))
        return len(messages) >= 7

    eventually(all_received)
    assert bodies(messages) == [f"m{number}" for number in range(7)]
    assert not queue.receive(10, 0)
    queue.acknowledge(messages)
    assert not provider.handles


def test_an_unacknowledged_message_is_kept_and_deleted_by_its_newest_handle(make: type[Provider], start: Start) -> None:
    provider = make(count=4)
    provider.visibility = 0.1
    queue = start(provider, QueueSettings(visibility_seconds=0.1))
    messages = queue.receive(1, 5)
    eventually(lambda: {message for message, _ in provider.kept} == {"m0", "m1", "m2", "m3"})
    eventually(lambda: len(provider.kept) >= 8)
    messages = [*messages, *queue.receive(10, 0)]
    queue.acknowledge(messages)
    assert not provider.handles
    assert set(provider.kept) == {(f"m{number}", 0.1) for number in range(4)}


def test_a_message_received_again_while_held_is_not_delivered_twice(make: type[Provider], start: Start) -> None:
    provider = make(count=1)
    queue = start(provider)
    messages = queue.receive(10, 5)
    provider.handles.clear()  # the provider lost patience
    provider.send("m0", "m1")
    assert bodies(queue.receive(10, 5)) == ["m1"]
    queue.acknowledge(messages)
    assert list(provider.handles.values()) == ["m1"]


def test_a_message_the_provider_dropped_is_no_longer_kept(make: type[Provider], start: Start) -> None:
    provider = make(count=1)
    provider.gives_up, provider.visibility = True, 0.1
    queue = start(provider, QueueSettings(visibility_seconds=0.1))
    eventually(lambda: provider.kept)
    provider.send("m1")
    eventually(lambda: ("m1", 0.1) in provider.kept)
    assert provider.kept.count(("m0", 0.1)) == 1
    assert bodies(queue.receive(10, 0)) == ["m0", "m1"]


def test_failed_deletions_are_retried_and_then_given_up(make: type[Provider], start: Start) -> None:
    provider = make(count=3)
    provider.undeletable = {"m0": 1, "m1": 100}
    queue = start(provider)
    messages = queue.receive(10, 5)
    assert len(messages) == 3
    queue.acknowledge(messages)
    assert list(provider.handles.values()) == ["m1"]
    queue.acknowledge(messages)  # idempotent: they are no longer held


def test_a_deletion_error_is_raised_and_the_rest_can_be_acknowledged_later(make: type[Provider], start: Start) -> None:
    provider = make(count=3)
    queue = start(provider)
    messages = queue.receive(10, 5)
    with provider.changed:
        provider.errors.append(QueueError("down"))
        with pytest.raises(QueueError, match="down"):
            queue.acknowledge(messages)
    queue.acknowledge(messages)
    assert not provider.handles


def test_a_failure_is_raised_once_and_what_comes_after_it_is_received(make: type[Provider], start: Start) -> None:
    provider = make()
    attempts = 2 if make is UnattendedProvider else 1  # the first says that a thread is needed
    provider.errors += [QueueError("down")] * attempts
    queue = start(provider)
    with pytest.raises(QueueError, match="down"):
        queue.receive(10, 5)
    provider.send("m0")
    assert bodies(queue.receive(10, 5)) == ["m0"]


def test_an_unreachable_provider_is_reported_at_each_wait_until_it_answers(make: type[Provider], start: Start) -> None:
    provider = make()
    provider.errors += [QueueError("no such queue")] * 3
    queue = start(provider)
    for wait in (5, 0.01, 0.01):  # the first ends with the first answer
        with pytest.raises(QueueError, match="no such queue"):
            queue.receive(10, wait)
    provider.errors.clear()
    provider.send("m0")
    assert bodies(queue.receive(10, 30)) == ["m0"]
    assert not queue.receive(10, 0.01)


def test_a_permanent_error_is_raised_until_a_new_start(make: type[Provider], start: Start) -> None:
    provider = make()
    provider.errors.append(StorageDeniedError("no credentials"))
    queue = start(provider)
    for _ in range(2):
        with pytest.raises(StorageDeniedError):
            queue.receive(10, 5)
    queue.stop()
    queue.start()
    provider.send("m0")
    assert bodies(queue.receive(10, 5)) == ["m0"]


def test_a_fault_in_a_thread_is_raised_to_the_consumer(make: type[Provider], start: Start) -> None:
    provider = make()
    provider.errors.append(KeyError("MessageId"))  # type: ignore[arg-type]  # what no service should raise
    queue = start(provider)
    with pytest.raises(KeyError):
        queue.receive(10, 5)


def test_a_stop_hands_back_unacknowledged_messages_without_waiting_for_polls(make: type[Provider], start: Start) -> None:
    provider = make(count=7)
    queue = start(provider)
    eventually(lambda: queue.depth() == 7)
    queue.acknowledge(queue.receive(1, 0))
    queue.receive(1, 0)
    began = time.monotonic()
    queue.stop()
    assert time.monotonic() - began < 2
    assert sorted(provider.ready) == [f"m{number}" for number in range(1, 7)]


def test_messages_received_after_the_stop_are_handed_back(make: type[Provider], start: Start) -> None:
    provider = make()
    queue = start(provider)
    eventually(lambda: provider.polls == 1)
    queue.stop()
    provider.send("late")
    eventually(lambda: provider.kept == [("late", 0)])
    assert not queue.receive(10, 0)


def test_a_restart_redelivers_what_was_handed_back(make: type[Provider], start: Start) -> None:
    provider = make(count=2)
    queue = start(provider)
    eventually(lambda: queue.depth() == 2)
    assert len(queue.receive(10, 0)) == 2
    queue.stop()
    queue.start()
    eventually(lambda: queue.depth() == 2)
    assert len(queue.receive(10, 0)) == 2


def test_no_more_is_requested_than_there_is_room_for(make: type[Provider], start: Start) -> None:
    provider = make(count=1_500)
    provider.waits = False
    queue = start(provider)
    eventually(lambda: provider.polls == 334)
    room = 1_002 if make is UnattendedProvider else 1_000  # which always asks for a batch
    assert len(provider.ready) == 1_500 - room
    assert len(queue.receive(2_000, 0)) == room
    eventually(lambda: len(queue.receive(2_000, 0)) > 0)


def test_several_pollers_wait_concurrently(make: type[Provider], start: Start) -> None:
    provider = make()
    queue = start(provider, QueueSettings(pollers=3))
    eventually(lambda: provider.polls == 3)
    provider.send(*(f"m{number}" for number in range(9)))
    seen: list[str] = []

    def all_seen() -> bool:
        seen.extend(bodies(queue.receive(10, 0.1)))
        return len(seen) == 9

    eventually(all_seen)
    assert len(set(seen)) == 9


def test_threads_end_with_the_queue(make: type[Provider], start: Start) -> None:
    before = {*threading.enumerate()}
    provider = make()
    queue = start(provider, QueueSettings(pollers=2, visibility_seconds=0.1))
    provider.send("m")
    assert queue.receive(1, 5.0)  # a thread looks after what is held

    def running() -> list[threading.Thread]:
        return [thread for thread in {*threading.enumerate()} - before if thread.name == "queue" and thread.is_alive()]

    eventually(lambda: len(running()) == (1 if make is UnattendedProvider else 3))
    own = running()
    queue.stop()
    provider.send()
    for thread in own:
        thread.join(10)
        assert not thread.is_alive()


def test_held_messages_forget_expired_handles() -> None:
    held = ReceivedMessages(as_key)
    held.add(Delivery("a", "a1", b""), due=10)
    held.renew("b", "b1", 20)
    assert held.ending(before=11) == ["a"]
    held.renew("a", None, 20)
    assert held.ending(before=float("inf")) == []
    held.add(Delivery("a", "a2", b""), due=30)
    assert held.handles(["a", "b"]) == {"a": "a2"}
    assert held.waiting == len(held) == 1


def test_a_message_that_its_parser_cannot_bear_is_rejected_and_the_others_are_not() -> None:
    def parse(body: bytes) -> Sequence[KeyHint]:
        return (KeyHint(str({b"a": "first", b"b": "second"}[body])),)

    received = ReceivedMessages(parse)
    for name in ("a", "odd", "b"):
        received.add(Delivery(name, name, name.encode()), 0.0)
    first, odd, second = received.take(10)
    assert (first.hints, second.hints) == ((KeyHint("first"),), (KeyHint("second"),))
    assert odd.rejection is not None
    assert (odd.rejection.subject, "KeyError" in odd.rejection.reason) == ("odd", True)
