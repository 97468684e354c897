"""The blobs of a container of Azure's Blob Storage, and of Data Lake Storage with its hierarchical namespace.

Not here: code shared by all providers' buckets (``storage.buckets``); accounts, credentials and error mapping
(``credentials``).
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote
from xml.etree import ElementTree

from azure.core import MatchConditions
from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError
from azure.storage.blob import (
    BlobBlock,
    BlobClient,
    BlobPrefix,
    BlobProperties,
    ContainerClient,
    ContentSettings,
    StorageStreamDownloader,
)
from requests import Response

from volstream.errors import InvalidValueError, StorageError
from volstream.files.providers.access import Access
from volstream.files.providers.azure import credentials
from volstream.files.storage.base import Details
from volstream.files.storage.buckets import BucketStore, Content, Found, Listed

T = TypeVar("T")

#: How long an asynchronous copy may take.
_COPY_SECONDS = 600.0


class BlobStore(BucketStore):
    """The blobs of ``az://container[@account][/prefix]``.

    A file's version id is its blob's ETag, which changes with each write and with its metadata. Its etag is
    the MD5 of the content, which copies share, if the service knows it: for blobs written in one request or
    by volstream. Otherwise it is the ETag.
    """

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        blob = self._request_object(path, BlobClient.get_blob_properties)
        return Details(blob.metadata or {}, str(blob.blob_tier or "Hot"), blob.version_id)

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`."""
        return self._request_object(path, BlobClient.get_blob_tags)

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`. An identity requests the signing key."""
        blob = self._blob(path)
        with self._errors(path):
            lifetime = timedelta(seconds=seconds)
            sas = credentials.signature(self._access, self._account, self._place.bucket, blob.blob_name, lifetime)
            if sas is None:
                raise InvalidValueError(
                    f"{self._place.name(path)}: a shared access signature cannot sign URLs.",
                    "Use a connection with the credentials of an identity; tasks never get an account's key.",
                )
        return f"{blob.url.partition('?')[0]}?{sas}"

    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""
        with self._errors(path), suppress(ResourceNotFoundError, FileNotFoundError):
            self._blob(path).delete_blob()

    def _remove_version(self, path: str, found: Found) -> None:
        same = MatchConditions.IfNotModified
        with self._errors(path), suppress(ResourceNotFoundError, ResourceModifiedError):
            self._blob(path).delete_blob(etag=found.version_id, match_condition=same)

    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        settings = _settings(content_type, hashlib.md5(content, usedforsecurity=False).digest())
        with self._errors(path):
            self._blob(path).upload_blob(content, overwrite=True, content_settings=settings)
        return _hex(settings)

    def _put_large(self, path: str, content_type: str | None, parts: Iterator[bytes]) -> str:
        blob, blocks, digest = self._blob(path), list[BlobBlock](), hashlib.md5(usedforsecurity=False)
        with self._errors(path):
            for number, part in enumerate(parts):
                digest.update(part)
                blocks.append(BlobBlock(base64.b64encode(b"%06d" % number).decode()))
                blob.stage_block(blocks[-1].id, part)
            settings = _settings(content_type, digest.digest())
            blob.commit_block_list(blocks, content_settings=settings)
        return _hex(settings)

    def _copy(self, path: str, to: str, found: Found, replaces: bool) -> str:
        blob, target = self._blob(path), self._blob(to)
        with self._errors(path):
            query = credentials.reading(self._access, self._account, self._place.bucket, blob.blob_name)
        address = f"{blob.url.partition('?')[0]}{query}"
        conditions: dict[str, Any] = {} if replaces else {"match_condition": MatchConditions.IfMissing}

        def copy(_: BlobClient) -> Mapping[str, Any]:
            same = MatchConditions.IfNotModified
            return target.start_copy_from_url(address, source_etag=found.version_id, source_match_condition=same, **conditions)

        response, until = self._request_object(path, copy), time.monotonic() + _COPY_SECONDS
        with self._errors(to):
            state, etag = response["copy_status"], str(response["etag"])
            while state == "pending" and time.monotonic() < until:
                time.sleep(0.2)
                copied = target.get_blob_properties()
                state, etag = copied.copy.status, copied.etag
        if state != "success":
            raise StorageError(f"{self._place.name(to)}: its copy is not complete after {_COPY_SECONDS:g} s: {state}.")
        return etag if found.etag == found.version_id else found.etag

    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[tuple[Iterable[Listed], Iterable[str]]]:
        start = self._place.root + after if after else None
        options: dict[str, Any] = {"name_starts_with": self._place.root + prefix, "include": ["metadata"]}
        options |= {"results_per_page": self._page} | ({} if start is None else {"start_from": start})
        last, blobs_of_page = "", list[_Blob]()

        def collect(response: Any) -> None:
            blobs_of_page[:] = _extract_blobs(response.http_response)

        with self._errors(prefix):
            listing = (self._container.list_blobs if deep else self._container.walk_blobs)(**options, raw_response_hook=collect)
            for page in listing.by_page():
                self._seen = time.monotonic()
                entries = [*page]
                blobs = [*blobs_of_page] or [_blob(entry) for entry in entries if not isinstance(entry, BlobPrefix)]
                for blob in blobs:
                    last = self._checked(blob.listed[0], last)
                # The start is inclusive.
                listed = (blob.listed for blob in blobs if blob.listed[0] != start and not blob.is_folder)
                yield listed, [entry.name for entry in entries if isinstance(entry, BlobPrefix)]

    def _checked(self, name: str, last: str) -> str:
        """Returns a listed name. Raises StorageError if names are out of order, because listings must
        resume."""
        if name.encode() < last.encode():
            raise StorageError(
                f"{self._place.name('')} is not listed in the order of names, as in accounts with a hierarchical namespace, or "
                "with names beyond U+FFFF beside others.",
                f"Make a volume of abfss://{self._place.bucket}@{self._account.name}.dfs.core.windows.net/{self._place.root}.",
            )
        return name

    def _check_bucket(self) -> None:
        with self._errors(""):
            pages = self._container.list_blobs(name_starts_with=self._place.root, results_per_page=1).by_page()
            next(pages, None)

    def _head(self, path: str) -> Found:
        self._key(path)
        with self._errors(path):
            try:
                blob = self._blob(path).get_blob_properties()
            except ResourceNotFoundError:
                raise FileNotFoundError(path) from None
        if _is_folder(blob):
            raise FileNotFoundError(path)
        if blob.size is None or blob.last_modified is None or blob.etag is None:
            raise StorageError(f"{self._place.name(path)}: the response is incomplete.", "It will be retried.")
        return Found(blob.size, blob.last_modified, _etag(blob), blob.content_settings.content_type, _version(blob))

    def _fetch(self, path: str, start: int, last: int | None = None) -> Content:
        length = None if last is None else last - start + 1
        download = self._request_object(path, lambda blob: blob.download_blob(start or None if length is None else start, length))
        return Content(start + download.size, _version(download.properties), _Body(download))

    def _request_object(self, path: str, call: Callable[[BlobClient], T]) -> T:
        """Sends a request about a blob and returns the response. Raises FileNotFoundError."""
        self._key(path)
        with self._errors(path):
            try:
                return call(self._blob(path))
            except ResourceNotFoundError as exc:
                self._check_bucket()
                raise FileNotFoundError(path) from exc

    def _blob(self, path: str) -> BlobClient:
        return self._container.get_blob_client(self._key(path))

    @cached_property
    def _account(self) -> credentials.Account:
        return credentials.account(self._access, self._location)

    @property
    def _container(self) -> ContainerClient:
        return credentials.service(self._access, self._account).get_container_client(self._place.bucket)

    def _errors(self, path: str) -> AbstractContextManager[None]:
        return credentials.errors(self._place.name(path), self._access)


class DataLakeStore(BlobStore):
    """The files of ``az://container@account.dfs...[/prefix]``.

    In a hierarchical namespace, files are visible while they are written, and listings are not in the order
    of names, so this is not a :class:`~volstream.files.storage.base.KeyOrdered`. Folders exist, but are not
    files.
    """

    list_after = None  # type: ignore[assignment]  # see above
    prefixes = None  # type: ignore[assignment]  # see above

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`. A hierarchical namespace has no tags."""
        try:
            return super().tags(path)
        except StorageError as error:
            if "SupportedFor" in error.message:  # Feature-Not-Yet-SupportedFor-HierarchicalNamespaceAccounts
                return {}
            raise

    def remove_folder(self, path: str) -> None:
        """See :meth:`TakesOutputs.remove_folder`. Also removes the folders themselves."""
        super().remove_folder(path)
        with self._errors(path):
            below = self._container.list_blobs(name_starts_with=f"{self._place.root}{path}/", include=["metadata"])
            folders = [self._place.path(blob.name) for blob in below if _is_folder(blob)]
        for folder in (*sorted(folders, reverse=True), path):
            self.remove(folder)

    def _checked(self, name: str, _last: str) -> str:
        return name


@dataclass(frozen=True)
class _Body:
    """A content that is fetched in chunks, each with its own request."""

    content: StorageStreamDownloader[bytes]

    def read(self, amount: int, /) -> bytes:
        return self.content.read(amount)

    def close(self) -> None:
        """Does nothing: no connection stays open between reads."""


def open_store(location: str, access: Access) -> BlobStore:
    """Returns the store of a container or of a prefix."""
    return (DataLakeStore if ".dfs." in location.split("/")[2] else BlobStore)(location, access)


def _settings(content_type: str | None, digest: bytes) -> ContentSettings:
    return ContentSettings(content_type=content_type, content_md5=bytearray(digest))


def _hex(settings: ContentSettings) -> str:
    return bytes(settings.content_md5 or b"").hex()


def _version(blob: BlobProperties) -> str:
    return str(blob.etag).strip('"')


def _etag(blob: BlobProperties) -> str:
    return _hex(blob.content_settings) or _version(blob)


def _is_folder(blob: BlobProperties) -> bool:
    """True for a blob that represents a folder of a hierarchical namespace."""
    return _is_true((blob.metadata or {}).get("hdi_isfolder"))


def _is_true(text: str | None) -> bool:
    return (text or "").lower() == "true"


class _Blob(NamedTuple):
    """A blob on a page of a listing."""

    listed: Listed
    is_folder: bool


def _blob(blob: BlobProperties) -> _Blob:
    return _Blob((blob.name, blob.size, blob.last_modified, _etag(blob), _version(blob)), _is_folder(blob))


def _extract_blobs(response: Any) -> list[_Blob]:
    """Parses the blobs of a listing's page ten times as fast as the SDK, and removes them from the page.

    The SDK parses the rest, and responses of any other form.
    """
    raw = getattr(response, "internal_response", None)
    if response.status_code != 200 or not isinstance(raw, Response):
        return []
    try:
        root = ElementTree.fromstring(raw.content)
        listed = root.find("Blobs")
        blobs = [] if listed is None else [_read(element) for element in listed.iterfind("Blob")]
    except (ElementTree.ParseError, LookupError, TypeError, ValueError):
        return []
    if listed is not None and blobs:
        listed[:] = listed.findall("BlobPrefix")
        raw._content = response._content = ElementTree.tostring(root)  # cached by requests and by the SDK
    return blobs


def _read(element: ElementTree.Element) -> _Blob:
    """Parses a blob of a page. Raises LookupError or ValueError if a field is missing."""
    name, properties, metadata = map(element.find, ("Name", "Properties", "Metadata"))
    if name is None or properties is None:
        raise ValueError
    text = name.text or ""
    values = {item.tag: item.text or "" for item in properties}
    version = values["Etag"].strip('"')
    etag = base64.b64decode(values.get("Content-MD5", "")).hex() or version
    return _Blob(
        (
            unquote(text) if name.get("Encoded") == "true" else text,
            int(values["Content-Length"]),
            _time(values["Last-Modified"]),
            etag,
            version,
        ),
        metadata is not None and _is_true(metadata.findtext("hdi_isfolder")),
    )


@lru_cache(1000)  # blobs uploaded together share their times
def _time(text: str) -> datetime:
    return parsedate_to_datetime(text)
