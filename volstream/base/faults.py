"""Named points at which a test can kill this process; disabled unless VOLSTREAM_FAULT names the point.

``VOLSTREAM_FAULT=name`` kills the process (SIGKILL) when it reaches the point, ``name:stop`` freezes it
(SIGSTOP), ``name#3`` acts on the third pass. Read once, on import.
"""

from __future__ import annotations

import os
import signal

_point, _, _action = os.environ.get("VOLSTREAM_FAULT", "").partition(":")
_point, _, _count = _point.partition("#")
_passes_left = int(_count or 1)


def point(name: str) -> None:
    """Marks a point at which a crash is relevant."""
    global _passes_left
    if name != _point:
        return
    _passes_left -= 1
    if _passes_left == 0:
        os.kill(os.getpid(), signal.SIGSTOP if _action == "stop" else signal.SIGKILL)
