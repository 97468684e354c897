"""The objects of an Alibaba Cloud OSS bucket. The only module that imports oss2.

What does not belong here: the source of keys (``cloud.aliyun``), the rules of object keys (``bucket``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any, BinaryIO, TypeVar

import oss2
import requests
import stamina
from oss2.credentials import Credentials
from oss2.exceptions import OssError
from urllib3.exceptions import HTTPError

from volstream.base.model.files import FileInfo, Finding
from volstream.base.model.selection import Selection
from volstream.errors import InvalidValueError, StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.cloud import aliyun
from volstream.files.cloud.access import Access, DayKeys
from volstream.files.storage.base import Details
from volstream.files.storage.bucket import BucketPlace, is_askable
from volstream.files.storage.outputs import BucketOutputs
from volstream.files.storage.ranged import Content, ranged

T = TypeVar("T")

#: For this long after the bucket was seen, a missing key counts as a missing object without checking the bucket.
_SEEN_SECONDS = 60.0

_CONNECTIONS = 64

#: Prefix of the headers with a user's metadata of an object.
_META = "x-oss-meta-"

_TIMEOUTS = (5, 60)

_ATTEMPTS, _MAX_WAIT_SECONDS = 6, 5.0

_REMEDIES = {
    "NoSuchBucket": "Create the bucket, or correct its name; until then its files are kept as they were.",
    "InvalidObjectState": "The object is archived: restore it, or exclude it with an ignore pattern.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
    "SecurityTokenExpired": "The credentials have expired: renew them at their source.",
}
_ALLOW = "Allow it: `volstream describe connection NAME` prints the policies."


class _NotThereError(StorageError):
    """The requested object is missing, while the bucket exists."""


class OssStore(BucketOutputs):
    """The objects of ``oss://bucket[/prefix]``.

    A pickled store has temporary keys instead of its credentials. If the keys are long-lived and there is no role, it has
    derived keys, which sign requests only to OSS in this region, today and tomorrow.

    Args:
        page: keys per listing request.
    """

    def __init__(self, location: str, access: Access, *, page: int = 1000) -> None:
        self._location = location
        self._place = BucketPlace.of(location)
        self._access = access
        self._page = page
        self._seen = float("-inf")

    def __reduce__(self) -> tuple[Any, ...]:
        place = self._region
        access = replace(self._access, region=place, role_arn=None, external_id=None, credentials="static", keys=None)
        if access.days is None:
            keys = aliyun.keys(self._access)
            if keys.token is None:
                access = replace(access, days=DayKeys.of(keys, "aliyun_v4", place, "oss", "aliyun_v4_request"))
            else:
                access = replace(access, keys=keys)
        return (OssStore, (self._location, access))

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """See :meth:`ObjectStore.list`. In key order."""
        return self.list_after(prefix, selection, "")

    def list_after(
        self, prefix: str, selection: Selection, after: str, *, deep: bool = True
    ) -> Iterator[FileInfo | Finding]:
        """See :meth:`KeyOrdered.list_after`."""
        if not selection.may_contain(prefix[:-1]) or (prefix and not selection.recursive):
            return
        for page in self._pages(prefix, after, deep=deep and selection.recursive):
            for obj in page.object_list:
                modified = datetime.fromtimestamp(obj.last_modified, UTC)
                entry = self._place.entry(obj.key, obj.size, modified, obj.etag, selection)
                if entry is not None:
                    yield entry

    def prefixes(self, prefix: str) -> Iterator[str]:
        """See :meth:`KeyOrdered.prefixes`."""
        for page in self._pages(prefix, "", deep=False):
            yield from map(self._place.path, page.prefix_list)

    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`."""
        key = self._place.key(path)
        answer = None
        if key is not None and is_askable(key):
            with suppress(_NotThereError):
                answer = self._ask(path, self._bucket.head_object, key)
        if answer is None:
            self._check_bucket()
            return None
        self._seen = time.monotonic()
        modified = datetime.fromtimestamp(answer.last_modified, UTC)
        return self._place.file(path, answer.content_length, modified, answer.etag, answer.content_type)

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`. Reading to the end takes one request."""

        def fetch(start: int) -> Content:
            got = self._of_object(path, self._bucket.get_object, (start, None) if start else None)
            # The SDK's reader would decompress objects with a Content-Encoding.
            return Content(start + got.content_length, got.headers["etag"], got.resp.response.raw)

        return ranged(self._place.name(path), fetch, lambda: _errors(self._place.name(path)))

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        headers = {
            name.lower(): value for name, value in self._of_object(path, self._bucket.head_object).headers.items()
        }
        metadata = {name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)}
        return Details(metadata, headers.get("x-oss-storage-class", "Standard"), headers.get("x-oss-version-id"))

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`."""
        rules: dict[str, str] = self._of_object(path, self._bucket.get_object_tagging).tag_set.tagging_rule
        return rules

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :meth:`HasDetails.read_range`."""
        reply = self._of_object(path, self._bucket.get_object, (start, start + length - 1))
        with _errors(self._place.name(path)):
            content: bytes = reply.resp.response.raw.read()
        return content

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`."""
        with _errors(self._place.name(path)):
            url: str = self._bucket.sign_url("GET", self._place.key(path), seconds, slash_safe=True)
        return url

    def write(self, path: str, content: bytes) -> None:
        """See :meth:`Writable.write`."""
        self._ask(path, self._bucket.put_object, self._place.key(path), content)

    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""
        self._ask(path, self._bucket.delete_object, self._place.key(path))

    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        headers = _typed(content_type)
        etag: str = self._ask(path, self._bucket.put_object, self._place.key(path), content, headers=headers).etag
        return etag

    def _stored(self, path: str) -> tuple[int, str, str | None]:
        found = self._of_object(path, self._bucket.head_object)
        return found.content_length, found.etag, found.content_type

    def _copy(self, path: str, to: str, etag: str) -> str:
        source = (self._place.bucket, self._place.key(path))
        self._ask(to, self._bucket.copy_object, *source, self._place.key(to))
        return etag  # the MD5 of the content, like the copy's, which the SDK does not read

    def _begin_parts(self, path: str, content_type: str | None) -> str:
        begin, headers = self._bucket.init_multipart_upload, _typed(content_type)
        upload: str = self._ask(path, begin, self._place.key(path), headers=headers).upload_id
        return upload

    def _put_part(self, path: str, upload: str, number: int, part: bytes) -> str:
        etag: str = self._ask(path, self._bucket.upload_part, self._place.key(path), upload, number, part).etag
        return etag

    def _copy_part(self, path: str, to: str, upload: str, number: int, extent: tuple[int, int]) -> str:
        copy, source = self._bucket.upload_part_copy, (self._place.bucket, self._place.key(path))
        etag: str = self._ask(to, copy, *source, extent, self._place.key(to), upload, number).etag
        return etag

    def _complete_parts(self, path: str, upload: str, etags: Sequence[tuple[int, str]]) -> str:
        complete, parts = self._bucket.complete_multipart_upload, [oss2.models.PartInfo(*part) for part in etags]
        etag: str = self._ask(path, complete, self._place.key(path), upload, parts).etag
        return etag

    def _uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        root, marker, upload_marker = self._place.root, "", ""
        while True:
            page = self._ask(
                prefix,
                self._bucket.list_multipart_uploads,
                prefix=root + prefix,
                key_marker=marker,
                upload_id_marker=upload_marker,
            )
            for upload in page.upload_list:
                yield upload.key.removeprefix(root), upload.upload_id
            if not page.is_truncated:
                return
            marker, upload_marker = page.next_key_marker, page.next_upload_id_marker

    def _abort_parts(self, path: str, upload: str) -> None:
        self._ask(path, self._bucket.abort_multipart_upload, self._place.key(path), upload)

    def url(self, path: str) -> str:
        """See :meth:`ObjectStore.url`."""
        return self._place.url(path)

    @cached_property
    def _bucket(self) -> Any:
        place = self._region
        endpoint = self._access.endpoint or f"https://oss-{place}.aliyuncs.com"
        auth = _DayAuth(self._access.days) if self._access.days else oss2.ProviderAuthV4(_Source(self._access))
        with _errors(self._place.name("")):
            return oss2.Bucket(
                auth,
                endpoint,
                self._place.bucket,
                session=oss2.Session(_CONNECTIONS),
                connect_timeout=_TIMEOUTS,
                enable_crc=False,
                region=place,
                is_verify_object_strict=False,
            )

    @property
    def _region(self) -> str:
        place = aliyun.region(self._access)
        if place is None:
            raise InvalidValueError(
                f"The region of {self._location} is unknown.",
                "Use a connection with --region, such as cn-hangzhou, or set ALIBABA_CLOUD_REGION_ID.",
            )
        return place

    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[Any]:
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
            yield page
            more, token = page.is_truncated, page.next_continuation_token

    def _of_object(self, path: str, call: Callable[..., Any], *more: Any) -> Any:
        """Requests something about an object; returns the response. Raises FileNotFoundError."""
        key = self._place.key(path)
        if key is None or not is_askable(key):
            raise FileNotFoundError(path)
        try:
            return self._ask(path, call, key, *more)
        except _NotThereError as exc:
            raise FileNotFoundError(path) from exc

    def _check_bucket(self) -> None:
        """Raises if the bucket does not exist: HEAD may not show whether the bucket or the object is missing."""
        if time.monotonic() - self._seen > _SEEN_SECONDS:
            self._ask("", self._bucket.list_objects_v2, self._place.root, max_keys=1)
            self._seen = time.monotonic()

    def _ask(self, path: str, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Calls the SDK, retrying if that may help, because the SDK does not retry single requests."""
        with _errors(self._place.name(path)):
            for attempt in stamina.retry_context(_may_pass, attempts=_ATTEMPTS, wait_max=_MAX_WAIT_SECONDS):
                with attempt:
                    return call(*arguments, **options)
        raise AssertionError("the last attempt raises")


class _Source:
    """Provides keys to the SDK before each request."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def get_credentials(self) -> Credentials:
        keys = aliyun.keys(self._access)
        return Credentials(keys.id, keys.secret, keys.token or "")


class _DayAuth(oss2.ProviderAuthV4):  # type: ignore[misc]  # oss2 has no types
    def __init__(self, keys: DayKeys) -> None:
        super().__init__(oss2.credentials.StaticCredentialsProvider(keys.id, "unknown"))
        self._days = keys

    def _ProviderAuthV4__get_signing_key(self, _request: Any, _credentials: Any, moment: str) -> bytes:  # noqa: N802  # the SDK's
        return self._days.key(moment)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Maps exceptions of oss2 and of reading responses."""
    try:
        yield
    except OssError as exc:
        kind = StorageError
        if aliyun.is_denied(exc.status, exc.code):
            kind = StorageDeniedError
        elif exc.status in (429, 503) or "Throttling" in exc.code or exc.code == "QpsLimitExceeded":
            kind = StorageThrottledError
        elif exc.status == 404 and exc.code != "NoSuchBucket":
            kind = _NotThereError
        reason = exc.message or (exc.body if exc.status < 0 else _phrase(exc.status))
        remedy = _REMEDIES.get(exc.code, _ALLOW if kind is StorageDeniedError else "")
        # Without the cause: a refusal repeats the signed text, including the token of temporary keys.
        raise kind(f"{what}: {reason} ({exc.code or exc.status}).", remedy) from None
    except (requests.RequestException, HTTPError) as exc:
        raise StorageError(f"{what}: {exc}.") from exc


def _phrase(status: int) -> str:
    """Returns the name of an HTTP status, because a response to HEAD has no text; proxies use their own statuses."""
    return HTTPStatus(status).phrase if status in {*HTTPStatus} else "an answer without a reason"


def _may_pass(error: Exception) -> bool:
    """True if a retry can help: broken connections, throttling, and service errors."""
    if not isinstance(error, OssError):
        return False
    status: int = error.status
    broken = status == oss2.exceptions.OSS_REQUEST_ERROR_STATUS
    return broken or status == 429 or status >= 500 or error.code == "RequestTimeout"


def _typed(content_type: str | None) -> Mapping[str, str]:
    return {} if content_type is None else {"Content-Type": content_type}
