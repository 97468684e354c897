"""Importing PySpark, by one thread at a time: its modules import each other in circles, and a second thread that comes
meanwhile gets one that is not complete."""

from __future__ import annotations

import threading

_lock = threading.RLock()


def load() -> None:
    """Imports PySpark's client; a second is what that takes. Idempotent."""
    with _lock:
        import pyspark.sql.connect.session  # noqa: F401  # for the effect
