"""The objects of an Alibaba Cloud OSS bucket. The only module that imports oss2.

Not here: code shared by all providers' buckets (``storage.buckets``), the source of keys (``credentials``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any, TypeVar

import oss2
import requests
from oss2.credentials import Credentials
from oss2.exceptions import OssError
from urllib3.exceptions import HTTPError

from volstream.base.threads import attempts_at
from volstream.errors import StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.providers.access import Access, DayKeys
from volstream.files.providers.alibaba import credentials
from volstream.files.providers.base import ALLOW, NO_BUCKET, UNREADABLE, unreadable
from volstream.files.storage.base import Details
from volstream.files.storage.buckets import Content, Found, Listed, PartedStore

T = TypeVar("T")

_CONNECTIONS = 64

#: Prefix of the headers with an object's user metadata.
_META = "x-oss-meta-"

_TIMEOUTS = (5, 60)

_ATTEMPTS, _MAX_WAIT_SECONDS = 6, 5.0

_REMEDIES = {
    "NoSuchBucket": NO_BUCKET,
    "InvalidObjectState": "The object is archived: restore it, or exclude it with an ignore pattern.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
    "SecurityTokenExpired": "The credentials have expired: renew them at their source.",
}


class _MissingObjectError(StorageError):
    """The requested object is missing, while the bucket exists."""


class OssStore(PartedStore):
    """The objects of ``oss://bucket[/prefix]``."""

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        headers = {name.lower(): value for name, value in self._request_object(path, self._bucket.head_object).headers.items()}
        metadata = {name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)}
        return Details(metadata, headers.get("x-oss-storage-class", "Standard"), headers.get("x-oss-version-id"))

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`."""
        rules: dict[str, str] = self._request_object(path, self._bucket.get_object_tagging).tag_set.tagging_rule
        return rules

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`."""
        with self._errors(path):
            return str(self._bucket.sign_url("GET", self._place.key(path), seconds, slash_safe=True))

    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""
        self._ask(path, self._bucket.delete_object, self._place.key(path))

    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        headers = _typed(content_type)
        return str(self._ask(path, self._bucket.put_object, self._place.key(path), content, headers=headers).etag)

    def _copy_whole(self, path: str, to: str, etag: str, replaces: bool) -> str:
        source = (self._place.bucket, self._place.key(path))
        self._ask(to, self._bucket.copy_object, *source, self._place.key(to), headers=_if_absent(replaces))
        return etag  # the copy's is the same MD5 of the content, and the SDK does not read it

    def _begin_parts(self, path: str, content_type: str | None) -> str:
        begin, headers = self._bucket.init_multipart_upload, _typed(content_type)
        return str(self._ask(path, begin, self._place.key(path), headers=headers).upload_id)

    def _put_part(self, path: str, upload: str, number: int, part: bytes) -> str:
        return str(self._ask(path, self._bucket.upload_part, self._place.key(path), upload, number, part).etag)

    def _copy_part(self, path: str, to: str, upload: str, number: int, extent: tuple[int, int]) -> str:
        copy, source = self._bucket.upload_part_copy, (self._place.bucket, self._place.key(path))
        return str(self._ask(to, copy, *source, extent, self._place.key(to), upload, number).etag)

    def _complete_parts(self, path: str, upload: str, etags: Sequence[tuple[int, str]], replaces: bool) -> str:
        complete, parts = self._bucket.complete_multipart_upload, [oss2.models.PartInfo(*part) for part in etags]
        return str(self._ask(path, complete, self._place.key(path), upload, parts, headers=_if_absent(replaces)).etag)

    def _uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        root = self._place.root
        with self._errors(prefix):
            for upload in oss2.MultipartUploadIterator(self._bucket, prefix=root + prefix, max_retries=_ATTEMPTS):
                yield upload.key.removeprefix(root), upload.upload_id

    def _abort_parts(self, path: str, upload: str) -> None:
        self._ask(path, self._bucket.abort_multipart_upload, self._place.key(path), upload)

    @cached_property
    def _bucket(self) -> Any:
        region = credentials.required_region(self._access)
        endpoint = self._access.endpoint or f"https://oss-{region}.aliyuncs.com"
        auth = _DayAuth(self._access.days) if self._access.days else oss2.ProviderAuthV4(_Source(self._access))
        with self._errors(""):
            return oss2.Bucket(
                auth,
                endpoint,
                self._place.bucket,
                session=oss2.Session(_CONNECTIONS),
                connect_timeout=_TIMEOUTS,
                enable_crc=False,
                region=region,
                is_verify_object_strict=False,
            )

    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[tuple[Iterable[Listed], Iterable[str]]]:
        token, more = "", True
        start = self._place.root + after if after else ""
        while more:
            page = self._ask(
                prefix,
                self._bucket.list_objects_v2,
                self._place.root + prefix,
                "" if deep else "/",
                token,
                start,
                max_keys=self._page,
            )
            self._seen = time.monotonic()
            listed = ((obj.key, obj.size, datetime.fromtimestamp(obj.last_modified, UTC), obj.etag) for obj in page.object_list)
            yield listed, page.prefix_list
            more, token = page.is_truncated, page.next_continuation_token

    def _check_bucket(self) -> None:
        self._ask("", self._bucket.list_objects_v2, self._place.root, max_keys=1)

    def _head(self, path: str) -> Found:
        answer = self._request_object(path, self._bucket.head_object)
        modified = datetime.fromtimestamp(answer.last_modified, UTC)
        return Found(answer.content_length, modified, answer.headers["etag"].strip('"'), answer.content_type)

    def _fetch(self, path: str, start: int, last: int | None = None) -> Content:
        byte_range = None if start == 0 and last is None else (start, last)
        response = self._request_object(path, self._bucket.get_object, byte_range)
        # The SDK's reader would decompress objects with a Content-Encoding.
        return Content(start + response.content_length, response.headers["etag"], response.resp.response.raw)

    def _request_object(self, path: str, call: Callable[..., Any], *more: Any) -> Any:
        """Sends a request about an object and returns the response. Raises FileNotFoundError."""
        try:
            return self._ask(path, call, self._key(path), *more)
        except _MissingObjectError as exc:
            raise FileNotFoundError(path) from exc

    def _errors(self, path: str) -> AbstractContextManager[None]:
        return _errors(self._place.name(path))

    def _ask(self, path: str, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Calls the SDK. Retries temporary errors, because the SDK does not retry single requests."""
        with self._errors(path):
            for attempt in attempts_at(_is_temporary, attempts=_ATTEMPTS, wait_max=_MAX_WAIT_SECONDS):
                with attempt:
                    return call(*arguments, **options)
        raise AssertionError("the last attempt raises")


class _Source:
    """Provides keys to the SDK before each request."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def get_credentials(self) -> Credentials:
        keys = credentials.keys(self._access)
        return Credentials(keys.id, keys.secret, keys.token or "")


class _DayAuth(oss2.ProviderAuthV4):  # type: ignore[misc]  # oss2 has no types
    def __init__(self, keys: DayKeys) -> None:
        super().__init__(oss2.credentials.StaticCredentialsProvider(keys.id, "unknown"))
        self._days = keys

    def _ProviderAuthV4__get_signing_key(self, _request: Any, _credentials: Any, moment: str) -> bytes:  # noqa: N802  # the SDK's
        return self._days.key(moment)


def open_store(location: str, access: Access) -> OssStore:
    """Returns the store of a bucket or of a prefix."""
    return OssStore(location, access)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Maps exceptions of oss2 and errors from parsing responses."""
    try:
        yield
    except OssError as exc:
        kind = StorageError
        if credentials.is_denied(exc.status, exc.code):
            kind = StorageDeniedError
        elif exc.status in (429, 503) or "Throttling" in exc.code or exc.code == "QpsLimitExceeded":
            kind = StorageThrottledError
        elif exc.status == 404 and exc.code != "NoSuchBucket":
            kind = _MissingObjectError
        reason = exc.message or (exc.body if exc.status < 0 else _phrase(exc.status))
        remedy = _REMEDIES.get(exc.code, ALLOW if kind is StorageDeniedError else "")
        # Without the cause: a refusal repeats the signed text, including the token of temporary keys.
        raise kind(f"{what}: {reason} ({exc.code or exc.status}).", remedy) from None
    except (requests.RequestException, HTTPError) as exc:
        raise StorageError(f"{what}: {exc}.") from exc
    except UNREADABLE as exc:
        raise StorageError(unreadable(what, exc)) from exc


def _if_absent(replaces: bool) -> Mapping[str, str]:
    """Returns headers that make a request fail if the key is taken. Empty if it may replace an object."""
    return {} if replaces else {"x-oss-forbid-overwrite": "true"}


def _phrase(status: int) -> str:
    """Returns the name of an HTTP status: responses to HEAD have no text. Proxies use their own statuses."""
    return HTTPStatus(status).phrase if status in {*HTTPStatus} else "an answer without a reason"


def _is_temporary(error: Exception) -> bool:
    """True if a retry may help: for broken connections, throttling, and service errors."""
    if not isinstance(error, OssError):
        return False
    status: int = error.status
    broken = status == oss2.exceptions.OSS_REQUEST_ERROR_STATUS
    return broken or status == 429 or status >= 500 or error.code == "RequestTimeout"


def _typed(content_type: str | None) -> Mapping[str, str]:
    return {} if content_type is None else {"Content-Type": content_type}
