"""How many files and connections a process may have open."""

from __future__ import annotations

import resource

#: A server's own need is small; those who connect to it take the rest for a moment.
_DESCRIPTORS = 16_384


def raise_limit() -> None:
    """Lets this process open as many files and connections as a server may need, up to the system's hard limit. Idempotent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    maximum = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, maximum), hard))
