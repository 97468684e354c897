"""Delivers alerts to their receivers: webhooks, commands, plug-ins. Secrets appear in no message.

Retries are in ``daemon.alerts``.
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

#: Time limit of a delivery.
TIME_LIMIT = 10.0

#: Maximum characters kept of a command's error output, and bytes of it that are read.
_MAX_COMPLAINT, _MAX_READ = 200, 64 << 10

#: Maximum characters of a variable of a command's environment, whose total size is limited.
_MAX_VARIABLE = 8000

#: The parts of the payload that a command also gets in its environment, as ``VOLSTREAM_ALERT_<NAME>``.
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
    """Delivers an alert. Returns once the receiver has accepted it, within ``seconds``.

    Raises:
        DeliveryError: the receiver refused, failed, or took too long, or the plug-in is broken.
        InvalidValueError: a reference has no target, the webhook is not a URL, or no plug-in has the kind.
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
    import anyio  # late: names are also checked without a delivery

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
    given = {name: value.get_secret_value() for name, value in options.items()}
    resolved = {name: resolve_references(text) for name, text in given.items()}
    try:
        plugins.call(Group.ALERTS, kind, payload, resolved, seconds)
    except VolstreamError as error:  # the error may repeat an option, which may be secret
        raise DeliveryError(one_line(with_references(error.message, given, resolved)), error.remedy) from None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and url.isprintable() and " " not in url
    except ValueError:
        usable = None
    if not usable:  # the URL may contain a secret
        raise InvalidValueError("The receiver's webhook is not a URL.", "Write https://host/path.")


async def _post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> str | None:
    """Sends a request. Returns why the server did not accept it, or None.

    At the limit the connection ends, because the server may send a byte a second. No redirect is followed,
    which would turn the request into a GET. The body of the response is not read, because it may be endless.
    Messages of the server and the client are not repeated, because they may contain a header or the URL.
    """
    import anyio
    import httpx2

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs URLs
    try:
        with anyio.fail_after(seconds):
            # Connecting has a separate, much shorter limit: cancelled in a handshake, the client leaves its
            # socket open.
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
    # Not a pipe, which processes left by the command would keep open.
    with tempfile.TemporaryFile() as complaints:
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
            complaint = f": {one_line(lines[-1][:_MAX_COMPLAINT])}" if lines else ""
            raise DeliveryError(f"The command {name} ended with status {child.returncode}{complaint}.")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a command that is still running, with the processes that it started."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()
