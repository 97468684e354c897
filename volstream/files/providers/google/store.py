"""The objects of a bucket of Google Cloud Storage.

What does not belong here: what all providers' buckets have in common (``storage.buckets``); credentials and the meaning of
errors (``credentials``).
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

#: Contents are fetched and versions checked in 32 threads each.
_CONNECTIONS = 64

_TIMEOUTS = (5, 60)

_RETRY = DEFAULT_RETRY.with_timeout(40.0)

#: Of each request: all calls of the SDK take them.
_OPTIONS: Mapping[str, Any] = {"timeout": _TIMEOUTS, "retry": _RETRY}

_ENDPOINT = "https://storage.googleapis.com"

_LISTED = "items(name,size,timeCreated,generation,md5Hash),prefixes,nextPageToken"

#: What objects get that are uploaded without a type.
_UNKNOWN = "application/octet-stream"


class GcsStore(BucketStore):
    """The objects of ``gs://bucket[/prefix]``.

    A file's version id is its object's generation, and its etag the MD5 of its content, which copies share; an object composed
    of others has no MD5, and the generation as its etag.
    """

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        blob = self._of_object(path, _loaded)
        return Details(blob.metadata or {}, blob.storage_class, str(blob.generation))

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`. Google's objects have none."""
        self._of_object(path, _loaded)
        return {}

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`. The service account signs: with its key, if it is here, else by a request."""
        with self._errors(path):
            by = credentials.signer(self._access)
            if not by:
                raise InvalidValueError(
                    f"{self._place.name(path)}: only a service account can sign URLs.",
                    "Use a connection with --credentials profile:/path/of/key.json, or with the account as --role-arn.",
                )
            try:
                url = self._blob(path).generate_signed_url(
                    timedelta(seconds=seconds), api_access_endpoint=self._endpoint, version="v4", **by
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
        asked = {"if_source_generation_match": found.version_id, **({} if replaces else {"if_generation_match": 0}), **_OPTIONS}

        def rewrite(source: Blob) -> None:
            token, _, _ = blob.rewrite(source, **asked)
            while token is not None:
                token, _, _ = blob.rewrite(source, token, **asked)

        self._of_object(path, rewrite)
        return _etag(blob)

    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[tuple[Iterable[Listed], Iterable[str]]]:
        start = self._place.root + after if after else None
        with self._errors(prefix):
            for page in self._list(
                self._place.root + prefix,
                delimiter=None if deep else "/",
                start_offset=start,  # with which it begins
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
            raise StorageError(f"{self._place.name(path)}: the answer is incomplete.", "It will be asked again.")
        return Found(blob.size, blob.time_created, _etag(blob), blob.content_type, str(blob.generation))

    def _fetch(self, path: str, start: int, last: int | None = None) -> Content:
        key = quote(self._key(path), safe="")
        asked = {"Accept-Encoding": "gzip"}  # else Google decompresses objects with a Content-Encoding
        if start or last is not None:
            asked["Range"] = f"bytes={start}-{'' if last is None else last}"
        place = f"{self._endpoint}/download/storage/v1/b/{self._place.bucket}/o/{key}?alt=media"

        def ask(_: Blob) -> Response:
            got = client(self._access)._http.get(place, headers=asked, stream=True, timeout=_TIMEOUTS)
            if not got.ok:
                raise from_http_response(got)
            return got

        got = self._of_object(path, _RETRY(ask))
        return Content(start + int(got.headers["Content-Length"]), got.headers["x-goog-generation"], got.raw)

    def _of_object(self, path: str, call: Callable[[Blob], T]) -> T:
        """Requests something about an object; returns the response. Raises FileNotFoundError."""
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
    """Returns the store of a bucket or a part of it."""
    return GcsStore(location, access)


def client(access: Access) -> Client:
    """Returns the client of an access, which threads share.

    Raises:
        The vendor's exceptions: call it inside :func:`credentials.errors`.
    """
    credentials.look(access)
    return _client(access)


@credentials.FILES.cached
def _client(access: Access) -> Client:
    made = credentials.credentials(access)
    session = AuthorizedSession(made)
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    # A project is needed only to make buckets. The endpoint, so that the SDK does not ask the environment.
    one = Client("-", made, session, client_options={"api_endpoint": access.endpoint or _ENDPOINT})
    one._bucket_metadata_cache = None  # for which the SDK asks for each bucket, in a thread, whether it may or not
    return one


def _loaded(blob: Blob) -> Blob:
    blob.reload(**_OPTIONS)
    return blob


def _etag(blob: Blob) -> str:
    return base64.b64decode(blob.md5_hash).hex() if blob.md5_hash else str(blob.generation)
