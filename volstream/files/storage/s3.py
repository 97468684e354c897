"""The objects of an S3 bucket, Amazon's or S3-compatible.

What does not belong here: credentials, retries and the meaning of errors (``cloud.aws``), key rules (``bucket``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC
from typing import Any, BinaryIO

from volstream.base.model.files import FileInfo, Finding, printable
from volstream.base.model.selection import Selection
from volstream.errors import StorageError
from volstream.files.cloud import aws
from volstream.files.cloud.access import Access
from volstream.files.storage.base import Details
from volstream.files.storage.bucket import BucketPlace
from volstream.files.storage.outputs import BucketOutputs
from volstream.files.storage.ranged import Content, ranged

#: For this long after the bucket was seen, a missing key counts as a missing object without checking the bucket.
_SEEN_SECONDS = 60.0


class S3Store(BucketOutputs):
    """The objects of ``s3://bucket[/prefix]``.

    A pickled store has keys for tasks instead of its credentials, so it works for an hour or more.

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
            return (S3Store, (self._location, aws.for_tasks(self._access)))

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

    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        with self._errors(path):
            etag: str = self._client.put_object(**self._at(path), Body=content, **_typed(content_type))["ETag"]
        return etag

    def _stored(self, path: str) -> tuple[int, str, str | None]:
        found = self._of_object(path, "head_object")
        return found["ContentLength"], found["ETag"], found["ContentType"]

    def _copy(self, path: str, to: str, etag: str) -> str:  # noqa: ARG002  # the answer has it
        copied: str = self._of_object(to, "copy_object", CopySource=self._at(path))["CopyObjectResult"]["ETag"]
        return copied

    def _begin_parts(self, path: str, content_type: str | None) -> str:
        with self._errors(path):
            upload: str = self._client.create_multipart_upload(**self._at(path), **_typed(content_type))["UploadId"]
        return upload

    def _put_part(self, path: str, upload: str, number: int, part: bytes) -> str:
        with self._errors(path):
            reply = self._client.upload_part(**self._at(path), UploadId=upload, PartNumber=number, Body=part)
        etag: str = reply["ETag"]
        return etag

    def _copy_part(self, path: str, to: str, upload: str, number: int, extent: tuple[int, int]) -> str:
        source = {"CopySource": self._at(path), "CopySourceRange": f"bytes={extent[0]}-{extent[1]}"}
        with self._errors(to):
            reply = self._client.upload_part_copy(**self._at(to), UploadId=upload, PartNumber=number, **source)
        etag: str = reply["CopyPartResult"]["ETag"]
        return etag

    def _complete_parts(self, path: str, upload: str, etags: Sequence[tuple[int, str]]) -> str:
        parts = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in etags]}
        with self._errors(path):
            reply = self._client.complete_multipart_upload(**self._at(path), UploadId=upload, MultipartUpload=parts)
        etag: str = reply["ETag"]
        return etag

    def _uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        with self._errors(prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._place.bucket, Prefix=self._place.root + prefix
            )
            for page in pages:
                for upload in page.get("Uploads", ()):
                    yield upload["Key"].removeprefix(self._place.root), upload["UploadId"]

    def _abort_parts(self, path: str, upload: str) -> None:
        with self._errors(path):
            self._client.abort_multipart_upload(**self._at(path), UploadId=upload)

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
                self._check_keys(page, asked["Prefix"])
                yield page

    def _check_keys(self, page: Any, prefix: str) -> None:
        """Raises if a listing has other keys than were asked for: the paths of its files would be wrong."""
        for obj in page.get("Contents", ()):
            if not obj["Key"].startswith(prefix):
                raise StorageError(
                    f"s3://{self._place.bucket}: the store was asked for keys below {printable(prefix)!r}, and answered "
                    f"with {printable(obj['Key'])!r}.",
                    "The store may merge slashes: write single slashes in the location.",
                )

    def _at(self, path: str) -> dict[str, Any]:
        return {"Bucket": self._place.bucket, "Key": self._place.key(path)}

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


def _typed(content_type: str | None) -> Mapping[str, str]:
    return {} if content_type is None else {"ContentType": content_type}
