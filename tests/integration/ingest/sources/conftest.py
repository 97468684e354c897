"""Sessions for tests of sources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import session_on
from tests.tails import no_spark
from volstream.api.session import Session
from volstream.base.config import Settings
from volstream.spark.session import SparkGateway


@pytest.fixture
def session(settings: Settings, gateway: SparkGateway) -> Iterator[Session]:
    with session_on(gateway, settings) as session:
        yield session


@pytest.fixture
def without_engine(settings: Settings) -> Iterator[Session]:
    with Session(settings, no_spark) as session:
        yield session
