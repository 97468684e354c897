"""Captures what a function prints and logs during a call. The output is kept with the file, within limits,
and returned with the outcomes.

Runs on executors, and in child processes (``child``). ``logs`` stores a job's output.

Captures output through ``sys.stdout``, ``sys.stderr`` and ``logging``. Output of C libraries, and of programs
that the function starts, goes to the process's own output.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from json import dumps  # functions may replace it in its module
from typing import NamedTuple, TextIO

#: Maximum length of a line, in characters.
_LONGEST = 4000

#: Maximum number of last lines, and of their characters, that are shown with a failure.
_TAIL_LINES, _TAIL_LENGTH = 10, 2000

#: Size at which a child's copy of its output restarts, because only its end is used.
_COPY_BYTES = 1 << 20

#: Heading of a failed file's last lines.
PRINTED_LAST = "What it printed last:"


class Line(NamedTuple):
    """A printed line.

    Attributes:
        time: when the line ended, in epoch seconds.
        stream: ``stdout``, ``stderr``, or ``log`` for a record of ``logging``.
    """

    time: float
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The output of one call of the function.

    Attributes:
        files: paths of the files in the call, or empty for the output of the setup.
        lines: the last lines.
        dropped: number of lines before them.
    """

    files: Sequence[str]
    lines: Sequence[Line]
    dropped: int = 0

    def tail(self) -> str:
        """Returns the last lines in the format shown with a failure."""
        lines = [f"[{line.stream}] {line.text}" for line in self.lines[-_TAIL_LINES:]]
        return f"{PRINTED_LAST}\n" + "\n".join(lines)[-_TAIL_LENGTH:]

    def encoded(self, *, failed: bool) -> str:
        """Returns JSON in ASCII, which any file and any text column can store."""
        values = {"files": [*self.files], "failed": failed, "dropped": self.dropped, "lines": [*self.lines]}
        return dumps(values, separators=(",", ":"))


class ImmediateOutput:
    """Passes output on immediately, for a watching user."""

    def __init__(self, target: TextIO) -> None:
        self._target = target

    @contextmanager
    def during(self) -> Iterator[None]:
        """Sends the function's output here during the block."""
        with redirect_stdout(self._target), redirect_stderr(self._target):
            yield

    def take(self, files: Sequence[str]) -> Sequence[CapturedOutput]:
        """Returns the output since the last call, labelled with the paths of the call's files. Here always
        empty."""
        del files
        return ()


class _Lines:
    """The last lines within a limit of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._maximum = max_bytes
        self._lines: deque[tuple[Line, int]] = deque()
        self._bytes = self._dropped = 0
        # Beginning of an incomplete line, by stream and thread.
        self._unfinished_lines: dict[tuple[str, int], str] = {}

    def take(self, files: Sequence[str]) -> Sequence[CapturedOutput]:
        """Returns the lines since the last call."""
        for stream, thread in [*self._unfinished_lines]:
            self._add_line(stream, self._unfinished_lines.pop((stream, thread)))
        if not self._lines:
            return ()
        output = CapturedOutput(tuple(files), [line for line, _ in self._lines], self._dropped)
        self._lines.clear()
        self._bytes = self._dropped = 0
        return (output,)

    def add(self, stream: str, text: str) -> None:
        """Adds text written to a stream."""
        # Splitting it into lines would be wasted, as nearly all are dropped.
        if len(text) > self._maximum + _LONGEST:
            cut = len(text) - self._maximum - _LONGEST
            self._dropped += text.count("\n", 0, cut)
            text = text[cut:]
        line_key = (stream, threading.get_ident())
        *lines, unfinished = (self._unfinished_lines.pop(line_key, "") + text).split("\n")
        for line in lines:
            self._add_line(stream, line)
        if unfinished:
            self._unfinished_lines[line_key] = _unfinished(unfinished)

    def _add_line(self, stream: str, text: str) -> None:
        text = _as_on_a_terminal(text)
        size = len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))
        self._lines.append((Line(time.time(), stream, text), size))
        self._bytes += size
        while self._bytes > self._maximum and len(self._lines) > 1:
            self._bytes -= self._lines.popleft()[1]
            self._dropped += 1


#: The lines of the call that this thread or coroutine serves, if calls run in threads.
_call_lines: ContextVar[_Lines | None] = ContextVar("lines of a call", default=None)


def _reopen() -> None:
    """Opens standard input, output and error if a call has closed them.

    The next file or socket of this process would take their place, and receive the output of another
    function.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one


class Capture:
    """Keeps the last printed lines. Only one can be active per process, because it replaces ``sys.stdout``.

    Calls in the thread that created it share their lines with threads that the function starts. A call in
    another thread has separate lines, shared with the coroutines that it waits for. There is no lock, which a
    fork or an interruption could leave locked. So sizes may be slightly off, but lines are not.

    Args:
        max_bytes: limit for the lines of a call.
        copy: file descriptor for a second copy of the output that survives this process. Truncated before
            each call.
    """

    def __init__(self, max_bytes: int, copy: int | None = None) -> None:
        self._maximum = max_bytes
        self._copy = copy
        self._copied = 0
        self._lines = _Lines(max_bytes)
        self._thread = threading.get_ident()

    @contextmanager
    def during(self) -> Iterator[None]:
        """See :class:`ImmediateOutput`.

        Threads enter it within a block of the creating thread, which restores the streams.
        """
        if threading.get_ident() != self._thread:
            _call_lines.set(_Lines(self._maximum))
            yield
            return
        if self._copy is not None:
            self._empty_copy(self._copy)
        before = sys.stdout, sys.stderr, logging.lastResort, _Stream.capture
        sys.stdout, sys.stderr, logging.lastResort, _Stream.capture = _STDOUT, _STDERR, _RECORDS, self
        try:
            yield
        finally:
            sys.stdout, sys.stderr, logging.lastResort, _Stream.capture = before
            _reopen()

    def take(self, files: Sequence[str]) -> Sequence[CapturedOutput]:
        """See :class:`ImmediateOutput`."""
        lines = _call_lines.get()
        # Output of the function's own threads belongs to none of the calls that run beside them.
        return self._lines.take(files) if lines is None else (*self._lines.take(()), *lines.take(files))

    def add(self, stream: str, text: str) -> None:
        """Adds text written to a stream."""
        if self._copy is not None:
            self._write_copy(self._copy, text)
        (_call_lines.get() or self._lines).add(stream, text)

    def _write_copy(self, descriptor: int, text: str) -> None:
        data = memoryview(text[-_COPY_BYTES:].encode("utf-8", "backslashreplace"))
        if self._copied + len(data) > _COPY_BYTES:
            self._empty_copy(descriptor)
        self._copied += len(data)
        with suppress(OSError):  # the function may have reused the descriptor
            while data:
                data = data[os.write(descriptor, data) :]

    def _empty_copy(self, descriptor: int) -> None:
        with suppress(OSError):  # as above
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.ftruncate(descriptor, 0)
        self._copied = 0


class TruncatedLog:
    """The newest entries within a total size. Entries of failed files outlast the others."""

    def __init__(self, max_bytes: int) -> None:
        self.dropped = 0
        self._maximum = max_bytes
        self._bytes = 0
        self._failed: deque[str] = deque()
        self._others: deque[str] = deque()

    def add(self, entry: str, *, failed: bool) -> None:
        """Adds an entry, which must be ASCII. Drops older ones if necessary."""
        (self._failed if failed else self._others).append(entry)
        self._bytes += len(entry)
        while self._bytes > self._maximum and len(self._failed) + len(self._others) > 1:
            self._bytes -= len((self._others or self._failed).popleft())
            self.dropped += 1

    def entries(self) -> Sequence[str]:
        """Returns the entries: first those of failed files, then the others, each in order."""
        return [*self._failed, *self._others]

    def encoded(self) -> Sequence[str]:
        """Returns the entries, preceded by the number of dropped entries, if any."""
        lost = [dumps({"lost": self.dropped})] if self.dropped else []
        return [*lost, *self.entries()]


class _Stream(io.TextIOBase):
    """Replaces ``sys.stdout`` or ``sys.stderr`` during a call.

    All functions of a process share one of each: objects that a module creates on import, such as ``logging``
    handlers, keep writing to it.
    """

    capture: Capture | None = None

    def __init__(self, name: str) -> None:
        self._name = name
        self.buffer = _Bytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class has an attribute
        return "utf-8"

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Does nothing: a function may close its output, but the next function prints to it, too."""

    def write(self, text: str) -> int:
        if _Stream.capture is not None:
            _Stream.capture.add(self._name, text)
        return len(text)


class _Bytes(io.RawIOBase):
    """The ``buffer`` of a captured stream."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        content = bytes(memoryview(data))  # type: ignore[arg-type]  # anything with bytes
        self._stream.write(content.decode("utf-8", "backslashreplace"))
        return len(content)


class _Records(logging.Handler):
    """Replaces ``logging.lastResort``, which receives records without a handler.

    A function that configures logging keeps its own handlers.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if _Stream.capture is None:
            return
        try:
            _Stream.capture.add("log", f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  # like other handlers: a bad log call is reported, not raised
            self.handleError(record)


_STDOUT, _STDERR = _Stream("stdout"), _Stream("stderr")
_RECORDS = _Records()
_RECORDS.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _as_on_a_terminal(text: str) -> str:
    """Returns a line as a terminal would finally show it: progress bars rewrite their line."""
    text = text.rstrip("\r").rpartition("\r")[2]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _unfinished(text: str) -> str:
    """Returns the part of an unfinished line to keep, at most one line."""
    shown = text.rstrip("\r").rpartition("\r")[2][: _LONGEST + 1]
    return f"{shown}\r" if text.endswith("\r") else shown
