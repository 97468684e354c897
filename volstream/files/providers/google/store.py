"""The objects of a bucket of Google Cloud Storage.

Not here: code shared by all providers' buckets (``storage.buckets``); credentials and error mapping
(``credentials``).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import quote

from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.exceptions import TransportError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.exceptions import from_http_response
from google.cloud.storage import Blob, Client
from google.cloud.storage.retry import DEFAULT_RETRY
from requests import Response
from requests.adapters import HTTPAdapter

from volstream.errors import InvalidValueError, StorageDeniedError, StorageError
from volstream.files.providers.access import Access
from volstream.files.providers.google import credentials
from volstream.files.storage.base import Details
from volstream.files.storage.buckets import PART_BYTES, BucketStore, Content, Found, Listed

T = TypeVar("T")

#: 32 threads each fetch contents and check versions.
_CONNECTIONS = 64

_TIMEOUTS = (5, 60)

_RETRY = DEFAULT_RETRY.with_timeout(40.0)

#: Options of every request.
_OPTIONS: Mapping[str, Any] = {"timeout": _TIMEOUTS, "retry": _RETRY}

_ENDPOINT = "https://storage.googleapis.com"

_LISTED = "items(name,size,timeCreated,generation,md5Hash),prefixes,nextPageToken"

#: The type of objects uploaded without one.
_UNKNOWN = "application/octet-stream"


class GcsStore(BucketStore):
    """The objects of ``gs://bucket[/prefix]``.

    A file's version id is its object's generation. Its etag is the MD5 of the content, which copies share. A
    composite object has no MD5; its etag is the generation.
    """

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        blob = self._request_object(path, _loaded)
        return Details(blob.metadata or {}, blob.storage_class, str(blob.generation))

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`. Google's objects have no tags."""
        self._request_object(path, _loaded)
        return {}

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`. The service account signs, with its key or by a request."""
        with self._errors(path):
            signer = credentials.signer(self._access)
            if not signer:
                raise InvalidValueError(
                    f"{self._place.name(path)}: only a service account can sign URLs.",
                    "Use a connection with --credentials profile:/path/of/key.json, or with the account as --role-arn.",
                )
            try:
                url = self._blob(path).generate_signed_url(
                    timedelta(seconds=seconds), api_access_endpoint=self._endpoint, version="v4", **signer
                )
            except TransportError as exc:
                if "Error calling" not in str(exc):
                    raise
                raise StorageDeniedError(
                    f"{self._place.name(path)}: its URL cannot be signed. {exc}",
                    "Allow the service account roles/iam.serviceAccountTokenCreator on itself.",
                ) from exc
        return str(url)

    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""
        with self._errors(path), suppress(NotFound):
            self._blob(path).delete(**_OPTIONS)

    def _remove_version(self, path: str, found: Found) -> None:
        with self._errors(path), suppress(NotFound, PreconditionFailed):
            self._blob(path).delete(if_generation_match=found.version_id, **_OPTIONS)

    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        blob = self._blob(path)
        with self._errors(path):
            blob.upload_from_string(content, content_type or _UNKNOWN, **_OPTIONS)
        return _etag(blob)

    def _put_large(self, path: str, content_type: str | None, parts: Iterator[bytes]) -> str:
        blob = self._blob(path)
        with self._errors(path):
            with blob.open("wb", chunk_size=PART_BYTES, content_type=content_type or _UNKNOWN, **_OPTIONS) as upload:
                for part in parts:
                    upload.write(part)
            blob.reload(**_OPTIONS)
        return _etag(blob)

    def _copy(self, path: str, to: str, found: Found, replaces: bool) -> str:
        blob = self._blob(to)
        options = {"if_source_generation_match": found.version_id, **({} if replaces else {"if_generation_match": 0}), **_OPTIONS}

        def rewrite(source: Blob) -> None:
            token, _, _ = blob.rewrite(source, **options)
            while token is not None:
                token, _, _ = blob.rewrite(source, token, **options)

        self._request_object(path, rewrite)
        return _etag(blob)

    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[tuple[Iterable[Listed], Iterable[str]]]:
        start = self._place.root + after if after else None
        with self._errors(prefix):
            for page in self._list(
                self._place.root + prefix,
                delimiter=None if deep else "/",
                start_offset=start,  # inclusive
                page_size=self._page,
                fields=_LISTED,
            ):
                self._seen = time.monotonic()
                listed = (
                    (blob.name, blob.size, blob.time_created, _etag(blob), str(blob.generation))
                    for blob in page
                    if blob.name != start
                )
                yield listed, page.prefixes

    def _check_bucket(self) -> None:
        with self._errors(""):
            next(self._list(self._place.root, max_results=1))

    def _head(self, path: str) -> Found:
        self._key(path)
        with self._errors(path):
            try:
                blob = _loaded(self._blob(path))
            except NotFound:
                raise FileNotFoundError(path) from None
        if blob.size is None or blob.time_created is None or blob.generation is None:
            raise StorageError(f"{self._place.name(path)}: the response is incomplete.", "It will be retried.")
        return Found(blob.size, blob.time_created, _etag(blob), blob.content_type, str(blob.generation))

    def _fetch(self, path: str, start: int, last: int | None = None) -> Content:
        key = quote(self._key(path), safe="")
        headers = {"Accept-Encoding": "gzip"}  # else Google decompresses objects with a Content-Encoding
        if start or last is not None:
            headers["Range"] = f"bytes={start}-{'' if last is None else last}"
        url = f"{self._endpoint}/download/storage/v1/b/{self._place.bucket}/o/{key}?alt=media"

        def ask(_: Blob) -> Response:
            response = client(self._access)._http.get(url, headers=headers, stream=True, timeout=_TIMEOUTS)
            if not response.ok:
                raise from_http_response(response)
            return response

        response = self._request_object(path, _RETRY(ask))
        return Content(start + int(response.headers["Content-Length"]), response.headers["x-goog-generation"], response.raw)

    def _request_object(self, path: str, call: Callable[[Blob], T]) -> T:
        """Sends a request about an object and returns the response. Raises FileNotFoundError."""
        self._key(path)
        with self._errors(path):
            try:
                return call(self._blob(path))
            except NotFound as exc:
                self._check_bucket()
                raise FileNotFoundError(path) from exc

    def _list(self, prefix: str, **more: Any) -> Iterator[Any]:
        pages: Iterator[Any] = client(self._access).list_blobs(self._place.bucket, prefix=prefix, **more, **_OPTIONS).pages
        return pages

    def _blob(self, path: str) -> Blob:
        return client(self._access).bucket(self._place.bucket).blob(self._key(path))

    @property
    def _endpoint(self) -> str:
        return self._access.endpoint or _ENDPOINT

    def _errors(self, path: str) -> AbstractContextManager[None]:
        return credentials.errors(self._place.name(path))


def open_store(location: str, access: Access) -> GcsStore:
    """Returns the store of a bucket or of a prefix."""
    return GcsStore(location, access)


def client(access: Access) -> Client:
    """Returns the client of an access. Threads share it.

    Raises:
        The vendor's exceptions: call it inside :func:`credentials.errors`.
    """
    credentials.check_key_file(access)
    return _client(access)


@credentials.FILES.cached
def _client(access: Access) -> Client:
    credentials_ = credentials.credentials(access)
    session = AuthorizedSession(credentials_)
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    # Only creating buckets needs a project. With an endpoint, the SDK ignores the environment.
    client_ = Client("-", credentials_, session, client_options={"api_endpoint": access.endpoint or _ENDPOINT})
    # Otherwise the SDK requests each bucket's metadata in a thread, even without permission.
    client_._bucket_metadata_cache = None
    return client_


def _loaded(blob: Blob) -> Blob:
    blob.reload(**_OPTIONS)
    return blob


def _etag(blob: Blob) -> str:
    return base64.b64decode(blob.md5_hash).hex() if blob.md5_hash else str(blob.generation)
