"""Clients of Amazon's services for an :class:`Access`, temporary keys for tasks, and mapping of errors.

The only module that imports boto3. Not here: the requests of the store and the queue.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache, lru_cache
from typing import Any
from xml.etree import ElementTree

import boto3
import botocore.loaders
import botocore.session
from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    InvalidConfigError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
)
from botocore.httpsession import get_cert_path
from botocore.loaders import Loader
from botocore.utils import parse_timestamp
from urllib3.exceptions import HTTPError

from volstream.errors import DependencyError, StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.providers.access import MAX_CACHED, Access, DayKeys, KeyFiles, Keys
from volstream.files.providers.aws import is_own, key_files
from volstream.files.providers.base import ALLOW, NO_BUCKET, UNREADABLE, unreadable

#: Every role grants this, even if it allows longer sessions. It is the maximum for a role assumed through
#: another role.
_SESSION_SECONDS = 3600

#: Keys with less time left than this are renewed, so that a task that has just received keys can finish.
_RENEW_SECONDS = 1800

#: Used for signing where regions have no meaning, and where Amazon's services find the right region
#: themselves.
_ANY_REGION = "us-east-1"

_FILES = KeyFiles()

_OPTIONS: Mapping[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 60,  # a long poll of SQS takes 20
    "retries": {"mode": "standard", "total_max_attempts": 6},
    "max_pool_connections": 1024,  # kept open: one per polling queue, and 64 for contents and versions
    "tcp_keepalive": True,
    # Ranged reads have no checksums, and S3-compatible stores do not support the newer ones.
    "response_checksum_validation": "when_required",
    "request_checksum_calculation": "when_required",
}

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
_REFUSED = {
    "AccessDenied",
    "AccessDeniedException",
    "AllAccessDisabled",
    "AccountProblem",
    "AuthFailure",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidToken",
    "InvalidObjectState",
    "NotSignedUp",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "KMS.AccessDeniedException",
    "InvalidArnException",
    "ValidationError",
}
_NO_QUEUE = "Create the queue, or correct the volume's queue name or the connection's region and role."
_WRONG_KEY = (
    "The key is wrong, or was replaced: correct it where the connection takes it from. The files of profiles are read again."
)
_REMEDIES = {
    **dict.fromkeys(
        ("InvalidAccessKeyId", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException"), _WRONG_KEY
    ),
    "QueueDoesNotExist": _NO_QUEUE,
    "AWS.SimpleQueueService.NonExistentQueue": _NO_QUEUE,
    "NoSuchBucket": NO_BUCKET,
    "PermanentRedirect": "The bucket is in another region: give the connection that region.",
    "AuthorizationHeaderMalformed": "The bucket is in another region: give the connection that region.",
    "InvalidObjectState": "The object is archived: restore it, or exclude it with an ignore pattern.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
}

_lock = threading.RLock()


def client(access: Access, service: str, endpoint: str | None = None) -> Any:
    """Returns a boto3 client of ``service``, one per access. It is thread-safe and renews its keys.

    Throttling, 5xx and broken connections are retried. The first call for a role sends a request to STS.

    Args:
        endpoint: URL of the service. Taken from the access by default: stores other than Amazon's are
            expected to serve queues and STS at the same URL.

    Raises:
        The vendor's exceptions: call it inside :func:`errors`.
    """
    with _lock:
        _check_key_files(access)
        return _client(access, service, endpoint)


def _check_key_files(access: Access) -> None:
    """Checks the files with profiles for new keys."""
    if access.credentials != "static":
        _FILES.check(*key_files())


def signed(access: Access, service: str, endpoint: str | None, headers: Mapping[str, str], body: bytes) -> AWSRequest:
    """Returns a signed request. The service accepts it for fifteen minutes. Raises like :func:`client`."""
    meta = client(access, service, endpoint).meta
    with _lock:
        keys = _session(access).get_credentials()
    if keys is None:
        raise NoCredentialsError
    request = AWSRequest("POST", meta.endpoint_url, headers=headers, data=body)
    SigV4Auth(keys.get_frozen_credentials(), service, meta.region_name).add_auth(request)
    return request


def ca_file() -> str:
    """Returns the CA file with which botocore verifies the services' certificates."""
    return str(get_cert_path(os.environ.get("AWS_CA_BUNDLE") or True))


def for_tasks(access: Access, _location: str) -> Access:
    """Returns the access for a task, without long-lived keys.

    Uses the role's keys, or else existing temporary keys, or else keys of a new session. Other stores than
    Amazon's rarely support sessions: there, the task gets keys that sign for a day or two.
    """
    if access.days is not None:
        return access
    with errors("The credentials"), _lock:
        _check_key_files(access)
        credentials = _session(access).get_credentials()
        if credentials is None:
            raise NoCredentialsError
        frozen = credentials.get_frozen_credentials()
        store = _client(access, "s3", None).meta
        task_access = replace(access, role_arn=None, external_id=None, credentials="static", keys=None)
        if frozen.token is None and not is_own(store.endpoint_url):
            long_lived = Keys(frozen.access_key, frozen.secret_key)
            days = DayKeys.of(long_lived, "AWS4", store.region_name, "s3", "aws4_request")
            return replace(task_access, region=store.region_name, days=days)
        if frozen.token is None:
            frozen = _session_of_keys(access).get_frozen_credentials()
        keys = Keys(frozen.access_key, frozen.secret_key, frozen.token)
        return replace(task_access, region=region(access), keys=keys)


def region(access: Access) -> str | None:
    """Returns the region named by the access, else by the environment or profile."""
    with _lock:
        _check_key_files(access)
        name: str | None = _session(access).region_name
    return name


@contextmanager
def errors(
    what: str, passing: type[DependencyError] = StorageError, denied: type[DependencyError] = StorageDeniedError
) -> Iterator[None]:
    """Maps boto3's exceptions and errors from parsing responses.

    Args:
        what: name of the request in messages.
        passing: error class for temporary problems.
        denied: error class for permanent problems: no credentials, no permission.
    """
    try:
        yield
    except ClientError as exc:
        reply = exc.response.get("Error") or exc.response  # other stores' STS may reply in S3's format
        code = str(reply.get("Code") or status(exc))
        text = f"{what}: {reply.get('Message') or 'the service gave no reason'} ({code})."
        if code in _EXPIRED:
            raise passing(text, "The credentials have expired: renew them at their source.") from exc
        if code in _REFUSED or status(exc) in (401, 403):
            raise denied(text, _REMEDIES.get(code, ALLOW)) from exc
        throttled = passing is StorageError and (code in _THROTTLED or status(exc) in (429, 503))
        raise (StorageThrottledError if throttled else passing)(text, _REMEDIES.get(code, "")) from exc
    except (NoCredentialsError, PartialCredentialsError) as exc:
        raise denied(
            f"{what}: there are no AWS credentials ({exc}).",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a connection with --credentials profile:NAME.",
        ) from exc
    except (ProfileNotFound, InvalidConfigError, SSOError, NoRegionError) as exc:
        raise denied(f"{what}: {exc}", "Correct the connection, or ~/.aws/config.") from exc
    except (BotoCoreError, HTTPError) as exc:
        raise passing(f"{what}: {exc}") from exc
    except UNREADABLE as exc:  # botocore reads truncated JSON and a proxy's page as an empty response
        raise passing(unreadable(what, exc)) from exc


def status(error: Exception) -> int:
    """Returns the HTTP status of a service's response, or 0 for other errors."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@_FILES.cached
def _client(access: Access, service: str, endpoint: str | None) -> Any:
    return _new_client(_session(access), access, service, endpoint)


def _new_client(session: boto3.Session, access: Access, service: str, endpoint: str | None = None) -> Any:
    foreign = not is_own(access.endpoint)
    url = endpoint or (access.endpoint if foreign or service == "s3" else None)
    # Virtual hosts need a DNS name per bucket, which other stores rarely have.
    options = Config(**_OPTIONS, s3={"addressing_style": "path"} if foreign else None)
    name = session.region_name or (_ANY_REGION if foreign or service in ("s3", "sts") else None)
    client_ = session.client(service, endpoint_url=url, region_name=name, config=options)
    if access.days is not None:
        signature = _signature_by(access.days)
        client_.meta.events.register_first(f"choose-signer.{service}", lambda **_: signature)
    return client_


@_FILES.cached
def _session(access: Access) -> boto3.Session:
    """Returns the signing session, with the role's keys if there is a role."""
    source = _source(access)
    if access.role_arn is None:
        return source
    core = _core()
    core.register_component("credential_provider", _FixedCredentials(_assumed(access)))
    return boto3.Session(botocore_session=core, region_name=access.region or source.region_name)


def _source(access: Access) -> boto3.Session:
    if access.days is not None:
        return boto3.Session(access.days.id, "unknown", None, access.region, botocore_session=_core())
    if access.credentials == "static":
        keys = access.keys
        if keys is None:
            raise NoCredentialsError
        return boto3.Session(keys.id, keys.secret, keys.token, access.region, botocore_session=_core())
    profile = access.credentials.partition(":")[2] or None
    return boto3.Session(profile_name=profile, region_name=access.region, botocore_session=_core())


def _core() -> botocore.session.Session:
    core = botocore.session.Session()
    core.register_component("data_loader", _loader())
    # botocore calls these handlers before its own S3 handlers. One of those would parse the whole page.
    core.get_component("event_emitter").register("before-parse.*.ListObjectsV2", _list_objects)
    return core


def _list_objects(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parses the objects of a listing's page ten times as fast as botocore, which parses the rest.

    Leaves responses of any other form to botocore.
    """
    if response_dict["status_code"] != 200:
        return
    try:
        root = ElementTree.fromstring(response_dict["body"])
    except ElementTree.ParseError:
        return
    namespace = root.tag[: root.tag.rfind("}") + 1]
    contents, names = f"{namespace}Contents", [f"{namespace}{name}" for name in ("Key", "Size", "LastModified", "ETag")]
    objects: list[dict[str, Any]] = []
    rest = ElementTree.Element(root.tag)
    for element in root:
        if element.tag != contents:
            rest.append(element)
            continue
        fields = {member.tag: member.text or "" for member in element}
        try:
            key, size, modified, etag = map(fields.__getitem__, names)
        except KeyError:
            return
        objects.append({"Key": key, "Size": int(size), "LastModified": _time(modified), "ETag": etag})
    if objects:
        customized_response_dict["Contents"] = objects
        response_dict["body"] = ElementTree.tostring(rest)


@lru_cache(MAX_CACHED)  # objects uploaded together share their times
def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        parsed: datetime = parse_timestamp(text)
        return parsed


@cache
def _loader() -> Loader:
    """Returns the loader of service definitions. All sessions share it: each definition takes megabytes."""
    return botocore.loaders.create_loader()


class _FixedCredentials:
    """A botocore credential provider with fixed credentials."""

    def __init__(self, credentials: RefreshableCredentials) -> None:
        self._credentials = credentials

    def load_credentials(self) -> RefreshableCredentials:
        return self._credentials


@lru_cache(MAX_CACHED)
def _signature_by(keys: DayKeys) -> str:
    """Registers a botocore signer for these keys; returns its name. Signed URLs add ``-query`` to it."""

    def signature(_self: Any, text: str, request: Any) -> str:
        return hmac.new(keys.key(request.context["timestamp"]), text.encode(), hashlib.sha256).hexdigest()

    name = f"volstream-{uuid.uuid4().hex}"
    for suffix, kind in (("", S3SigV4Auth), ("-query", S3SigV4QueryAuth)):
        AUTH_TYPE_MAPS[name + suffix] = type(kind.__name__, (kind,), {"signature": signature})
    return name


def _assumed(access: Access) -> RefreshableCredentials:
    parameters = {"RoleArn": access.role_arn, "RoleSessionName": "volstream", "DurationSeconds": _SESSION_SECONDS}
    if access.external_id is not None:
        parameters["ExternalId"] = access.external_id
    sts = _new_client(_source(access), access, "sts")
    return _renewing(lambda: sts.assume_role(**parameters), "assume-role")


@_FILES.cached
def _session_of_keys(access: Access) -> RefreshableCredentials:
    sts = _new_client(_source(access), access, "sts")
    return _renewing(sts.get_session_token, "session-token")


def _renewing(request: Callable[[], dict[str, Any]], method: str) -> RefreshableCredentials:
    def metadata() -> dict[str, str]:
        keys = request()["Credentials"]
        return {
            "access_key": keys["AccessKeyId"],
            "secret_key": keys["SecretAccessKey"],
            "token": keys["SessionToken"],
            "expiry_time": keys["Expiration"].isoformat(),
        }

    return RefreshableCredentials.create_from_metadata(
        metadata(), metadata, method, advisory_timeout=_RENEW_SECONDS, mandatory_timeout=_RENEW_SECONDS // 2
    )
