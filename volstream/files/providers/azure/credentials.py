"""Credentials for Azure: the account and keys of an :class:`Access`, shared access signatures for tasks, the meaning of errors.

The only module that imports azure.identity. What does not belong here: the requests of the store and of the queue.
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

#: How long signatures for tasks are valid, and how long they are given out.
_SECONDS, _RENEW = timedelta(days=1), timedelta(hours=12)

#: Services accept signatures of clocks that are this far behind.
_SKEW = timedelta(minutes=15)

_READ_AND_WRITE = ContainerSasPermissions(read=True, add=True, create=True, write=True, delete=True, list=True, tag=True)

#: Contents are fetched and versions checked in 32 threads each.
_CONNECTIONS = 64

#: A content comes in requests of this size.
_CHUNK = 8 << 20

#: Between the attempts at a request.
_BACKOFF_SECONDS = 1

#: Variables of the environment, as the Azure CLI has them.
_ACCOUNT, _KEY, _SAS = ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"), "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"

#: A long-lived worker receives new keys again and again, each with an access of its own.
MAX_HELD = 64

#: What a server says after the name of an account: these are Azure's, in all of its clouds.
_OWN_HOST = re.compile(rf"([a-z0-9]{{3,24}})\.(?:[a-z0-9]+\.)?(?:blob|dfs|queue)\.{DOMAINS}")

_ALLOW = "Allow it: `volstream describe connection NAME` prints the role assignments."
_REMEDIES = {
    "ContainerNotFound": "Create the container, or correct its name; until then its files are kept as they were.",
    "ResourceNotFound": "Create the container, or correct its name; until then its files are kept as they were.",
    "QueueNotFound": "Create the queue, or correct the volume's queue name.",
    "BlobArchived": "The blob is archived: rehydrate it, or exclude it with an ignore pattern.",
}

# Its packages write what they raise to standard error, too.
logging.getLogger("azure").setLevel(logging.CRITICAL)

_lock = threading.RLock()
_given: dict[tuple[Access, str], Access] = {}


class Account(NamedTuple):
    """A storage account: its name, and the URL of its blobs."""

    name: str
    url: str


def account(access: Access, location: str) -> Account:
    """Returns the account of a location. Raises InvalidValueError if nothing determines it."""
    host = urlsplit(location).netloc.partition("@")[2]
    endpoint = (access.endpoint or "").rstrip("/")
    own = _OWN_HOST.fullmatch(host or urlsplit(endpoint).hostname or "")
    keys = _keys(access)
    name = own[1] if own else keys.id if keys else config.environment(*_ACCOUNT)
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
    """True if ``endpoint`` is Azure's. Any other server is expected to have accounts as the first part of its paths."""
    return endpoint is None or _OWN_HOST.fullmatch(urlsplit(endpoint).hostname or "") is not None


def service(access: Access, of: Account) -> BlobServiceClient:
    """Returns the client of an account's blobs, which threads share."""
    with _lock:
        return _service(access, of)


def credential(access: Access, url: str) -> Any:
    """Returns what Azure's SDK signs requests with to an account, given by the URL of its blobs or queues.

    Raises:
        StorageDeniedError: the connection's keys are not in the settings or are another server's, or the server takes only keys.
    """
    keys = _keys(access)
    if keys is not None:
        own = _OWN_HOST.fullmatch(urlsplit(url).hostname or "")
        _check_server(access, url, own[1] if own else None, keys)
        name = own[1] if own else url.rpartition("/")[2]
        return AzureSasCredential(keys.token) if keys.token else {"account_name": name, "account_key": keys.secret}
    if not is_own(url):
        raise StorageDeniedError(
            f"The server at {url} is not Azure's, and gets no tokens of Azure.",
            "Set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or use a connection with --credentials static.",
        )
    return _identity(access.role_arn)


def _check_server(access: Access, url: str, account: str | None, keys: Keys) -> None:
    """Raises StorageDeniedError if keys are not for a server, or could be read on the way to it."""
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
    """Returns the access for a task: with a signature for the location's container, valid for half a day at least.

    The identity's or the account's key signs it. With an identity, the task also gets the user delegation key, which signs URLs.
    """
    if access.keys is not None and access.keys.expires is not None:  # a task's already
        return access
    place, of = BucketPlace.of(location), account(access, location)
    with errors("The credentials", access), _lock:
        held = _given.get((access, f"{of.url}/{place.bucket}"))
        if held is None or held.keys is None or _left(held.keys) < _RENEW:
            held = replace(access, role_arn=None, external_id=None, credentials="static", keys=_signed(access, of, place.bucket))
            _given[access, f"{of.url}/{place.bucket}"] = held
        return held


def reading(access: Access, of: Account, container: str, blob: str) -> str:
    """Returns the query with which the account's own server may read a blob for a while; empty if it needs none."""
    keys = _keys(access)
    if keys is not None and keys.token is None:
        return ""
    signed = signature(access, of, container, blob, _SKEW)
    if signed is None and keys is not None:  # a signature that cannot sign another one
        return f"?{keys.token}"
    return f"?{signed}"


def signature(access: Access, of: Account, container: str, blob: str, lifetime: timedelta) -> str | None:
    """Returns a signature for reading a blob; None if nothing here can make one. May send a request."""
    by = signer(access, of)
    if not by:
        return None
    until = datetime.now(UTC) + lifetime
    sas: str = generate_blob_sas(of.name, container, blob, permission=BlobSasPermissions(read=True), expiry=until, **by)
    return sas


def signer(access: Access, of: Account) -> Mapping[str, Any]:
    """Returns what the SDK's functions sign URLs with; empty if nothing here can. May send a request."""
    keys = _keys(access)
    if keys is None:
        now = datetime.now(UTC)
        return {"user_delegation_key": service(access, of).get_user_delegation_key(now - _SKEW, now + _SECONDS)}
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
        passing: raised for temporary problems.
        denied: raised for permanent ones: no credentials, no permission.
    """
    try:
        yield
    except HttpResponseError as exc:
        status, said = exc.status_code or 0, getattr(exc, "error_code", None)
        code = str(getattr(said, "value", said) or exc.reason or "")
        text = f"{what}: {without_queries(str(exc.message).partition(chr(10))[0])} ({code or status})."
        if access.keys is not None and access.keys.expires is not None and _left(access.keys) <= timedelta():
            raise passing(f"{what}: the signature of this task has expired.", "The next run receives a new one.") from None
        if status in (401, 403) or isinstance(exc, ClientAuthenticationError):
            raise denied(text, _ALLOW) from None
        throttled = passing is StorageError and status in (429, 503)
        raise (StorageThrottledError if throttled else passing)(text, _REMEDIES.get(code, "")) from None
    except (AzureError, DeserializationError) as exc:
        # Not from it: its text has addresses, with the signature of each request that a signature opens.
        raise passing(f"{what}: {without_queries(exc)}") from None
    except UNREADABLE as exc:
        raise passing(unreadable(what, exc)) from None
    except StorageError as exc:
        if issubclass(denied, StorageError):
            raise
        raise denied(exc.message, exc.remedy) from exc  # of the credentials of a queue


def _keys(access: Access) -> Keys | None:
    """Returns the keys of an access, or of the environment; None: an identity signs."""
    if access.credentials == "static":
        return access.static_keys
    name, key, sas = config.environment(*_ACCOUNT), config.environment(_KEY), config.environment(_SAS)
    if access.role_arn is not None or name is None or not (key or sas):
        return None
    return Keys(name, key or "", None if key else sas)


def _signed(access: Access, of: Account, container: str) -> Keys:
    keys, expires = _keys(access), datetime.now(UTC) + _SECONDS
    if keys is not None and keys.token is not None:  # a user's, which cannot sign another one
        return Keys(keys.id, "", keys.token)
    by = signer(access, of)
    protocol = "https" if of.url.startswith("https:") else None
    sas = generate_container_sas(of.name, container, permission=_READ_AND_WRITE, expiry=expires, protocol=protocol, **by)
    delegation = by.get("user_delegation_key")
    return Keys(of.name, "" if delegation is None else json.dumps(vars(delegation)), sas, expires)


def _delegation(text: str) -> UserDelegationKey:
    key = UserDelegationKey()
    vars(key).update(json.loads(text))
    return key


def _left(keys: Keys) -> timedelta:
    return timedelta() if keys.expires is None else keys.expires - datetime.now(UTC)


@lru_cache(MAX_HELD)
def _identity(client_id: str | None) -> DefaultAzureCredential:
    """Returns the identity of the environment or machine: a service principal, a workload's, a managed one, the Azure CLI's."""
    if client_id is None:
        return DefaultAzureCredential()
    return DefaultAzureCredential(managed_identity_client_id=client_id, workload_identity_client_id=client_id)


@lru_cache(MAX_HELD)
def _service(access: Access, of: Account) -> BlobServiceClient:
    return BlobServiceClient(
        of.url, credential(access, of.url), **options(), max_single_get_size=_CHUNK, max_chunk_get_size=_CHUNK
    )


def options() -> Mapping[str, Any]:
    """Returns the options of each of the SDK's clients."""
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return {
        "transport": RequestsTransport(session=session, session_owner=False),
        "retry_policy": LinearRetry(backoff=_BACKOFF_SECONDS, retry_total=5, random_jitter_range=_BACKOFF_SECONDS),
        "connection_timeout": 5,
        "read_timeout": 60,
    }
