"""``status --watch``: shown again and again, until Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.commands import Shell, shell

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
