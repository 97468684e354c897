"""Looking over the shoulder of code that runs, without a patch of it: Ctrl-C at a named point, and the calls it makes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import pytest

from volstream.base import faults


@contextmanager
def meanwhile(event: Literal["call", "return"], function: str, act: Callable[[], object], *, must: bool = True) -> Iterator[None]:
    """Does something once, where this thread, or one that starts meanwhile, enters a function for the first time, or as it
    returns.

    Args:
        function: its full name, like ``volstream.tables.delta.direct.commit``.
        must: one has to get there.
    """
    acts = [act]

    def watch(frame: FrameType, seen: str, _: object) -> None:
        if seen == event and f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}" == function:
            sys.setprofile(None)
            if acts:  # else another thread was the first
                acts.pop()()

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        assert not (acts and must), f"{function} was not reached"


@contextmanager
def passing(step: str, act: Callable[[], object], number: int = 1, *, must: bool = True) -> Iterator[None]:
    """Does something where this thread passes a step for the n-th time.

    Args:
        step: a point of :mod:`volstream.base.faults`; or a function as in :func:`meanwhile`, for its first call.
        must: the thread has to get there.
    """
    if step.startswith("volstream."):
        with meanwhile("call", step, act, must=must):
            yield
        return
    here, left, others = threading.current_thread(), number, faults.point

    def point(name: str) -> None:
        nonlocal left
        others(name)
        if name == step and threading.current_thread() is here:
            left -= 1
            if not left:
                act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "point", point)
        yield
    assert left <= 0 or not must, f"{step} was not reached {number} times"


@contextmanager
def interrupted(event: Literal["call", "return"], function: str) -> Iterator[None]:
    """Raises KeyboardInterrupt at such a point, and expects it to come out."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), meanwhile(event, function, interrupt):
        yield


@contextmanager
def called(*functions: str) -> Iterator[list[str]]:
    """Yields a list that grows by the name of each of these functions written in C that this thread calls."""
    seen: list[str] = []

    def watch(_: FrameType, event: str, function: object) -> None:
        name = getattr(function, "__name__", "")
        if event == "c_call" and name in functions:
            seen.append(name)

    sys.setprofile(watch)
    try:
        yield seen
    finally:
        sys.setprofile(None)
