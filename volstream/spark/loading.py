"""Imports PySpark in one thread at a time.

Its modules import each other in cycles, so a second thread could get an incomplete module.
"""

from __future__ import annotations

import threading

_lock = threading.RLock()


def load() -> None:
    """Imports PySpark's client, which takes a second. Idempotent."""
    with _lock:
        import pyspark.sql.connect.session  # noqa: F401  # for the effect
