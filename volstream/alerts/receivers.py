"""Delivers alerts to their receivers, webhooks and commands. Secrets appear in no message.

What does not belong here: when a delivery is tried again (``daemon.alerts``).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from volstream.config import Receiver, Settings
from volstream.errors import DependencyError, InvalidValueError
from volstream.model.documents import to_json
from volstream.model.text import one_line
from volstream.references import resolve

#: The longest that a delivery takes.
TIME_LIMIT = 10.0

#: Characters of a command's complaint that are kept, and bytes of it that are read.
_MAX_COMPLAINT, _MAX_READ = 200, 64 << 10

#: Characters of a variable of a command's environment, which is limited as a whole.
_MAX_VARIABLE = 8000

#: Of the payload, what a command also gets in its environment: ``VOLSTREAM_ALERT_<NAME>``.
_VARIABLES = ("id", "key", "event", "state", "severity", "kind", "name", "why", "do", "home", "url", "text")


class DeliveryError(DependencyError):
    """A receiver did not take an alert; a retry may help."""

    transient = True


def check(settings: Settings) -> None:
    """Raises InvalidValueError if an event has a receiver that there is not."""
    for event in ("on_failure", "on_pause", "on_stale", "on_problem"):
        check_names(settings, getattr(settings, event), event)


def check_names(settings: Settings, names: Sequence[str], what: str) -> None:
    """Raises InvalidValueError if one of the names is not a receiver's."""
    for name in names:
        if name not in settings.receivers:
            known = ", ".join(settings.receivers) or "none"
            raise InvalidValueError(
                f"{what} names the receiver {name!r}, which there is not.",
                f"Write [receivers.{name}] into volstream.toml, with webhook or command. There are: {known}.",
            )


def deliver(receiver: Receiver, payload: Mapping[str, Any], seconds: float = TIME_LIMIT) -> None:
    """Delivers an alert: returns once the receiver has taken it, within ``seconds``.

    Raises:
        DeliveryError: it refused, failed, or took too long.
        InvalidValueError: a reference leads nowhere, or the webhook is no URL.
    """
    body = to_json(dict(payload))
    if receiver.webhook is None:
        _run(receiver.command, body, payload, seconds)
        return
    url = resolve(receiver.webhook.get_secret_value())
    headers = {name: resolve(value.get_secret_value()) for name, value in receiver.headers.items()}
    _check_url(url)
    asked = request.Request(
        url, body.encode(), {"Content-Type": "application/json", "User-Agent": "volstream", **headers}, method="POST"
    )
    _within(seconds, asked)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and url.isprintable() and " " not in url
    except ValueError:
        usable = None
    if not usable:  # it may have a secret in it
        raise InvalidValueError("The receiver's webhook is not a URL.", "Write https://host/path.")


class _NoRedirect(request.HTTPRedirectHandler):
    """Follows no redirect, which would make a GET of it."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Connection(HTTPConnection):
    """Hands out its socket as soon as it is connected, before the handshake of TLS."""

    line: _Line

    def connect(self) -> None:
        super().connect()
        self.line.keep(self.sock)


class _TlsConnection(HTTPSConnection, _Connection):
    pass


class _Line(request.HTTPSHandler, request.HTTPHandler):
    """Opens connections that another thread can shut, whatever is being done with them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_shut = False

    def http_open(self, req: request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, _Connection), req)

    def https_open(self, req: request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, _TlsConnection), req)

    def keep(self, connected: socket.socket) -> None:
        """Remembers a connection, by a descriptor of its own: TLS takes the other. Raises TimeoutError once it is shut."""
        with self._lock:
            if self._is_shut:
                raise TimeoutError
            self._sockets.append(connected.dup())

    def shut(self) -> None:
        """Ends what the connections wait for, now and later."""
        with self._lock:
            self._is_shut = True
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Closes the descriptors."""
        with self._lock:
            for one in self._sockets:
                one.close()
            self._sockets = []

    def _connection(self, kind: type[_Connection], host: str, **options: Any) -> _Connection:
        made = kind(host, **options)
        made.line = self
        return made


def _within(seconds: float, asked: request.Request) -> None:
    """Sends a request in a thread of its own. At the limit its connection is shut: a server may send a byte a second."""
    ended: list[str | None] = []
    line = _Line()

    def send() -> None:
        try:
            with request.build_opener(_NoRedirect, line).open(asked, timeout=seconds):
                ended.append(None)
        except HTTPError as error:
            with error:
                ended.append(f"it answered {error.code} {error.reason}".rstrip())
        except URLError as error:
            reason = error.reason
            slow = isinstance(reason, TimeoutError)
            said = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
            ended.append("it did not answer in time" if slow else str(said))
        except TimeoutError:
            ended.append("it did not answer in time")
        except Exception as error:  # noqa: BLE001  # http.client raises much, and some of it repeats headers
            ended.append(type(error).__name__)
        finally:
            line.forget()

    thread = threading.Thread(target=send, name="alert", daemon=True)
    thread.start()
    thread.join(seconds)
    problem = ended[0] if ended else "it did not answer in time"  # before what is cut off there is taken for an answer
    line.shut()
    if problem is not None:
        host = urlsplit(asked.full_url).hostname
        raise DeliveryError(f"The webhook at {host} did not take it: {one_line(problem)}.")


def _run(command: tuple[str, ...], body: str, payload: Mapping[str, Any], seconds: float) -> None:
    variables = {f"VOLSTREAM_ALERT_{name.upper()}": str(payload.get(name) or "") for name in _VARIABLES}
    name = Path(command[0]).name
    with tempfile.TemporaryFile() as complaints:  # not a pipe: what the command leaves running would keep it open
        try:
            child = subprocess.Popen(
                command,
                env={**os.environ, **{key: one.replace("\0", "")[:_MAX_VARIABLE] for key, one in variables.items()}},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryError(f"The command {name} cannot be run: {error.strerror}.") from None
        try:
            child.communicate(body.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            raise DeliveryError(f"The command {name} took longer than {seconds:g} s.") from None
        finally:
            _end(child)
        if child.returncode != 0:
            complaints.seek(0)
            lines = complaints.read(_MAX_READ).decode(errors="replace").strip().splitlines()
            said = f": {one_line(lines[-1][:_MAX_COMPLAINT])}" if lines else ""
            raise DeliveryError(f"The command {name} ended with status {child.returncode}{said}.")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a command that still runs, with what it started."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()
