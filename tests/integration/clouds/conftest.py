"""Local servers for tests of buckets and queues. None of these tests needs Spark, and the engine's fixture is lazy."""

from __future__ import annotations

import pytest

from tests.broker import broker
from tests.clouds import Cloud, answers, mns, oss, s3

__all__ = ["answers", "broker", "mns", "oss", "s3"]


@pytest.fixture(params=["s3", "oss"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    """Each of the object stores."""
    found: Cloud = request.getfixturevalue(request.param)
    return found
