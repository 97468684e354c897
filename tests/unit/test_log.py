"""Logs of programs of volstream, and of programs that use it as a library."""

from __future__ import annotations

import subprocess
import sys

import pytest

OWN = """
import logging, sys
import structlog
{before}
from volstream.base import log
logger = log.get("tests")
logger.warning("an_event", path="a\\x1bb")
logging.getLogger("mine").info("shown")
logging.getLogger("grpc").error("not shown")
"""


def said(before: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", OWN.format(before=before)], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def test_a_library_leaves_the_logs_of_its_program_alone() -> None:
    lines = said("logging.basicConfig(level='INFO', format='MINE %(message)s')")
    assert lines[1:] == ["MINE shown"]
    assert "an_event" in lines[0] and r"a\x1bb" in lines[0] and "component=tests" in lines[0]  # noqa: PT018  # one line


def test_a_library_logs_through_the_structlog_of_its_program() -> None:
    lines = said(
        "structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.WriteLoggerFactory(sys.stderr))"
    )
    assert lines == ['{"component": "tests", "path": "a\\u001bb", "event": "an_event"}']


@pytest.mark.parametrize("json", [False, True])
def test_a_program_of_volstream_configures_the_logs_of_its_process(json: bool) -> None:
    lines = said(
        "logging.basicConfig(level='INFO', format='MINE %(message)s')\nstructlog.configure(processors=[])\n"
        f"from volstream.base import log\nlog.configure('info', json={json})"
    )
    assert len(lines) == 1
    assert lines[0].startswith("{") is json


def test_a_message_of_another_package_is_one_line_and_its_traceback_keeps_its_lines() -> None:
    lines = said(
        "from volstream.base import log\nlog.configure('info')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n"
        "    logging.getLogger('other').exception('no file %s', 'a\\nERROR forged\\x1b')"
    )
    assert lines[0] == r"ERROR other no file a\nERROR forged\x1b"
    assert lines[1].startswith("Traceback")
    assert "ZeroDivisionError: division by zero" in lines
