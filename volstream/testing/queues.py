"""The contract of every queue: what the daemon relies on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from volstream.files.queues.base import Announcing, EventQueue, Message, QueueSettings

#: Quick redeliveries, for queues that have them; and none during a test.
SETTINGS = QueueSettings(debounce_seconds=0.02, poll_seconds=0.04, visibility_seconds=0.04, wait_seconds=1)
PATIENT = QueueSettings(debounce_seconds=0.03, poll_seconds=0.05, visibility_seconds=60, wait_seconds=1)
SLOW = QueueSettings(poll_seconds=60, wait_seconds=1)

#: How long a test waits for what has to come.
_DEADLINE_SECONDS = 10.0


@dataclass
class QueueBench:
    """A queue, and how to cause something that it reports.

    Attributes:
        queue: not started.
        happen: called with a path, causes an event about it.
        redelivers: the queue delivers a message again that is not acknowledged within ``visibility_seconds``.
        counts: each event is a message of its own; False: the queue may merge events of one path.
    """

    queue: EventQueue
    happen: Callable[[str], object]
    redelivers: bool = False
    counts: bool = True

    def receive(self, limit: int = 10) -> Sequence[Message]:
        """Returns the next messages; waits until there are some."""
        received: Sequence[Message] = ()

        def something() -> bool:
            nonlocal received
            received = self.queue.receive(limit, 1)
            return bool(received)

        eventually(something)
        return received


#: Opens a bench whose queue has these settings, as far as they apply to it.
OpenBench = Callable[[QueueSettings], QueueBench]


def eventually(check: Callable[[], object]) -> None:
    """Returns as soon as ``check()`` is true; fails after ten seconds."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    pause = threading.Event()
    while not check():
        assert time.monotonic() < deadline, f"not within {_DEADLINE_SECONDS} s"
        pause.wait(0.01)


class QueueContract:
    """Tests of a queue. Subclass it in a test module with a name that begins with ``Test``, and supply the
    fixture ``open_bench``."""

    @pytest.fixture
    def open_bench(self) -> OpenBench:
        """Returns a function that opens a :class:`QueueBench`, a new one for each test. Stop its queue after
        the test."""
        raise NotImplementedError("Supply the fixture `open_bench`.")

    def test_nothing_is_received_before_the_start(self, open_bench: OpenBench) -> None:
        bench = open_bench(SETTINGS)
        bench.happen("a")
        assert not bench.queue.receive(10, 0.05)

    def test_what_happens_after_the_start_is_received_and_can_be_read(self, open_bench: OpenBench) -> None:
        bench = open_bench(PATIENT)
        bench.queue.start()
        bench.happen("a")
        for message in bench.receive():
            assert message.rejection is None
            assert message.hints

    def test_a_queue_that_announces_is_asked_only_then(self, open_bench: OpenBench) -> None:
        bench = open_bench(PATIENT)
        queue = bench.queue
        if not isinstance(queue, Announcing):
            pytest.skip("a thread waits for it")
        announced: list[float] = []
        queue.announce(announced.append)
        queue.start()
        assert not queue.receive(10, 0.0)
        due = queue.ready_at()
        bench.happen("a")

        def is_received() -> bool:
            nonlocal due
            if min([due, *announced]) > time.monotonic():
                return False
            announced.clear()
            received = queue.receive(10, 0.0)
            due = queue.ready_at()
            return bool(received)

        eventually(is_received)

    def _redelivering(self, open_bench: OpenBench) -> QueueBench:
        """Returns a started queue with a message; skips the test if the queue delivers each once while it is
        started."""
        bench = open_bench(SETTINGS)
        if not bench.redelivers:
            pytest.skip("it delivers a message once while it is started")
        bench.queue.start()
        bench.happen("a")
        return bench

    def test_unacknowledged_deliveries_are_redelivered(self, open_bench: OpenBench) -> None:
        bench = self._redelivering(open_bench)
        first = bench.receive()
        assert [message.hints for message in bench.receive()] == [message.hints for message in first]

    def test_acknowledged_deliveries_are_not_redelivered(self, open_bench: OpenBench) -> None:
        bench = open_bench(SETTINGS)
        bench.queue.start()
        bench.happen("a")
        receipts = {message.receipt for message in bench.receive()}
        messages = [Message(receipt) for receipt in receipts]
        bench.queue.acknowledge(messages)
        bench.queue.acknowledge(messages)
        again = bench.queue.receive(10, 2 * SETTINGS.visibility_seconds)
        assert not receipts & {message.receipt for message in again}

    def test_a_late_acknowledgement_counts(self, open_bench: OpenBench) -> None:
        bench = self._redelivering(open_bench)
        first = bench.receive()
        bench.receive()
        bench.queue.acknowledge(first)
        again = bench.queue.receive(10, 2 * SETTINGS.visibility_seconds)
        assert not {message.receipt for message in first} & {message.receipt for message in again}

    def test_deliveries_unacknowledged_at_a_stop_are_redelivered_after_the_next_start(self, open_bench: OpenBench) -> None:
        bench = open_bench(PATIENT)
        bench.queue.start()
        bench.happen("a")
        first = bench.receive()
        bench.queue.stop()
        assert not bench.queue.receive(10, 0.05)
        bench.queue.start()
        assert {tuple(message.hints) for message in first} <= {tuple(message.hints) for message in bench.receive()}

    def test_a_stop_wakes_a_blocked_receive_and_can_be_repeated(self, open_bench: OpenBench) -> None:
        bench = open_bench(SLOW)
        bench.queue.start()
        results: list[Sequence[Message]] = []
        thread = threading.Thread(target=lambda: results.append(bench.queue.receive(10, 60)), daemon=True)
        thread.start()
        bench.queue.stop()
        bench.queue.stop()
        thread.join(5)
        assert [list(result) for result in results] == [[]]

    def test_receive_without_messages_waits_as_long_as_asked(self, open_bench: OpenBench) -> None:
        bench = open_bench(SLOW)
        bench.queue.start()
        began = time.monotonic()
        assert not bench.queue.receive(10, 0.05)
        assert 0.05 <= time.monotonic() - began < 5

    def test_no_more_than_the_limit_is_received_at_once(self, open_bench: OpenBench) -> None:
        bench = open_bench(PATIENT)
        bench.queue.start()
        for name in ("a", "b", "c"):
            bench.happen(name)
        if bench.counts and bench.queue.depth() is not None:
            eventually(lambda: bench.queue.depth() == 3)
        assert len(bench.receive(limit=1)) == 1

    def test_the_depth_is_the_number_of_waiting_messages(self, open_bench: OpenBench) -> None:
        bench = open_bench(PATIENT)
        assert bench.queue.depth() in (0, None)
        bench.queue.start()
        if bench.queue.depth() is None:
            pytest.skip("it does not know")
        bench.happen("a")
        eventually(lambda: bench.queue.depth() == 1)
        bench.receive()
        assert bench.queue.depth() == 0
