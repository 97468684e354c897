"""The objects of an S3 bucket, Amazon's or S3-compatible.

What does not belong here: credentials, retries and the meaning of errors (``cloud.aws``), key rules (``bucket``).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC
from typing import Any, BinaryIO, TypeVar

from volstream.cloud import aws
from volstream.cloud.access import Access
from volstream.errors import StorageError
from volstream.model.files import FileInfo, Finding
from volstream.model.selection import Selection
from volstream.storage.base import Details
from volstream.storage.bucket import BucketPlace, parts_of, ranges_of
from volstream.storage.ranged import Content, ranged

Part = TypeVar("Part")

#: For this long after the bucket was seen, a missing key counts as a missing object without checking the bucket.
_SEEN_SECONDS = 60.0


class S3Store:
    """The objects of ``s3://bucket[/prefix]``.

    A pickled store has temporary keys instead of its credentials, so it works for an hour or more.

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
        with self._errors(""):
            keys, region = aws.temporary_keys(self._access), aws.region(self._access)
        access = replace(self._access, region=region, role_arn=None, external_id=None, credentials="static", keys=keys)
        return (S3Store, (self._location, access))

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
            for obj in page.get("Contents", ()):
                modified = obj["LastModified"].astimezone(UTC)
                entry = self._place.entry(obj["Key"], obj["Size"], modified, obj["ETag"], selection)
                if entry is not None:
                    yield entry

    def prefixes(self, prefix: str) -> Iterator[str]:
        """See :meth:`KeyOrdered.prefixes`."""
        for page in self._pages(prefix, "", deep=False):
            for common in page.get("CommonPrefixes", ()):
                yield self._place.path(common["Prefix"])

    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`."""
        key = self._place.key(path)
        reply = None
        with self._errors(path):
            if key is not None:
                try:
                    reply = self._client.head_object(Bucket=self._place.bucket, Key=key)
                except self._client.exceptions.ClientError as exc:
                    if aws.status(exc) != 404 and not (aws.status(exc) == 403 and self._is_absent(key)):
                        raise
            if reply is None:
                self._check_bucket()
                return None
        self._seen = time.monotonic()
        return self._place.file(
            path, reply["ContentLength"], reply["LastModified"].astimezone(UTC), reply["ETag"], reply.get("ContentType")
        )

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`. Reading to the end takes one request."""

        def fetch(start: int) -> Content:
            asked = {"Range": f"bytes={start}-"} if start else {}
            got = self._of_object(path, "get_object", **asked)
            return Content(start + got["ContentLength"], got["ETag"], got["Body"])

        return ranged(self._place.name(path), fetch, lambda: self._errors(path))

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        reply = self._of_object(path, "head_object")
        return Details(reply.get("Metadata", {}), reply.get("StorageClass", "STANDARD"), reply.get("VersionId"))

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`."""
        return {tag["Key"]: tag["Value"] for tag in self._of_object(path, "get_object_tagging")["TagSet"]}

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :meth:`HasDetails.read_range`."""
        reply = self._of_object(path, "get_object", Range=f"bytes={start}-{start + length - 1}")
        with self._errors(path):
            content: bytes = reply["Body"].read()
        return content

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`."""
        place = {"Bucket": self._place.bucket, "Key": self._place.key(path)}
        with self._errors(path):
            url: str = self._client.generate_presigned_url("get_object", place, ExpiresIn=seconds)
        return url

    def write(self, path: str, content: bytes) -> None:
        """See :meth:`Writable.write`."""
        with self._errors(path):
            self._client.put_object(Bucket=self._place.bucket, Key=self._place.key(path), Body=content)

    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""
        with self._errors(path):
            self._client.delete_object(Bucket=self._place.bucket, Key=self._place.key(path))

    def put(self, path: str, content: BinaryIO, content_type: str | None) -> tuple[int, str]:
        """See :meth:`TakesOutputs.put`. In one request, or in parts if it is large."""
        more = {} if content_type is None else {"ContentType": content_type}
        parts = parts_of(content)
        first, second = next(parts), next(parts, None)
        if second is None:
            with self._errors(path):
                reply = self._client.put_object(**self._at(path), Body=first, **more)
            return len(first), reply["ETag"].strip('"')
        size = 0

        def upload(number: int, part: bytes, to: Mapping[str, Any]) -> str:
            nonlocal size
            size += len(part)
            etag: str = self._client.upload_part(**to, PartNumber=number, Body=part)["ETag"]
            return etag

        etag = self._in_parts(path, more, itertools.chain((first, second), parts), upload)
        return size, etag

    def move(self, path: str, to: str) -> str | None:
        """See :meth:`TakesOutputs.move`. Copies, then removes."""
        try:
            found = self._of_object(path, "head_object")
            source = {"CopySource": self._at(path)}
            if "-" not in found["ETag"]:
                etag: str = self._of_object(to, "copy_object", **source)["CopyObjectResult"]["ETag"].strip('"')
            else:

                def copy(number: int, part: tuple[int, int], into: Mapping[str, Any]) -> str:
                    extent = {"CopySourceRange": f"bytes={part[0]}-{part[1]}"}
                    reply = self._client.upload_part_copy(**into, PartNumber=number, **source, **extent)
                    copied: str = reply["CopyPartResult"]["ETag"]
                    return copied

                kind = {"ContentType": found["ContentType"]}
                etag = self._in_parts(to, kind, ranges_of(found["ContentLength"]), copy)
        except FileNotFoundError:
            return None
        self.remove(path)
        return etag

    def remove_folder(self, path: str) -> None:
        """See :meth:`TakesOutputs.remove_folder`."""
        for entry in self.list(f"{path}/", Selection(ignores=())):
            if isinstance(entry, FileInfo):
                self.remove(entry.relative_path)

    def obstacle(self, path: str) -> str | None:
        """See :meth:`TakesOutputs.obstacle`."""
        if self._place.key(path) is None:
            return "is too long for a key"
        return None if self.head(path) is None else "already exists"

    def url(self, path: str) -> str:
        """See :meth:`ObjectStore.url`."""
        return self._place.url(path)

    @property
    def _client(self) -> Any:
        return aws.client(self._access, "s3")

    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[Any]:
        asked = {"Bucket": self._place.bucket, "Prefix": self._place.root + prefix}
        if not deep:
            asked["Delimiter"] = "/"
        if after:
            asked["StartAfter"] = self._place.root + after
        with self._errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                **asked, PaginationConfig={"PageSize": self._page}
            )
            for page in pages:
                self._seen = time.monotonic()
                yield page

    def _at(self, path: str) -> dict[str, Any]:
        return {"Bucket": self._place.bucket, "Key": self._place.key(path)}

    def _in_parts(
        self,
        path: str,
        more: Mapping[str, str],
        parts: Iterable[Part],
        write: Callable[[int, Part, Mapping[str, Any]], str],
    ) -> str:
        """Creates an object of parts, which appears when it is complete; returns its etag.

        Args:
            write: writes a part, given its number and the upload; returns its etag.
        """
        with self._errors(path):
            upload = {
                **self._at(path),
                "UploadId": self._client.create_multipart_upload(**self._at(path), **more)["UploadId"],
            }
        try:
            with self._errors(path):
                written = [
                    {"PartNumber": number, "ETag": write(number, part, upload)} for number, part in enumerate(parts, 1)
                ]
                done = self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": written})
        except BaseException:
            with suppress(StorageError), self._errors(path):
                self._client.abort_multipart_upload(**upload)
            raise
        etag: str = done["ETag"].strip('"')
        return etag

    def _of_object(self, path: str, what: str, **more: Any) -> Any:
        """Requests something about an object; returns the response. Raises FileNotFoundError."""
        key = self._place.key(path)
        if key is None:
            raise FileNotFoundError(path)
        with self._errors(path):
            try:
                return getattr(self._client, what)(Bucket=self._place.bucket, Key=key, **more)
            except self._client.exceptions.ClientError as exc:
                if aws.status(exc) == 404 and exc.response["Error"].get("Code") != "NoSuchBucket":
                    raise FileNotFoundError(path) from exc
                raise

    def _is_absent(self, key: str) -> bool:
        """True if a listing lacks the key: with prefix-only list permission, S3 answers 403, not 404, for a missing key."""
        page = self._client.list_objects_v2(Bucket=self._place.bucket, Prefix=key, MaxKeys=1)
        return all(obj["Key"] != key for obj in page.get("Contents", ()))

    def _check_bucket(self) -> None:
        """Raises if the bucket does not exist: HEAD does not show whether the bucket or the object is missing."""
        if time.monotonic() - self._seen > _SEEN_SECONDS:
            self._client.list_objects_v2(Bucket=self._place.bucket, Prefix=self._place.root, MaxKeys=1)
            self._seen = time.monotonic()

    def _errors(self, path: str) -> AbstractContextManager[None]:
        return aws.errors(self._place.name(path))
