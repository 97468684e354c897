"""Code run in several real processes that start at the same moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def race(code: str, arguments: Sequence[str], processes: int = 2) -> list[str]:
    """Runs ``code`` with ``sys.argv[1:] == arguments`` in each process; what each printed, without its last newline.

    ``code`` must call ``input()`` where it is ready: all of them get past it together.
    """
    # Importing takes each of them a different time, so each reports when it is ready.
    ready = "import builtins\ndef input():\n    print('ready', flush=True)\n    builtins.input()\n"
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", ready + code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    printed = [child.communicate(timeout=60)[0].rstrip("\n") for child in children]
    assert [child.returncode for child in children] == [0] * processes, printed
    return printed
