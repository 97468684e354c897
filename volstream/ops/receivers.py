"""Delivers alerts to their receivers: webhooks, commands, plug-ins. Secrets appear in no message.

What does not belong here: when a delivery is tried again (``daemon.alerts``).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from volstream.base import plugins
from volstream.base.config import Receiver, Settings
from volstream.base.model.text import like, one_line, to_json
from volstream.base.plugins import Group
from volstream.base.privacy import resolve_references, with_references
from volstream.errors import DependencyError, InvalidValueError, VolstreamError

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
    """Raises InvalidValueError if an event has an unknown receiver."""
    for event in ("on_failure", "on_pause", "on_stale", "on_problem"):
        check_names(settings, getattr(settings, event), event)


def check_names(settings: Settings, names: Sequence[str], what: str) -> None:
    """Raises InvalidValueError if one of the names is not a receiver's."""
    for name in names:
        if name not in settings.receivers:
            defined = ", ".join(settings.receivers) or "none"
            raise InvalidValueError(
                f"{what} names an unknown receiver {name!r}.",
                f"Write [receivers.{name}] into volstream.toml, with webhook, command or kind. There are: {defined}.",
            )


def deliver(receiver: Receiver, payload: Mapping[str, Any], seconds: float = TIME_LIMIT) -> None:
    """Delivers an alert: returns once the receiver has taken it, within ``seconds``.

    Raises:
        DeliveryError: it refused, failed, or took too long; the plug-in is broken.
        InvalidValueError: a reference leads nowhere, the webhook is no URL, or no plug-in has the kind.
    """
    body = to_json(dict(payload))
    if receiver.kind is not None:
        _hand_over(receiver.kind, receiver.options, payload, seconds)
        return
    if receiver.webhook is None:
        _run(receiver.command, body, payload, seconds)
        return
    url = resolve_references(receiver.webhook.get_secret_value())
    headers = {name: resolve_references(value.get_secret_value()) for name, value in receiver.headers.items()}
    _check_url(url)
    headers = {"Content-Type": "application/json", "User-Agent": "volstream", **headers}
    import anyio  # late: names of receivers are checked where nothing is delivered

    problem = anyio.run(_post, url, body.encode(), headers, seconds)
    if problem is not None:
        raise DeliveryError(f"The webhook at {urlsplit(url).hostname} did not accept the alert: {one_line(problem)}.")


def _hand_over(kind: str, options: Mapping[str, SecretStr], payload: Mapping[str, Any], seconds: float) -> None:
    """Lets a plug-in deliver an alert."""
    if not plugins.has(Group.ALERTS, kind):
        raise InvalidValueError(
            f"There is no receiver kind {kind!r}.",
            f"{like(kind, plugins.names(Group.ALERTS))}Install the package that adds it, where the daemon runs.",
        )
    said = {name: value.get_secret_value() for name, value in options.items()}
    resolved = {name: resolve_references(text) for name, text in said.items()}
    try:
        plugins.call(Group.ALERTS, kind, payload, resolved, seconds)
    except VolstreamError as error:  # it may repeat an option, which may be a secret
        raise DeliveryError(one_line(with_references(error.message, said, resolved)), error.remedy) from None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and url.isprintable() and " " not in url
    except ValueError:
        usable = None
    if not usable:  # it may have a secret in it
        raise InvalidValueError("The receiver's webhook is not a URL.", "Write https://host/path.")


async def _post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> str | None:
    """Sends a request; returns why the server did not take it. At the limit the connection ends: it may send a byte a second.

    No redirect is followed, which would make a GET of it. The body of the answer is not read: it may have no end. What the server
    or the client says is not repeated, for it may contain a header or the URL.
    """
    import anyio
    import httpx2

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs URLs
    try:
        with anyio.fail_after(seconds):
            # Connecting has a limit of its own, well before: cancelled in a handshake, the client leaves its socket open.
            async with (
                httpx2.AsyncClient(timeout=httpx2.Timeout(None, connect=seconds / 2)) as client,
                client.stream("POST", url, content=body, headers=dict(headers)) as answer,
            ):
                return None if answer.is_success else f"it answered {_status(answer.status_code)}"
    except (TimeoutError, httpx2.TimeoutException):
        return "it did not answer in time"
    except httpx2.NetworkError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


def _status(code: int) -> str:
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)


def _run(command: tuple[str, ...], body: str, payload: Mapping[str, Any], seconds: float) -> None:
    variables = {f"VOLSTREAM_ALERT_{name.upper()}": str(payload.get(name) or "") for name in _VARIABLES}
    name = Path(command[0]).name
    with tempfile.TemporaryFile() as complaints:  # not a pipe: what the command leaves running would keep it open
        try:
            child = subprocess.Popen(
                command,
                env={**os.environ, **{key: variable.replace("\0", "")[:_MAX_VARIABLE] for key, variable in variables.items()}},
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
