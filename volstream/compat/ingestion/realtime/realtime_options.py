"""Options where hosted platforms have them."""

from __future__ import annotations

from volstream.ingest.options import FlushMode, RealtimeOptions, RealtimeOptionsBuilder, RetryStatus

__all__ = ["FlushMode", "RealtimeOptions", "RealtimeOptionsBuilder", "RetryStatus"]
