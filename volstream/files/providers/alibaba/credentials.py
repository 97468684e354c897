"""Credentials for Alibaba Cloud: currently valid keys of an :class:`Access`, those for tasks, and the region.

Signing is done by the store or queue, because each SDK does it in its own way.
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

#: Keys are renewed when they have this long left, so that a task that just received them can finish with them.
_RENEW = timedelta(seconds=1800)

_TIMEOUTS = (5, 30)

_OWN_HOST = re.compile(r"(?:.+\.)?oss-([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com")

_lock = threading.RLock()
_assumed: dict[Access, Keys] = {}
_FILES = KeyFiles()


def keys(access: Access) -> Keys:
    """Returns currently valid keys: the role's, if there is one, renewed before they expire. Call again for each request.

    Raises:
        StorageError: temporary problems; StorageDeniedError: there are no credentials, or a role refuses.
    """
    if access.role_arn is None:
        return _source_keys(access)
    with _lock:
        held = _assumed.get(access)
        if held is None or held.expires is None or held.expires - datetime.now(UTC) < _RENEW:
            held = _assumed[access] = _assume(access, _source_keys(access))
        return held


def for_tasks(access: Access, _location: str) -> Access:
    """Returns the access for a task: with temporary keys or, if there are only long-lived ones and no role, with derived keys
    that sign requests only to OSS in this region, today and tomorrow."""
    place = required_region(access)
    given = replace(access, region=place, role_arn=None, external_id=None, credentials="static", keys=None)
    if access.days is not None:
        return given
    own = keys(access)
    if own.token is not None:
        return replace(given, keys=own)
    return replace(given, days=DayKeys.of(own, "aliyun_v4", place, "oss", "aliyun_v4_request"))


def required_region(access: Access) -> str:
    """Returns the region. Raises InvalidValueError if nothing determines it."""
    place = region(access)
    if place is None:
        raise InvalidValueError(
            "The region of the buckets is unknown.",
            "Use a connection with --region, such as cn-hangzhou, or set ALIBABA_CLOUD_REGION_ID.",
        )
    return place


def region(access: Access) -> str | None:
    """Returns the region, such as ``cn-hangzhou``, from the access or its endpoint, else from the environment."""
    own = _OWN_HOST.fullmatch(urlsplit(access.endpoint or "").hostname or "")
    named = access.region or (own[1] if own else None)
    return (named or config.environment("ALIBABA_CLOUD_REGION_ID", "OSS_REGION") or "").removeprefix("oss-") or None


def is_own(endpoint: str | None) -> bool:
    """True if ``endpoint`` is Alibaba's; its other services are then at addresses of their own."""
    return endpoint is None or (urlsplit(endpoint).hostname or "").endswith(".aliyuncs.com")


def is_denied(status: int, code: str) -> bool:
    """True if waiting will not change an answer with this HTTP status and code."""
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

    _FILES.look(os.path.join(auth_constant.HOME, ".aliyun", "config.json"))
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
    """Returns a provider that renews its keys itself; an empty profile: the default chain of profiles, accounts and instance."""
    from alibabacloud_credentials.provider import CLIProfileCredentialsProvider, DefaultCredentialsProvider

    # It also writes what it raises to standard error, with tracebacks.
    logging.getLogger("credentials").disabled = True
    return CLIProfileCredentialsProvider(profile_name=profile) if profile else DefaultCredentialsProvider()


def _assume(access: Access, source: Keys) -> Keys:
    what = f"The role {access.role_arn} cannot be assumed"
    asked = {"RoleArn": access.role_arn or "", "RoleSessionName": "volstream", "DurationSeconds": str(_SESSION_SECONDS)}
    if access.external_id is not None:
        asked["ExternalId"] = access.external_id
    try:
        answer = requests.post(_sts(access), data=signed("AssumeRole", asked, source), timeout=_TIMEOUTS)
        said = answer.json()
    except (requests.RequestException, ValueError) as exc:
        raise StorageError(f"{what}: {type(exc).__name__} at {_sts(access)}.") from exc
    if not answer.ok:
        # A missing role gives 404, an invalid role name 400; both are permanent.
        passes = answer.status_code >= 500 or said.get("Code", "").startswith("Throttling")
        raise (StorageError if passes else StorageDeniedError)(
            f"{what}: {said.get('Message')} ({said.get('Code')}).",
            "Compare the role's trust policy with what `volstream describe connection NAME` prints.",
        )
    credentials = said["Credentials"]
    ends = datetime.strptime(credentials["Expiration"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return Keys(credentials["AccessKeyId"], credentials["AccessKeySecret"], credentials["SecurityToken"], ends)


def _sts(access: Access) -> str:
    if access.endpoint is not None and not is_own(access.endpoint):
        return access.endpoint
    place = region(access)
    return f"https://sts.{place}.aliyuncs.com" if place else "https://sts.aliyuncs.com"


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
