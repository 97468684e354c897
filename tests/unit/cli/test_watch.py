"""What is followed: ``status --watch`` until Ctrl-C, and runs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.commands import Shell, shell
from volstream.cli import options
from volstream.cli.output import Output
from volstream.jobs.runs.lease import Progress

__all__ = ["shell"]


def test_status_is_shown_until_it_is_interrupted(shell: Shell) -> None:
    command = [sys.executable, "-m", "volstream", "status", "--watch", "100ms", "--home", str(shell.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            seen = 0
            while seen < 3:
                line = running.stdout.readline()
                assert line, "it ended by itself"
                seen += line.startswith("home")
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
        finally:
            running.kill()


def test_a_run_whose_output_is_no_terminal_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "_QUIET_SECONDS", 0.0)
    steps = [Progress(files=2000, done_files=1200, failed=3), Progress(files=2000, done_files=2000, failed=3)]
    for as_json, said in ((False, "1200 of 2000 files, 3 failed ...\n"), (True, "")):
        with options.watched(Output(as_json=as_json)) as (_, observe):
            for step in steps:
                observe(step)
        assert capsys.readouterr().err == said
