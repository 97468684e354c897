"""Credentials for Google Cloud: for an :class:`Access`, tokens for tasks, and mapping of errors.

The only module that imports google.auth. Not here: the requests of the store and the queue.
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

#: Scopes of a task: objects, and signing URLs, which works only if the account may sign for itself.
_TASK_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write", "https://www.googleapis.com/auth/iam")

#: Tokens with less time left than this are renewed, so that a task that has just received one can finish.
_RENEW = timedelta(seconds=1800)

FILES = KeyFiles()

_lock = threading.RLock()


def credentials(access: Access) -> Credentials:
    """Returns the credentials of an access, one object per access. They renew themselves.

    Other servers than Google's get no credentials, unless from a profile.

    Raises:
        The vendor's exceptions: call it inside :func:`errors`.
    """
    with _lock:
        check_key_file(access)
        return _credentials(access, _SCOPES)


def check_key_file(access: Access) -> None:
    """Checks the file with the credentials for a new key."""
    kind, _, path = access.credentials.partition(":")
    FILES.check(path if kind == "profile" else config.environment("GOOGLE_APPLICATION_CREDENTIALS"))


def for_tasks(access: Access, _location: str) -> Access:
    """Returns the access for a task, with a one-hour token that only covers objects and signing URLs."""
    if access.keys is not None:
        return access
    with errors("The credentials"), _lock:
        check_key_file(access)
        creds = _credentials(access, _TASK_SCOPES)
        if isinstance(creds, AnonymousCredentials):
            return access
        if creds.token is None or creds.expiry is None or creds.expiry.replace(tzinfo=UTC) - datetime.now(UTC) < _RENEW:
            creds.refresh(Request())
        expires = creds.expiry.replace(tzinfo=UTC) if creds.expiry is not None else None
        keys = Keys(email(creds) or "a user", "", creds.token, expires)
    return replace(access, role_arn=None, external_id=None, credentials="static", keys=keys)


def signer(access: Access) -> Mapping[str, Any]:
    """Returns the SDK's arguments for signing URLs. Empty if the credentials cannot sign.

    May send a request. Raises like :func:`credentials`.
    """
    if access.keys is not None:
        return {"service_account_email": access.keys.id, "access_token": access.keys.token}
    creds = credentials(access)
    if hasattr(creds, "sign_bytes"):
        return {"credentials": creds}
    if email(creds) is None:
        return {}
    creds.refresh(Request())  # a machine's account, which signs by a request
    return {"service_account_email": email(creds), "access_token": creds.token}


def email(creds: Credentials) -> str | None:
    """Returns the service account of these credentials, or None for a user's or a task's credentials."""
    name: str | None = getattr(creds, "service_account_email", None)
    return name


def project(access: Access) -> str | None:
    """Returns the project of the role, or else of the credentials or the environment."""
    if access.role_arn is not None:
        return access.role_arn.partition("@")[2].partition(".")[0]
    with _lock:
        return _source(access, _SCOPES)[1]


def is_own(endpoint: str | None) -> bool:
    """True if ``endpoint`` is Google's. Its other services then have separate addresses."""
    place = urlsplit(endpoint or "https://storage.googleapis.com")
    return place.scheme == "https" and (place.hostname or "").endswith(".googleapis.com")


@contextmanager
def errors(
    what: str, passing: type[DependencyError] = StorageError, denied: type[DependencyError] = StorageDeniedError
) -> Iterator[None]:
    """Maps the exceptions of Google's packages.

    Args:
        what: name of the request in messages.
        passing: error class for temporary problems.
        denied: error class for permanent problems: no credentials, no permission.
    """
    try:
        yield
    except (GoogleAPICallError, RetryError, InvalidResponse, DataCorruption, GoogleAuthError, RequestException, HTTPError) as exc:
        cause = exc.cause if isinstance(exc, RetryError) and exc.cause is not None else exc
        # its text may contain an upload's URL, which grants access
        raise _mapped(cause, what, passing, denied) from None
    except UNREADABLE as exc:
        raise passing(unreadable(what, exc)) from None
    except StorageError as exc:
        if issubclass(denied, StorageError):
            raise
        raise denied(exc.message, exc.remedy) from exc  # from a queue's credentials


def _mapped(exc: Exception, what: str, passing: type[DependencyError], denied: type[DependencyError]) -> DependencyError:
    if isinstance(exc, InvalidResponse):  # from an upload
        exc = from_http_response(exc.response)
    match exc:
        case GoogleAPICallError(code=401 | 403):
            return denied(f"{what}: {exc.message} ({exc.code}).", ALLOW)
        case GoogleAPICallError():
            throttled = passing is StorageError and exc.code in (429, 503)
            kind = StorageThrottledError if throttled else passing
            return kind(f"{what}: {exc.message} ({exc.code}).", NO_BUCKET if exc.code == 404 else "")
        # the latter: a task's token has expired
        case RefreshError() if exc.retryable or "necessary fields need to refresh" in str(exc):
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
    url = f"{access.endpoint}/v1/projects/-/serviceAccounts/{access.role_arn}:generateAccessToken"
    return impersonated_credentials.Credentials(source, access.role_arn, [*scopes], iam_endpoint_override=None if own else url)


@FILES.cached
def _source(access: Access, scopes: Sequence[str]) -> tuple[Credentials, str | None]:
    """Returns a connection's credentials before any role is assumed, and their project."""
    has_token = access.keys is not None or access.credentials != "env"
    if has_token and access.endpoint and not is_private(access.endpoint):
        raise StorageDeniedError(f"No token is sent to {access.endpoint} unencrypted.", "Write https://.")
    if access.keys is not None:
        expires = access.keys.expires
        return Token(access.keys.token, expiry=None if expires is None else expires.replace(tzinfo=None)), None
    kind, _, path = access.credentials.partition(":")
    if kind == "profile":
        return _from_file(path, scopes)
    found: tuple[Credentials, str | None] = (AnonymousCredentials(), None)
    return google.auth.default(scopes=[*scopes]) if is_own(access.endpoint) else found


def _from_file(path: str, scopes: Sequence[str]) -> tuple[Credentials, str | None]:
    try:
        info = json.loads(Path(path).read_bytes())
        project = info.get("project_id")
        match info["type"]:
            case "service_account":
                return service_account.Credentials.from_service_account_info(info, scopes=[*scopes]), project
            case "external_account":
                return identity_pool.Credentials.from_info(info, scopes=[*scopes]), project
        raise ValueError(f"keys of the type {info['type']!r} are not supported")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, GoogleAuthError) as exc:
        raise StorageDeniedError(
            f"There are no Google credentials in {path}: {exc}.",
            "Give the path of a service account's key, or of a configuration of workload identity federation.",
        ) from None
