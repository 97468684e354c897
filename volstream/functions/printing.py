"""What a function prints and logs while it is called: kept with the file, within bounds, to come back with the outcomes.

Runs on executors, and in the child processes of ``isolation``. What is kept of a job is ``logs``'s.

What goes through ``sys.stdout``, ``sys.stderr`` and ``logging`` is caught. What other programs write that the function starts,
and libraries in C, goes where the process's own output goes.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TextIO

#: No line is longer, in characters.
_LONGEST = 4000

#: So many of the last lines of a failed file are shown with the failure, and so many characters of them.
_TAIL_LINES, _TAIL_LENGTH = 10, 2000

#: A child's copy of its output begins anew at this size: only its end is read.
_COPY_BYTES = 1 << 20

#: Stands before the last lines of a failed file.
PRINTED_LAST = "What it printed last:"


class Line(NamedTuple):
    """A line that was printed.

    Attributes:
        time: when it ended, in seconds since 1970.
        stream: ``stdout``, ``stderr``, or ``log`` for a record of ``logging``.
    """

    time: float
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Printed:
    """What was printed in one call of the function.

    Attributes:
        files: paths of the files that it was called with; none: while it was set up.
        lines: the last ones.
        dropped: how many there were before them.
    """

    files: Sequence[str]
    lines: Sequence[Line]
    dropped: int = 0

    def tail(self) -> str:
        """The last lines, as they are shown with a failure."""
        lines = [f"[{line.stream}] {line.text}" for line in self.lines[-_TAIL_LINES:]]
        return f"{PRINTED_LAST}\n" + "\n".join(lines)[-_TAIL_LENGTH:]

    def encoded(self, *, failed: bool) -> str:
        """As JSON, in ASCII, which any file and any column of text can hold."""
        values = {"files": [*self.files], "failed": failed, "dropped": self.dropped, "lines": [*self.lines]}
        return json.dumps(values, separators=(",", ":"))


class Prints(Protocol):
    """Where what a function prints goes."""

    def during(self) -> AbstractContextManager[None]:
        """In its block the function is called."""

    def take(self, files: Sequence[str]) -> Sequence[Printed]:
        """What was printed since the last time, with the paths of the files that it was for; nothing, most of the time."""


class Shown:
    """Shows what is printed at once, to somebody who watches."""

    def __init__(self, target: TextIO) -> None:
        self._target = target

    @contextmanager
    def during(self) -> Iterator[None]:
        """See :class:`Prints`."""
        with redirect_stdout(self._target), redirect_stderr(self._target):
            yield

    def take(self, files: Sequence[str]) -> Sequence[Printed]:
        """See :class:`Prints`."""
        del files
        return ()


class Capture:
    """Keeps the last lines that are printed. One at a time in a process, whose ``sys.stdout`` it stands for.

    Threads that the function starts may print, too. There is no lock, which a fork or an interruption could leave held: sizes
    may come out a little wrong, lines do not.

    Args:
        most_bytes: of a call's lines.
        copy: a file descriptor that gets all of it, too, so that it outlives this process; it is emptied before each call.
    """

    def __init__(self, most_bytes: int, copy: int | None = None) -> None:
        self._most = most_bytes
        self._copy = copy
        self._copied = 0
        self._lines: deque[tuple[Line, int]] = deque()
        self._bytes = self._dropped = 0
        self._begun: dict[tuple[str, int], str] = {}  # stream and thread -> the beginning of a line

    @contextmanager
    def during(self) -> Iterator[None]:
        """See :class:`Prints`."""
        if self._copy is not None:
            self._empty_copy(self._copy)
        before = sys.stdout, sys.stderr, logging.lastResort, _Stream.capture
        sys.stdout, sys.stderr, logging.lastResort, _Stream.capture = _STDOUT, _STDERR, _RECORDS, self
        try:
            yield
        finally:
            sys.stdout, sys.stderr, logging.lastResort, _Stream.capture = before

    def take(self, files: Sequence[str]) -> Sequence[Printed]:
        """See :class:`Prints`."""
        for stream, thread in [*self._begun]:
            self._keep(stream, self._begun.pop((stream, thread)))
        if not self._lines:
            return ()
        found = Printed(tuple(files), [line for line, _ in self._lines], self._dropped)
        self._lines.clear()
        self._bytes = self._dropped = 0
        return (found,)

    def add(self, stream: str, text: str) -> None:
        """Takes what was written to a stream."""
        if self._copy is not None:
            self._write_copy(self._copy, text)
        if len(text) > self._most + _LONGEST:  # not to be taken apart: nearly all of it would be dropped
            cut = len(text) - self._most - _LONGEST
            self._dropped += text.count("\n", 0, cut)
            text = text[cut:]
        begun = (stream, threading.get_ident())
        *lines, rest = (self._begun.pop(begun, "") + text).split("\n")
        for line in lines:
            self._keep(stream, line)
        if rest:
            self._begun[begun] = _unfinished(rest)

    def _keep(self, stream: str, text: str) -> None:
        text = _as_on_a_terminal(text)
        size = len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))
        self._lines.append((Line(time.time(), stream, text), size))
        self._bytes += size
        while self._bytes > self._most and len(self._lines) > 1:
            self._bytes -= self._lines.popleft()[1]
            self._dropped += 1

    def _write_copy(self, descriptor: int, text: str) -> None:
        data = memoryview(text[-_COPY_BYTES:].encode("utf-8", "backslashreplace"))
        if self._copied + len(data) > _COPY_BYTES:
            self._empty_copy(descriptor)
        self._copied += len(data)
        with suppress(OSError):  # the function may have put something else there
            while data:
                data = data[os.write(descriptor, data) :]

    def _empty_copy(self, descriptor: int) -> None:
        with suppress(OSError):  # as above
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.ftruncate(descriptor, 0)
        self._copied = 0


class Kept:
    """The newest of some entries, of together at most so many bytes; those of files that failed outlive the others."""

    def __init__(self, most_bytes: int) -> None:
        self.dropped = 0
        self._most = most_bytes
        self._bytes = 0
        self._failed: deque[str] = deque()
        self._others: deque[str] = deque()

    def add(self, entry: str, *, failed: bool) -> None:
        """Keeps an entry, which is ASCII, and drops older ones for it where need be."""
        (self._failed if failed else self._others).append(entry)
        self._bytes += len(entry)
        while self._bytes > self._most and len(self._failed) + len(self._others) > 1:
            self._bytes -= len((self._others or self._failed).popleft())
            self.dropped += 1

    def entries(self) -> Sequence[str]:
        """What is kept, of each of the two sorts in order."""
        return [*self._failed, *self._others]

    def encoded(self) -> Sequence[str]:
        """The same, with one more that says how many were dropped, if some were."""
        lost = [json.dumps({"lost": self.dropped})] if self.dropped else []
        return [*lost, *self.entries()]


class _Stream(io.TextIOBase):
    """What ``sys.stdout`` and ``sys.stderr`` are while a function is called. There is one of each for all functions of a process:
    what a module sets up when it is imported, such as handlers of ``logging``, writes to it ever after."""

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
        """Nothing: a function may close what is its output, and the next one prints to it."""

    def write(self, text: str) -> int:
        if _Stream.capture is not None:
            _Stream.capture.add(self._name, text)
        return len(text)


class _Bytes(io.RawIOBase):
    """The ``buffer`` of such a stream."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        content = bytes(memoryview(data))  # type: ignore[arg-type]  # whatever has bytes
        self._stream.write(content.decode("utf-8", "backslashreplace"))
        return len(content)


class _Records(logging.Handler):
    """Stands in the place of ``logging.lastResort``, which gets what no handler takes: a program that sets logging up has its
    own way."""

    def emit(self, record: logging.LogRecord) -> None:
        if _Stream.capture is None:
            return
        try:
            _Stream.capture.add("log", f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  # as handlers do: arguments that do not fit the message are told, and no error
            self.handleError(record)


_STDOUT, _STDERR = _Stream("stdout"), _Stream("stderr")
_RECORDS = _Records()
_RECORDS.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _as_on_a_terminal(text: str) -> str:
    """What a terminal shows of a line in the end: a progress bar is written again and again."""
    text = text.rstrip("\r").rpartition("\r")[2]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _unfinished(text: str) -> str:
    """What is to be remembered of a line that goes on: no more than a line."""
    shown = text.rstrip("\r").rpartition("\r")[2][: _LONGEST + 1]
    return f"{shown}\r" if text.endswith("\r") else shown
