"""``RealtimeOperation`` where hosted platforms have it."""

from __future__ import annotations

from volstream.ingest.options import RealtimeOperation

__all__ = ["RealtimeOperation"]
