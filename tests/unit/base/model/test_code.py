"""Source is parsed in many threads at once, as the runs of a daemon's jobs do."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from volstream.base.model.code import parsed

_SOURCE = "\n".join(
    f"def f{number}(a):\n    return [(a + {number}) * (a - 1) for a in range(9) if a or not a]" for number in range(40)
)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns as often as possible: also while they parse, when garbage is collected."""
    before, threshold = sys.getswitchinterval(), gc.get_threshold()

    def turn(phase: str, info: object) -> None:
        for _ in range(20):
            pass

    gc.callbacks.append(turn)
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    gc.set_threshold(*threshold)
    gc.callbacks.remove(turn)


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_threads_may_parse_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(parsed, [_SOURCE] * 60))
    assert {len(tree.body) for tree in trees} == {40}
