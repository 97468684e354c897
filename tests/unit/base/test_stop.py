"""The stop signal, and what sets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from volstream.base.threads import Stop, stop_on_signals


def test_a_stop_stays_set_and_ends_every_wait() -> None:
    stop = Stop()
    assert not stop
    assert not stop.wait(0.001)
    threading.Timer(0.01, stop.set).start()
    began = time.monotonic()
    assert stop.wait(60)
    assert time.monotonic() - began < 5
    stop.set()
    assert stop


def test_the_first_signal_sets_the_stop_and_the_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stop = Stop()
    with stop_on_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_the_second_signal_ends_the_process_at_once() -> None:
    code = """
import os, signal, sys
from volstream.base.threads import Stop, stop_on_signals
stop = Stop()
with stop_on_signals(stop, second=lambda: print("second", flush=True)):
    os.kill(os.getpid(), signal.SIGINT)
    stop.wait(5)
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (130, "second\n")


def test_signals_are_handled_while_the_main_thread_is_blocked() -> None:
    code = """
import hashlib, os, signal, threading
from volstream.base.threads import Stop, stop_on_signals
stop = Stop()
def ask():
    os.kill(os.getpid(), signal.SIGTERM)
    stop.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
with stop_on_signals(stop, second=lambda: print("second", flush=True)):
    threading.Thread(target=ask, daemon=True).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (130, "second\n")
