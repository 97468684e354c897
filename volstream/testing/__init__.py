"""Suites of tests for plug-ins, which volstream's own queues and stores also pass. They need pytest.

A package subclasses a suite in its tests and supplies one fixture: :class:`QueueContract` and
:class:`StoreContract`.
"""

import pytest

pytest.register_assert_rewrite("volstream.testing.queues", "volstream.testing.stores")

from volstream.testing.queues import OpenBench, QueueBench, QueueContract  # noqa: E402  # rewritten on import
from volstream.testing.stores import Place, StoreContract  # noqa: E402

__all__ = ["OpenBench", "Place", "QueueBench", "QueueContract", "StoreContract"]
