"""The public path of :class:`Session`, which ``volstream.Session`` is, too."""

from __future__ import annotations

from volstream.api.session import Builder, Session, run

__all__ = ["Builder", "Session", "run"]
