"""When a change is reported: the rules, with a fake clock and disk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from volstream.base.model.hints import Hint, KeyHint, SubtreeHint
from volstream.files.queues.local import CLOSED_SECONDS, Debouncer, PathChange, PathChangeKind

DEBOUNCE = 0.2


class Bench:
    """A settler over a dictionary of files."""

    def __init__(self, capacity: int = 100) -> None:
        self.files: dict[str, tuple[int, int]] = {}
        self.settler = Debouncer(DEBOUNCE, self.files.get, capacity)

    def write(self, path: str, size: int, now: float, kind: PathChangeKind = PathChangeKind.CHANGED) -> None:
        self.files[path] = (size, int(now * 1000))
        self.settler.add(PathChange(path, kind), now)

    def release(self, now: float, limit: int = 100) -> list[Hint]:
        return self.settler.release(now, limit)


def test_a_file_renamed_into_place_is_reported_after_one_debounce() -> None:
    bench = Bench()
    bench.write("a", 5, now=0)
    assert bench.release(0.19) == []
    assert bench.release(0.2) == [KeyHint("a")]
    assert bench.release(9) == []
    assert bench.settler.next_due is None


def test_a_closed_file_is_reported_right_after_a_short_settle() -> None:
    bench = Bench()
    bench.write("a", 0, now=0)
    bench.write("a", 9, now=0.01)
    bench.settler.add(PathChange("a", PathChangeKind.CLOSED), 0.02)
    assert bench.settler.next_due == 0.02 + CLOSED_SECONDS
    assert bench.release(0.06) == []
    assert bench.release(0.07) == [KeyHint("a")]


def test_a_slow_writer_that_pauses_less_than_the_debounce_is_waited_for() -> None:
    bench = Bench()
    for step in range(50):
        bench.write("a", step, now=step * 0.15)
        assert bench.release(step * 0.15) == []
    end = 49 * 0.15
    # It was written since the first look, so there is a second.
    assert bench.release(end + 0.25) == []
    assert bench.release(end + 0.5) == [KeyHint("a")]


def test_a_write_after_a_close_is_waited_for() -> None:
    bench = Bench()
    bench.write("a", 1, now=0, kind=PathChangeKind.CLOSED)
    bench.write("a", 2, now=0.04)
    assert bench.release(0.06) == []
    assert bench.release(0.25) == []
    assert bench.release(0.5) == [KeyHint("a")]


def test_a_file_that_changes_without_an_event_is_checked_again() -> None:
    bench = Bench()
    bench.write("a", 1, now=0)
    bench.files["a"] = (2, 100)
    assert bench.release(0.25) == []
    bench.files["a"] = (3, 300)
    assert bench.release(0.5) == []
    assert bench.release(0.75) == [KeyHint("a")]


def test_a_deleted_file_is_reported_after_the_debounce() -> None:
    bench = Bench()
    bench.settler.add(PathChange("a", PathChangeKind.CHANGED), 0)
    assert bench.release(0.19) == []
    assert bench.release(0.2) == [KeyHint("a")]


def test_a_directory_is_reported_as_a_subtree_without_delay() -> None:
    bench = Bench()
    bench.settler.add(PathChange("d", PathChangeKind.DIRECTORY_GONE), 0)
    bench.settler.add(PathChange("d", PathChangeKind.DIRECTORY_NEW), 0.1)
    assert len(bench.settler) == 1, "what waits, for the queue's depth"
    assert bench.release(0.2) == [SubtreeHint("d/", "directory new")]


def test_no_more_is_released_than_asked_for_and_the_rest_stays() -> None:
    bench = Bench()
    bench.settler.rescan("overflow", 0)
    for name in ("a", "b", "c"):
        bench.write(name, 1, now=0)
    assert bench.release(1, limit=2) == [SubtreeHint("", "overflow"), KeyHint("a")]
    assert len(bench.settler) == 2
    assert bench.release(1, limit=0) == []
    assert bench.release(1) == [KeyHint("b"), KeyHint("c")]


def test_too_many_pending_paths_become_one_hint_for_everything() -> None:
    bench = Bench(capacity=3)
    bench.settler.rescan("overflow", 0)
    for number in range(10):
        bench.write(f"{number}", 1, now=0.01)
    assert len(bench.settler) <= 3
    assert SubtreeHint("", "too many pending") in bench.release(0.2)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from([PathChangeKind.CHANGED, PathChangeKind.CLOSED]),
        st.booleans(),
        st.integers(0, 400),
    ),
    max_size=40,
)


@given(EVENTS)
def test_every_change_is_reported_afterwards_and_never_while_the_file_still_changes(
    events: list[tuple[str, PathChangeKind, bool, int]],
) -> None:
    bench = Bench()
    now = 0.0
    last_event: dict[str, tuple[float, PathChangeKind]] = {}
    told: dict[str, float] = {}
    for path, kind, writes, pause in [*events, ("", PathChangeKind.CHANGED, False, 100_000)]:
        end = now + pause / 1000
        while (due := bench.settler.next_due) is not None and due < end:
            now = max(now, due)
            for hint in bench.release(now):
                assert isinstance(hint, KeyHint)
                seen, seen_kind = last_event[hint.path]
                assert now >= seen + (CLOSED_SECONDS if seen_kind is PathChangeKind.CLOSED else DEBOUNCE)
                told[hint.path] = now
        now = end
        if path:
            if writes:
                bench.write(path, len(told), now, kind)
            else:
                bench.settler.add(PathChange(path, kind), now)
            last_event[path] = (now, kind)
    assert len(bench.settler) == 0
    assert all(told[path] > seen for path, (seen, _) in last_event.items())
