"""Credentials for Alibaba Cloud: valid keys for an :class:`Access`, keys for tasks, and the region.

The store and the queue sign, because each SDK does it differently.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import requests

from volstream.base import config
from volstream.errors import InvalidValueError, StorageDeniedError, StorageError
from volstream.files.providers.access import Access, DayKeys, KeyFiles, Keys

if TYPE_CHECKING:
    from alibabacloud_credentials_api import ICredentialsProvider

_SESSION_SECONDS = 3600

#: Keys with less time left than this are renewed, so that a task that has just received keys can finish.
_RENEW = timedelta(seconds=1800)

_TIMEOUTS = (5, 30)

_OWN_HOST = re.compile(r"(?:.+\.)?oss-([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com")

_lock = threading.RLock()
_assumed: dict[Access, Keys] = {}
_FILES = KeyFiles()


def keys(access: Access) -> Keys:
    """Returns valid keys: those of the role, if any, renewed before they expire. Call it for each request.

    Raises:
        StorageError: temporary problems.
        StorageDeniedError: there are no credentials, or the role cannot be assumed.
    """
    if access.role_arn is None:
        return _source_keys(access)
    with _lock:
        role_keys = _assumed.get(access)
        if role_keys is None or role_keys.expires is None or role_keys.expires - datetime.now(UTC) < _RENEW:
            role_keys = _assumed[access] = _assume(access, _source_keys(access))
        return role_keys


def for_tasks(access: Access, _location: str) -> Access:
    """Returns the access for a task, with temporary keys.

    With only long-lived keys and no role, uses derived keys that sign only requests to OSS in this region,
    today and tomorrow.
    """
    region_ = required_region(access)
    task_access = replace(access, region=region_, role_arn=None, external_id=None, credentials="static", keys=None)
    if access.days is not None:
        return task_access
    valid_keys = keys(access)
    if valid_keys.token is not None:
        return replace(task_access, keys=valid_keys)
    return replace(task_access, days=DayKeys.of(valid_keys, "aliyun_v4", region_, "oss", "aliyun_v4_request"))


def required_region(access: Access) -> str:
    """Returns the region. Raises InvalidValueError if nothing determines it."""
    name = region(access)
    if name is None:
        raise InvalidValueError(
            "The region of the buckets is unknown.",
            "Use a connection with --region, such as cn-hangzhou, or set ALIBABA_CLOUD_REGION_ID.",
        )
    return name


def region(access: Access) -> str | None:
    """Returns the region, such as ``cn-hangzhou``: of the access, its endpoint, or the environment."""
    match = _OWN_HOST.fullmatch(urlsplit(access.endpoint or "").hostname or "")
    named = access.region or (match[1] if match else None)
    return (named or config.environment("ALIBABA_CLOUD_REGION_ID", "OSS_REGION") or "").removeprefix("oss-") or None


def is_own(endpoint: str | None) -> bool:
    """True if ``endpoint`` is Alibaba's. Its other services then have separate addresses."""
    return endpoint is None or (urlsplit(endpoint).hostname or "").endswith(".aliyuncs.com")


def is_denied(status: int, code: str) -> bool:
    """True if a response with this HTTP status and code is a permanent refusal."""
    expired = code in ("SecurityTokenExpired", "InvalidSecurityToken.Expired")
    return status in (401, 403) and not expired and not code.startswith("Throttling")


def _source_keys(access: Access) -> Keys:
    """Returns the keys of the connection's credentials, before any role is assumed."""
    if access.credentials == "static":
        return access.static_keys
    profile = access.credentials.partition(":")[2]
    if not profile:
        id_ = config.environment("ALIBABA_CLOUD_ACCESS_KEY_ID", "OSS_ACCESS_KEY_ID")
        secret = config.environment("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "OSS_ACCESS_KEY_SECRET")
        if id_ and secret:
            token = config.environment("ALIBABA_CLOUD_SECURITY_TOKEN", "OSS_SESSION_TOKEN")
            return Keys(id_, secret, token)
    from alibabacloud_credentials.exceptions import CredentialException
    from alibabacloud_credentials.utils import auth_constant
    from Tea.exceptions import RetryError

    _FILES.check(os.path.join(auth_constant.HOME, ".aliyun", "config.json"))
    try:
        credentials = _provider(profile).get_credentials()
    except RetryError as exc:
        raise StorageError(f"The credentials of Alibaba Cloud cannot be fetched: {exc}.") from exc
    except (CredentialException, OSError, ValueError, KeyError) as exc:
        where = f"the profile {profile!r} of ~/.aliyun/config.json" if profile else "the environment or this machine"
        raise StorageDeniedError(
            f"There are no Alibaba Cloud credentials in {where}.",
            "Set ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET, or correct the connection.",
        ) from exc
    return Keys(credentials.get_access_key_id(), credentials.get_access_key_secret(), credentials.get_security_token() or None)


@_FILES.cached
def _provider(profile: str) -> ICredentialsProvider:
    """Returns a provider that renews its keys itself. Without a profile, uses the SDK's default chain."""
    from alibabacloud_credentials.provider import CLIProfileCredentialsProvider, DefaultCredentialsProvider

    # The SDK also writes its exceptions to standard error, with tracebacks.
    logging.getLogger("credentials").disabled = True
    return CLIProfileCredentialsProvider(profile_name=profile) if profile else DefaultCredentialsProvider()


def _assume(access: Access, source: Keys) -> Keys:
    what = f"The role {access.role_arn} cannot be assumed"
    parameters = {"RoleArn": access.role_arn or "", "RoleSessionName": "volstream", "DurationSeconds": str(_SESSION_SECONDS)}
    if access.external_id is not None:
        parameters["ExternalId"] = access.external_id
    try:
        response = requests.post(_sts(access), data=signed("AssumeRole", parameters, source), timeout=_TIMEOUTS)
        reply = response.json()
    except (requests.RequestException, ValueError) as exc:
        raise StorageError(f"{what}: {type(exc).__name__} at {_sts(access)}.") from exc
    if not response.ok:
        # A missing role gives 404, an invalid role name 400; both are permanent.
        is_temporary = response.status_code >= 500 or reply.get("Code", "").startswith("Throttling")
        raise (StorageError if is_temporary else StorageDeniedError)(
            f"{what}: {reply.get('Message')} ({reply.get('Code')}).",
            "Compare the role's trust policy with what `volstream describe connection NAME` prints.",
        )
    credentials = reply["Credentials"]
    expires = datetime.strptime(credentials["Expiration"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return Keys(credentials["AccessKeyId"], credentials["AccessKeySecret"], credentials["SecurityToken"], expires)


def _sts(access: Access) -> str:
    if access.endpoint is not None and not is_own(access.endpoint):
        return access.endpoint
    region_ = region(access)
    return f"https://sts.{region_}.aliyuncs.com" if region_ else "https://sts.aliyuncs.com"


def signed(action: str, parameters: Mapping[str, str], source: Keys) -> dict[str, Any]:
    """Returns the signed form of a request to STS (Alibaba's RPC signature, version 1.0)."""
    form = {
        **parameters,
        "Action": action,
        "Version": "2015-04-01",
        "Format": "JSON",
        "AccessKeyId": source.id,
        "SignatureMethod": "HMAC-SHA1",
        "SignatureVersion": "1.0",
        "SignatureNonce": uuid.uuid4().hex,
        "Timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if source.token is not None:
        form["SecurityToken"] = source.token
    return {**form, "Signature": signature(form, source.secret)}


def signature(form: Mapping[str, str], secret: str) -> str:
    """Returns the signature of a POST with these parameters."""
    pairs = "&".join(f"{quote(key, safe='')}={quote(form[key], safe='')}" for key in sorted(form))
    text = f"POST&%2F&{quote(pairs, safe='')}"
    return base64.b64encode(hmac.digest(f"{secret}&".encode(), text.encode(), hashlib.sha1)).decode()
