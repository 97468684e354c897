"""When the engine is attached to: at the first session, not before."""

from __future__ import annotations

import pytest

from volstream.errors import EngineError, EngineLostError
from volstream.spark.address import Address, RemoteAddress
from volstream.spark.session import SparkGateway


class Engines:
    """Engines to attach to, some of which cannot be started."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked = 0

    def attach(self) -> Address:
        self.asked += 1
        if self.failures:
            raise self.failures.pop()
        return RemoteAddress("sc://127.0.0.1:1")


def test_a_gateway_attaches_at_its_first_session_and_once() -> None:
    engines = Engines()
    gateway = SparkGateway(engines.attach, stall_seconds=60)
    assert (gateway.attached, engines.asked) == (False, 0)
    first = gateway.session()
    assert gateway.session() is first
    assert (gateway.attached, engines.asked) == (True, 1)
    gateway._lose("the test is over")


def test_an_engine_that_cannot_be_attached_to_is_asked_for_again() -> None:
    engines = Engines(EngineError("no"))
    gateway = SparkGateway(engines.attach, stall_seconds=60)
    with pytest.raises(EngineError, match="no"), gateway.fresh():
        pass
    assert gateway.lost is None
    gateway.session()
    gateway._lose("the test is over")


def test_a_gateway_that_is_closed_attaches_to_nothing() -> None:
    engines = Engines()
    gateway = SparkGateway(engines.attach, stall_seconds=60)
    gateway.close()
    with pytest.raises(EngineLostError, match="closed"), gateway.pooled():
        pass
    assert engines.asked == 0
