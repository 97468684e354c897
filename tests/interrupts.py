"""Ctrl-C at a named point, without a patch of the code that it meets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import pytest


@contextmanager
def interrupted(event: Literal["call", "return"], function: str) -> Iterator[None]:
    """Raises KeyboardInterrupt where this thread enters a function, or as it returns, and expects it to come out.

    Args:
        function: its full name, like ``volstream.delta.direct.commit``.
    """

    def watch(frame: FrameType, seen: str, _: object) -> None:
        if seen == event and f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}" == function:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sys.setprofile(None)
