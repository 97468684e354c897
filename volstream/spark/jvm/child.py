"""Replaces itself by a program that cannot outlive its parent: ``python child.py <parent pid> <program>
<arguments>``.

Run it as a file with ``python -I -S``: it imports nothing from volstream and costs 15 ms. The kernel sends
SIGKILL when the parent ends. "The parent" is the *thread* that forked, so callers must start this from their
main thread.

"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl was called
        sys.exit(1)
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
