"""Structured logs: a constant event name plus fields, to standard error. Warnings and above, unless the caller sets the level.

structlog is imported by the first module that logs, so that a command that only queries the catalog does not pay for it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from volstream.model.text import json_document, visible

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor

#: Libraries whose log lines below critical are hidden: volstream raises its own error for what they report.
_QUIET = ("pyspark", "py4j", "grpc", "alembic", "sqlalchemy", "watchdog.observers.inotify_buffer", "fsevents")

_level, _json, _applied = "WARNING", False, False


def configure(level: str, *, json: bool = False) -> None:
    """Sends logs of ``level`` and above to standard error, as readable lines or as JSON."""
    global _level, _json, _applied
    _level, _json = level.upper(), json
    _applied = False
    get("log")


def get(component: str) -> FilteringBoundLogger:
    """Returns a logger whose lines name ``component``."""
    import structlog

    if not _applied:
        _apply()
    logger: FilteringBoundLogger = structlog.get_logger(component=component)
    return logger


class _Formatter(logging.Formatter):
    """Escapes control characters in log lines of third-party packages, which may contain file names."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _visible(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escapes control characters in logged values, which may contain file names. JSON escapes them itself."""
    return event if _json else {key: visible(one) if isinstance(one, str) else one for key, one in event.items()}


def _apply() -> None:
    global _applied
    import structlog

    _applied = True
    others = logging.StreamHandler(sys.stderr)
    others.setFormatter(_Formatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[others], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    renderer: Processor = (
        structlog.processors.JSONRenderer(json_document)
        if _json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _visible,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[_level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
