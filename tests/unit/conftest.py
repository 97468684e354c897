"""For unit tests: a store in memory and what runs a function over its objects; servers that stand for the providers'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import cloud
from tests.running import isolated, run, store

__all__ = ["isolated", "mns", "moto", "run", "store"]


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of S3, SQS, SNS and STS."""
    with cloud.moto_server() as url:
        yield url


@pytest.fixture(scope="session")
def mns() -> Iterator[Any]:
    """The stand-in for MNS."""
    with cloud.mns_server() as server:
        yield server
