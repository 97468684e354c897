"""Imports PySpark in one thread at a time: its modules import each other in cycles, and a second thread could get one that
is incomplete."""

from __future__ import annotations

import threading

_lock = threading.RLock()


def load() -> None:
    """Imports PySpark's client, which takes a second. Idempotent."""
    with _lock:
        import pyspark.sql.connect.session  # noqa: F401  # for the effect
