"""Credentials for Azure: account and keys of an :class:`Access`, signatures for tasks, and mapping of errors.

The only module that imports azure.identity. Not here: the requests of the store and the queue.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, DeserializationError, HttpResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import DefaultAzureCredential
from azure.storage.blob import (
    BlobSasPermissions,
    BlobServiceClient,
    ContainerSasPermissions,
    LinearRetry,
    UserDelegationKey,
    generate_blob_sas,
    generate_container_sas,
)
from requests.adapters import HTTPAdapter

from volstream.base import config
from volstream.base.model.paths import LOOPBACK
from volstream.errors import DependencyError, InvalidValueError, StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.azure import DOMAINS
from volstream.files.providers.base import UNREADABLE, BucketPlace, is_private, unreadable, without_queries

#: How long signatures for tasks are valid. With less time left than the second value, new ones are made.
_SECONDS, _RENEW = timedelta(days=1), timedelta(hours=12)

#: Services accept signatures from clocks that are off by this much.
_SKEW = timedelta(minutes=15)

_READ_AND_WRITE = ContainerSasPermissions(read=True, add=True, create=True, write=True, delete=True, list=True, tag=True)

#: 32 threads each fetch contents and check versions.
_CONNECTIONS = 64

#: Contents are fetched in requests of this size.
_CHUNK = 8 << 20

#: Pause between attempts at a request.
_BACKOFF_SECONDS = 1

#: Environment variables, as in the Azure CLI.
_ACCOUNT, _KEY, _SAS = ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"), "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"

#: Size limit of caches by access: a long-lived worker receives a new access with each set of keys.
MAX_CACHED = 64

#: Azure's hosts, in all of its clouds. The first group is the account.
_OWN_HOST = re.compile(rf"([a-z0-9]{{3,24}})\.(?:[a-z0-9]+\.)?(?:blob|dfs|queue)\.{DOMAINS}")

_ALLOW = "Allow it: `volstream describe connection NAME` prints the role assignments."
_REMEDIES = {
    "ContainerNotFound": "Create the container, or correct its name; until then its files are kept as they were.",
    "ResourceNotFound": "Create the container, or correct its name; until then its files are kept as they were.",
    "QueueNotFound": "Create the queue, or correct the volume's queue name.",
    "BlobArchived": "The blob is archived: rehydrate it, or exclude it with an ignore pattern.",
}

# Azure's packages also write their exceptions to standard error.
logging.getLogger("azure").setLevel(logging.CRITICAL)

_lock = threading.RLock()
_task_access: dict[tuple[Access, str], Access] = {}


class Account(NamedTuple):
    """A storage account: its name, and the URL of its blob service."""

    name: str
    url: str


def account(access: Access, location: str) -> Account:
    """Returns the account of a location. Raises InvalidValueError if nothing determines it."""
    host = urlsplit(location).netloc.partition("@")[2]
    endpoint = (access.endpoint or "").rstrip("/")
    match = _OWN_HOST.fullmatch(host or urlsplit(endpoint).hostname or "")
    keys = _keys(access)
    name = match[1] if match else keys.id if keys else config.environment(*_ACCOUNT)
    if not name:
        raise InvalidValueError(
            f"The storage account of {location} is unknown.",
            "Write az://CONTAINER@ACCOUNT.blob.core.windows.net/PREFIX, or use a connection with "
            "--endpoint https://ACCOUNT.blob.core.windows.net.",
        )
    if not is_own(access.endpoint):
        return Account(name, f"{endpoint}/{name}")
    url = f"https://{host}" if host else endpoint or f"https://{name}.blob.core.windows.net"
    return Account(name, url.replace(".dfs.", ".blob."))


def is_own(endpoint: str | None) -> bool:
    """True if ``endpoint`` is Azure's. Other servers are expected to have accounts as first part of paths."""
    return endpoint is None or _OWN_HOST.fullmatch(urlsplit(endpoint).hostname or "") is not None


def service(access: Access, account: Account) -> BlobServiceClient:
    """Returns the client of an account's blob service. Threads share it."""
    with _lock:
        return _service(access, account)


def credential(access: Access, url: str) -> Any:
    """Returns the credential for Azure's SDK, given the URL of an account's blobs or queues.

    Raises:
        StorageDeniedError: the settings lack the connection's keys, the keys belong to another server, or the
            server takes only keys.
    """
    keys = _keys(access)
    if keys is not None:
        match = _OWN_HOST.fullmatch(urlsplit(url).hostname or "")
        _check_server(access, url, match[1] if match else None, keys)
        name = match[1] if match else url.rpartition("/")[2]
        return AzureSasCredential(keys.token) if keys.token else {"account_name": name, "account_key": keys.secret}
    if not is_own(url):
        raise StorageDeniedError(
            f"The server at {url} is not Azure's, and gets no tokens of Azure.",
            "Set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or use a connection with --credentials static.",
        )
    return _identity(access.role_arn)


def _check_server(access: Access, url: str, account: str | None, keys: Keys) -> None:
    """Raises StorageDeniedError if keys do not belong to a server, or would be sent to it unencrypted."""
    if not is_private(url):
        raise StorageDeniedError(f"Keys are not sent to {url} unencrypted.", "Write https://.")
    if account is not None and keys.id and account != keys.id:
        raise StorageDeniedError(
            f"The keys are those of the storage account {keys.id}, not of {account}.",
            "Use a connection with keys of that account.",
        )
    if account is None and urlsplit(url).hostname not in (*LOOPBACK, urlsplit(access.endpoint or "").hostname):
        raise StorageDeniedError(f"{url} is not the connection's server, and gets none of its keys.", "Correct the address.")


def for_tasks(access: Access, location: str) -> Access:
    """Returns the access for a task: a signature for the location's container, valid for at least half a day.

    The key of the identity or the account signs it. With an identity, the task also gets the user delegation
    key, which signs URLs.
    """
    if access.keys is not None and access.keys.expires is not None:  # already a task's
        return access
    place, owner = BucketPlace.of(location), account(access, location)
    with errors("The credentials", access), _lock:
        new = _task_access.get((access, f"{owner.url}/{place.bucket}"))
        if new is None or new.keys is None or _time_left(new.keys) < _RENEW:
            new = replace(access, role_arn=None, external_id=None, credentials="static", keys=_sign(access, owner, place.bucket))
            _task_access[access, f"{owner.url}/{place.bucket}"] = new
        return new


def reading(access: Access, account: Account, container: str, blob: str) -> str:
    """Returns a URL query that lets the account's server read a blob for a while. Empty if unneeded."""
    keys = _keys(access)
    if keys is not None and keys.token is None:
        return ""
    signed = signature(access, account, container, blob, _SKEW)
    if signed is None and keys is not None:  # a signature cannot sign another one
        return f"?{keys.token}"
    return f"?{signed}"


def signature(access: Access, account: Account, container: str, blob: str, lifetime: timedelta) -> str | None:
    """Returns a signature for reading a blob, or None if the access cannot sign. May send a request."""
    auth = signer(access, account)
    if not auth:
        return None
    until = datetime.now(UTC) + lifetime
    sas: str = generate_blob_sas(account.name, container, blob, permission=BlobSasPermissions(read=True), expiry=until, **auth)
    return sas


def signer(access: Access, account: Account) -> Mapping[str, Any]:
    """Returns the SDK's arguments for signing URLs. Empty if the access cannot sign. May send a request."""
    keys = _keys(access)
    if keys is None:
        now = datetime.now(UTC)
        return {"user_delegation_key": service(access, account).get_user_delegation_key(now - _SKEW, now + _SECONDS)}
    if keys.token is None:
        return {"account_key": keys.secret}
    return {"user_delegation_key": _delegation(keys.secret)} if keys.secret and keys.expires is not None else {}


@contextmanager
def errors(
    what: str, access: Access, passing: type[DependencyError] = StorageError, denied: type[DependencyError] = StorageDeniedError
) -> Iterator[None]:
    """Maps the exceptions of Azure's packages.

    Args:
        what: name of the request in messages.
        passing: error class for temporary problems.
        denied: error class for permanent problems: no credentials, no permission.
    """
    try:
        yield
    except HttpResponseError as exc:
        status, error_code = exc.status_code or 0, getattr(exc, "error_code", None)
        code = str(getattr(error_code, "value", error_code) or exc.reason or "")
        text = f"{what}: {without_queries(str(exc.message).partition(chr(10))[0])} ({code or status})."
        if access.keys is not None and access.keys.expires is not None and _time_left(access.keys) <= timedelta():
            raise passing(f"{what}: the signature of this task has expired.", "The next run receives a new one.") from None
        if status in (401, 403) or isinstance(exc, ClientAuthenticationError):
            raise denied(text, _ALLOW) from None
        throttled = passing is StorageError and status in (429, 503)
        raise (StorageThrottledError if throttled else passing)(text, _REMEDIES.get(code, "")) from None
    except (AzureError, DeserializationError) as exc:
        # Without the cause: its text has URLs with signatures, which grant access.
        raise passing(f"{what}: {without_queries(exc)}") from None
    except UNREADABLE as exc:
        raise passing(unreadable(what, exc)) from None
    except StorageError as exc:
        if issubclass(denied, StorageError):
            raise
        raise denied(exc.message, exc.remedy) from exc  # from a queue's credentials


def _keys(access: Access) -> Keys | None:
    """Returns the keys of an access or of the environment, or None if an identity signs."""
    if access.credentials == "static":
        return access.static_keys
    name, key, sas = config.environment(*_ACCOUNT), config.environment(_KEY), config.environment(_SAS)
    if access.role_arn is not None or name is None or not (key or sas):
        return None
    return Keys(name, key or "", None if key else sas)


def _sign(access: Access, account: Account, container: str) -> Keys:
    keys, end = _keys(access), datetime.now(UTC) + _SECONDS
    if keys is not None and keys.token is not None:  # a user's signature, which cannot sign another one
        return Keys(keys.id, "", keys.token)
    auth = signer(access, account)
    protocol = "https" if account.url.startswith("https:") else None
    sas = generate_container_sas(account.name, container, permission=_READ_AND_WRITE, expiry=end, protocol=protocol, **auth)
    delegation = auth.get("user_delegation_key")
    return Keys(account.name, "" if delegation is None else json.dumps(vars(delegation)), sas, end)


def _delegation(text: str) -> UserDelegationKey:
    key = UserDelegationKey()
    vars(key).update(json.loads(text))
    return key


def _time_left(keys: Keys) -> timedelta:
    return timedelta() if keys.expires is None else keys.expires - datetime.now(UTC)


@lru_cache(MAX_CACHED)
def _identity(client_id: str | None) -> DefaultAzureCredential:
    """Returns the identity of the environment or machine: a service principal, a workload identity, a managed
    identity, or the Azure CLI's user."""
    if client_id is None:
        return DefaultAzureCredential()
    return DefaultAzureCredential(managed_identity_client_id=client_id, workload_identity_client_id=client_id)


@lru_cache(MAX_CACHED)
def _service(access: Access, account: Account) -> BlobServiceClient:
    return BlobServiceClient(
        account.url, credential(access, account.url), **options(), max_single_get_size=_CHUNK, max_chunk_get_size=_CHUNK
    )


def options() -> Mapping[str, Any]:
    """Returns options for all clients of the SDK."""
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return {
        "transport": RequestsTransport(session=session, session_owner=False),
        "retry_policy": LinearRetry(backoff=_BACKOFF_SECONDS, retry_total=5, random_jitter_range=_BACKOFF_SECONDS),
        "connection_timeout": 5,
        "read_timeout": 60,
    }
