"""Structured logs: a constant event name plus fields, to standard error. Warnings and above, unless the
caller sets the level.

A program of volstream configures the logs of its process. A program that uses volstream as a library keeps
its own configuration of ``logging``, and of structlog, if it has one.

structlog is imported with the first line that is written: most commands write none, and its import takes 0.1
s.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Any

from volstream.base.model.text import json_document, one_line, visible

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

#: Libraries whose log lines below critical are hidden: volstream raises its own error for what they report.
_QUIET = ("pyspark", "py4j", "grpc", "alembic", "sqlalchemy", "watchdog.observers.inotify_buffer")

_level, _json = logging.WARNING, False

#: True in a program of volstream; once structlog is configured, by us or by who uses the library.
_program = _structlog_configured = False


class Logger:
    """Logs lines that name a component. The methods are those of structlog's loggers."""

    def __init__(self, component: str) -> None:
        self._component = component

    def debug(self, event: str, **fields: Any) -> None:
        """Logs what helps to find a fault of volstream's."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Logs a step."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Logs what may need attention."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Logs what needs attention."""
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Logs an error with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, {"exc_info": True, **fields})

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        global _structlog_configured
        if level < _level:
            return
        import structlog

        if not _structlog_configured:
            _structlog_configured = True
            if _program or not structlog.is_configured():
                _configure_structlog()
        structlog.get_logger(component=self._component).log(level, event, **fields)


def configure(level: str, *, json: bool = False) -> None:
    """Makes this process's logs those of a program: of ``level`` and above, to standard error, as readable
    lines or as JSON."""
    global _level, _json, _program, _structlog_configured
    _program, _structlog_configured = True, False
    _level, _json = logging.getLevelNamesMapping()[level.upper()], json
    others = logging.StreamHandler(sys.stderr)
    others.setFormatter(_Formatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[others], force=True)


def get(component: str) -> Logger:
    """Returns a logger whose lines name ``component``."""
    _quieten()
    return Logger(component)


@functools.cache
def _quieten() -> None:
    for name in _QUIET:
        library = logging.getLogger(name)
        if library.level == logging.NOTSET:
            library.setLevel(logging.CRITICAL)


class _Formatter(logging.Formatter):
    """Escapes control characters in log lines of third-party packages, which may contain file names. A
    message is one line; a traceback below it keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _visible(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escapes control characters in logged values, which may contain file names. JSON escapes them itself."""
    return event if _json else {key: visible(value) if isinstance(value, str) else value for key, value in event.items()}


def _configure_structlog() -> None:
    import structlog

    renderer: Processor = (
        structlog.processors.JSONRenderer(json_document)
        if _json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=28,
            # Tracebacks come as text, so that names in them are escaped: structlog before 26 warns about that
            # with another one.
            exception_formatter=structlog.dev.plain_traceback,
        )
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
        wrapper_class=structlog.make_filtering_bound_logger(_level),
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
