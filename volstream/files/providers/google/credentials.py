"""Credentials for Google Cloud: those of an :class:`Access`, tokens for tasks, and the meaning of errors.

The only module that imports google.auth. What does not belong here: the requests of the store and of the queue.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import google.auth
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.auth import identity_pool, impersonated_credentials
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.auth.transport.requests import Request
from google.cloud.exceptions import from_http_response
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.oauth2 import service_account
from google.oauth2.credentials import Credentials as Token
from requests import RequestException
from urllib3.exceptions import HTTPError

from volstream.base import config
from volstream.errors import DependencyError, StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.providers.access import Access, KeyFiles, Keys
from volstream.files.providers.base import ALLOW, NO_BUCKET, UNREADABLE, is_private, unreadable, without_queries

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)

#: Of a task: objects, and the signing of URLs, which works only if the account may sign for itself.
_TASK_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write", "https://www.googleapis.com/auth/iam")

#: Tokens are renewed when they have this long left, so that a task that just received them can finish with them.
_RENEW = timedelta(seconds=1800)

FILES = KeyFiles()

_lock = threading.RLock()


def credentials(access: Access) -> Credentials:
    """Returns the credentials of an access, one object per access, which renew themselves.

    A server that is not Google's gets none, unless a profile names them.

    Raises:
        The vendor's exceptions: call it inside :func:`errors`.
    """
    with _lock:
        look(access)
        return _credentials(access, _SCOPES)


def look(access: Access) -> None:
    """Notices another key in the file that the credentials name."""
    kind, _, path = access.credentials.partition(":")
    FILES.look(path if kind == "profile" else config.environment("GOOGLE_APPLICATION_CREDENTIALS"))


def for_tasks(access: Access, _location: str) -> Access:
    """Returns the access for a task: with a token of an hour, for objects and for signing URLs alone."""
    if access.keys is not None:
        return access
    with errors("The credentials"), _lock:
        look(access)
        made = _credentials(access, _TASK_SCOPES)
        if isinstance(made, AnonymousCredentials):
            return access
        if made.token is None or made.expiry is None or made.expiry.replace(tzinfo=UTC) - datetime.now(UTC) < _RENEW:
            made.refresh(Request())
        expires = made.expiry.replace(tzinfo=UTC) if made.expiry is not None else None
        keys = Keys(email(made) or "a user", "", made.token, expires)
    return replace(access, role_arn=None, external_id=None, credentials="static", keys=keys)


def signer(access: Access) -> Mapping[str, Any]:
    """Returns what the SDK signs URLs with; empty if nothing here can. May send a request. Raises as :func:`credentials`."""
    if access.keys is not None:
        return {"service_account_email": access.keys.id, "access_token": access.keys.token}
    made = credentials(access)
    if hasattr(made, "sign_bytes"):
        return {"credentials": made}
    if email(made) is None:
        return {}
    made.refresh(Request())  # of a machine's account, which signs by a request
    return {"service_account_email": email(made), "access_token": made.token}


def email(made: Credentials) -> str | None:
    """Returns the name of the service account of these credentials; None: they are a user's, or a task's."""
    name: str | None = getattr(made, "service_account_email", None)
    return name


def project(access: Access) -> str | None:
    """Returns the project of the role, else of the credentials or the environment."""
    if access.role_arn is not None:
        return access.role_arn.partition("@")[2].partition(".")[0]
    with _lock:
        return _source(access, _SCOPES)[1]


def is_own(endpoint: str | None) -> bool:
    """True if ``endpoint`` is Google's; its other services are then at addresses of their own."""
    place = urlsplit(endpoint or "https://storage.googleapis.com")
    return place.scheme == "https" and (place.hostname or "").endswith(".googleapis.com")


@contextmanager
def errors(
    what: str, passing: type[DependencyError] = StorageError, denied: type[DependencyError] = StorageDeniedError
) -> Iterator[None]:
    """Maps the exceptions of Google's packages.

    Args:
        what: name of the request in messages.
        passing: raised for temporary problems.
        denied: raised for permanent ones: no credentials, no permission.
    """
    try:
        yield
    except (GoogleAPICallError, RetryError, InvalidResponse, DataCorruption, GoogleAuthError, RequestException, HTTPError) as exc:
        cause = exc.cause if isinstance(exc, RetryError) and exc.cause is not None else exc
        raise _mapped(cause, what, passing, denied) from None  # whose text may have the address of an upload, which opens it
    except UNREADABLE as exc:
        raise passing(unreadable(what, exc)) from None
    except StorageError as exc:
        if issubclass(denied, StorageError):
            raise
        raise denied(exc.message, exc.remedy) from exc  # of the credentials of a queue


def _mapped(exc: Exception, what: str, passing: type[DependencyError], denied: type[DependencyError]) -> DependencyError:
    if isinstance(exc, InvalidResponse):  # of an upload
        exc = from_http_response(exc.response)
    match exc:
        case GoogleAPICallError(code=401 | 403):
            return denied(f"{what}: {exc.message} ({exc.code}).", ALLOW)
        case GoogleAPICallError():
            throttled = passing is StorageError and exc.code in (429, 503)
            kind = StorageThrottledError if throttled else passing
            return kind(f"{what}: {exc.message} ({exc.code}).", NO_BUCKET if exc.code == 404 else "")
        case RefreshError() if exc.retryable or "necessary fields need to refresh" in str(exc):  # the latter: a task's has ended
            return passing(f"{what}: the credentials have expired.", "Renew them at their source.")
        case RefreshError():
            fix = "Compare the account's policy with what `volstream describe connection NAME` prints."
            return denied(f"{what}: {exc.args[0]}", fix)
        case GoogleAuthError() if not isinstance(exc, TransportError):
            return denied(
                f"{what}: there are no Google credentials ({str(exc).partition('. ')[0]}).",
                "Set GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default login`, or use a connection with "
                "--credentials profile:/path/of/key.json.",
            )
    return passing(f"{what}: {without_queries(exc)}")


@FILES.cached
def _credentials(access: Access, scopes: Sequence[str]) -> Credentials:
    source, _ = _source(access, scopes if access.role_arn is None else _SCOPES)
    if access.role_arn is None:
        return source
    own = is_own(access.endpoint)
    there = f"{access.endpoint}/v1/projects/-/serviceAccounts/{access.role_arn}:generateAccessToken"
    return impersonated_credentials.Credentials(source, access.role_arn, [*scopes], iam_endpoint_override=None if own else there)


@FILES.cached
def _source(access: Access, scopes: Sequence[str]) -> tuple[Credentials, str | None]:
    """Returns the credentials of a connection, before any role is assumed, and their project."""
    has_token = access.keys is not None or access.credentials != "env"
    if has_token and access.endpoint and not is_private(access.endpoint):
        raise StorageDeniedError(f"No token is sent to {access.endpoint} unencrypted.", "Write https://.")
    if access.keys is not None:
        expires = access.keys.expires
        return Token(access.keys.token, expiry=None if expires is None else expires.replace(tzinfo=None)), None
    kind, _, path = access.credentials.partition(":")
    if kind == "profile":
        return _of_file(path, scopes)
    found: tuple[Credentials, str | None] = (AnonymousCredentials(), None)
    return google.auth.default(scopes=[*scopes]) if is_own(access.endpoint) else found


def _of_file(path: str, scopes: Sequence[str]) -> tuple[Credentials, str | None]:
    try:
        said = json.loads(Path(path).read_bytes())
        project = said.get("project_id")
        match said["type"]:
            case "service_account":
                return service_account.Credentials.from_service_account_info(said, scopes=[*scopes]), project
            case "external_account":
                return identity_pool.Credentials.from_info(said, scopes=[*scopes]), project
        raise ValueError(f"keys of the type {said['type']!r} are not supported")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, GoogleAuthError) as exc:
        raise StorageDeniedError(
            f"There are no Google credentials in {path}: {exc}.",
            "Give the path of a service account's key, or of a configuration of workload identity federation.",
        ) from None
