"""Structured logs: a constant event name plus fields, to standard error. Configured once, by the surface."""

from __future__ import annotations

import logging
import sys

import structlog

#: What others log at these levels says nothing to a user of volstream.
_QUIET = ("pyspark", "py4j", "grpc", "alembic", "sqlalchemy", "watchdog.observers.inotify_buffer", "fsevents")


def configure(level: str = "INFO", *, json: bool = False) -> None:
    """Sends logs of ``level`` and above to standard error, as lines for people or as JSON."""
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s", force=True
    )
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get(component: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines name ``component``."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=component)
    return logger
